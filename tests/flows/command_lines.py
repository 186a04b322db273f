"""Run several command lines of the flows one after the other in this process, which imports everything only once.

    python tests/flows/command_lines.py CASES.json OUTCOMES.json

CASES holds `{name: [module, argument, …]}`, OUTCOMES gets `{name: {"code", "stdout", "stderr"}}`.
"""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows import check, evaluate, grpo
from flows.command_line import evaluate_main, grpo_main
from tasks.config import STAGES

PROGRAMS = {
    "flows.grpo": lambda arguments: grpo_main(arguments, grpo.grpo, STAGES),
    "flows.evaluate": lambda arguments: evaluate_main(arguments, evaluate.evaluate),
    "flows.check": check.main,
}


def run(module: str, arguments: Sequence[str]) -> dict[str, Any]:
    """What the command line exits with and writes, whoever in the process writes it."""
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        kept = os.dup(1), os.dup(2)
        os.dup2(stdout.fileno(), 1)
        os.dup2(stderr.fileno(), 2)
        try:
            code = PROGRAMS[module](arguments)
        except SystemExit as leaving:  # argparse
            code = leaving.code
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(kept[0], 1)
            os.dup2(kept[1], 2)
        texts = []
        for file in (stdout, stderr):
            file.seek(0)
            texts.append(file.read())
    return {"code": code, "stdout": texts[0], "stderr": texts[1]}


if __name__ == "__main__":
    cases = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    outcomes = {name: run(module, arguments) for name, (module, *arguments) in cases.items()}
    Path(sys.argv[2]).write_text(json.dumps(outcomes), encoding="utf-8")
