"""Math-Verify in a process of its own, so that no expression can hang or bloat the trainer.

Math-Verify limits its time by `signal.alarm`, which fails off the main thread, and without a limit a
completion such as `\\boxed{9^{9^{9^9}}}` computes for ever. So the judge is a child process with a limit on
the processor time of each question: where it runs out, the system ends the child, the answer counts as
wrong, and the next question starts a new child. The first question starts it (about a second); answers cost
milliseconds.
"""

import atexit
import json
import subprocess
import sys
import threading
from functools import lru_cache
from pathlib import Path

MAXIMUM_LENGTH = 500
"""Characters of an answer that is still given to Math-Verify; its parser is not linear in them."""

SECONDS = 3.0
"""Processor time for one question; an ordinary one takes milliseconds, the slowest honest ones a second."""

_PROGRAM = Path(__file__).with_name("math_judge_program.py")


@lru_cache(maxsize=4096)
def equal_expressions(gold: str, answer: str) -> bool:
    """Whether Math-Verify takes `answer` for `gold`, both LaTeX or plain text without `$`.

    An answer longer than `MAXIMUM_LENGTH`, or that Math-Verify cannot digest within its limits, is not equal.
    Raises `RuntimeError` where Math-Verify cannot be started.
    """
    if len(answer) > MAXIMUM_LENGTH or len(gold) > MAXIMUM_LENGTH:
        return False
    return _judge.ask(gold, answer)


class _Judge:
    """The child process; started when first asked, and again after a question that ended it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def ask(self, gold: str, answer: str) -> bool:
        with self._lock:
            process = self._running()
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps([gold, answer]) + "\n")
            process.stdin.flush()
            reply = process.stdout.readline()
            if not reply:
                self._end()
                return False
            return bool(json.loads(reply))

    def close(self) -> None:
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            # -P keeps the folder of the program, and with it the modules of this package, off the import
            # path.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_PROGRAM), str(SECONDS)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
            )
            assert self._process.stdout is not None
            greeting = json.loads(self._process.stdout.readline() or '"it ended at once"')
            if greeting != "ready":
                self._end()
                raise RuntimeError(f"Math-Verify cannot be started: {greeting}")
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


_judge = _Judge()
atexit.register(_judge.close)
