"""`python -m flows.check CONFIG [section.key=value …]`: the data gate and the reward gate alone, without Prefect.

Exit code 0 if both are passed. Nothing is trained, and no model is loaded.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence

from flows.command_line import parse_config
from tasks.check_rewards import check_rewards
from tasks.errors import UserError, WorkerFailed
from tasks.ingest import ingest
from tasks.named_files import check_files
from tasks.run import Run
from tasks.validate import validate


def main(arguments: Sequence[str]) -> int:
    try:
        config = parse_config("python -m flows.check", "Run the data gate and the reward gate alone.", arguments)
        check_files(config)
        run = Run.open(f"checks/{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")  # two may go on at a time
        data = ingest(config.data)
        print(f"data {data['digest'][:12]} from {data['source']}: {data['counts']}")
        found = validate(run, data, config.data, config.validation, on_line=print)
        for note in found["notes"]:
            print(f"note: {note}")
        hold = sum(one["success"] for one in found["expectations"])
        others = len(found["expectations"]) - hold
        rest = f", {others} {'does' if others == 1 else 'do'} not (see the notes)" if others else ""
        print(f"data gate passed: {hold} expectations hold{rest}; see {run.folder}/validation/data_docs")
        check_rewards(run, config, found["data"], on_line=print)
        print(f"reward gate passed; the whole table is in {run.folder}/check_rewards/report.md")
    except (UserError, WorkerFailed, ConnectionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
