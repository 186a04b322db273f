"""The frame of every worker program: read the job, do it, leave a result or a sentence.

A worker is started by `tasks.supervise` as `python -m tasks.SOMETHING A.job B.job` (or through `accelerate launch`). It
waits for its jobs, since one may be known only when another is done, and to import what both need takes seconds.
It leaves `result`, `error` or `memory` (where that ran out) beside the job. It ends itself when its supervisor is gone:
its standard input is a pipe that nobody writes to, and that closes with the supervisor, however that one died. A
parent-death signal would not do, since the launcher of a distributed job stands between the two.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from rewards.errors import RewardError
from tasks.errors import DISK_FULL, UserError, first_line, is_disk_full
from tasks.memory import is_out_of_memory
from tasks.run import write_json

USER_ERROR_EXIT = 3
MEMORY_EXIT = 4


Work = Callable[[dict[str, Any]], dict[str, Any]]


def run_worker(*works: Work) -> NoReturn:
    """Do each `work(job)` as soon as its job file is there, in whatever order they come, and exit.

    The command line names the job files, one for each of `works`.
    """
    _die_with_supervisor()
    awaited = dict(zip(map(Path, sys.argv[1:]), works, strict=True))
    while awaited:
        given = [path for path in awaited if path.exists()]
        for path in given:
            _do(awaited.pop(path), path)
        if not given:
            time.sleep(0.05)
    leave(0)


def _do(work: Work, path: Path) -> None:
    """Leave the result beside the job; where there is none leave the reason, and exit."""
    job = json.loads(path.read_text(encoding="utf-8"))
    main_process = os.environ.get("RANK", "0") == "0"
    try:
        result = work(job)
    except UserError as error:
        # Any of several processes may fail alone (each scores its own completions), so not only the main one tells.
        write_json(path.with_suffix(".error"), {"error": str(error)})
        leave(USER_ERROR_EXIT)
    except Exception as error:
        if is_disk_full(error):
            write_json(path.with_suffix(".error"), {"error": f"{error}: {DISK_FULL}"})
            leave(USER_ERROR_EXIT)
        if not is_out_of_memory(error):
            if not (isinstance(error, RewardError) and error.is_a_mistake):
                raise
            write_json(path.with_suffix(".error"), {"error": f"{error}; correct it"})
            leave(USER_ERROR_EXIT)
        traceback.print_exc()
        write_json(path.with_suffix(".memory"), {"error": first_line(error, 300)})
        leave(MEMORY_EXIT)
    if main_process:
        write_json(path.with_suffix(".result"), result)


def leave(code: int) -> NoReturn:
    """Exit without waiting for the threads and atexit hooks of the libraries, some of which hang (vLLM's on a CPU)."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _die_with_supervisor() -> None:
    # Kept apart from fd 0, so that libraries and child processes do not read from the pipe.
    pipe = os.dup(0)
    os.set_inheritable(pipe, False)

    def watch() -> None:
        while os.read(pipe, 1):
            pass
        os.killpg(os.getpgid(0), signal.SIGKILL)

    if os.environ.get("GRPO_SUPERVISED"):
        threading.Thread(target=watch, daemon=True, name="supervisor-watch").start()
