"""The one place where child processes are started, watched and ended.

A worker runs in a session of its own, so that it and everything it starts can be ended as a group. Its output is
read line by line (a progress bar's carriage returns count as line ends), handed to a callback and kept in a file.
Whatever ends the supervisor, an exception, a signal or the time limit, ends the group.
"""

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from tasks import memory
from tasks.errors import UserError, WorkerFailed
from tasks.run import PROJECT, read_json, write_json

GRACE = 20.0  # seconds that a worker has after SIGTERM; Prefect kills a cancelled run after 30
_LINE_END = re.compile(rb"[\r\n]+")


def run_job(
    module: str,
    job: dict[str, Any],
    folder: Path,
    *,
    log: Path,
    on_line: Callable[[str], None],
    launcher: Sequence[str] = (),
    environment: dict[str, str] | None = None,
    time_limit: float | None = None,
    limit_setting: str = "the time limit",
    limit_advice: str = "raise it, or give it less to do",
    on_tick: Callable[[], object] | None = None,
    grace: float = GRACE,
) -> dict[str, Any]:
    """Run `python -m module` (or `launcher … --module module`) on `job` and return its result.

    `folder` takes the job file and the result; `on_tick` is called about once a second meanwhile. A worker that takes
    longer than `time_limit` seconds is ended; `limit_setting` is where the user sets them. To end a worker is to send
    SIGTERM to it and all that it started, and SIGKILL to what is left after `grace` seconds. Raises UserError with the
    worker's own sentence, OutOfMemory where that was the reason, or WorkerFailed with the exit code and the last lines
    of the log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{module.rpartition('.')[2]}.job"
    for kind in (".result", ".error", ".memory"):
        path.with_suffix(kind).unlink(missing_ok=True)
    write_json(path, job)
    command = [*(launcher or (sys.executable, "-m")), module, str(path)]
    tail: deque[str] = deque(maxlen=30)
    signs = memory.Signs()

    def line_seen(line: str) -> None:
        tail.append(line)
        signs.line(line)
        on_line(line)

    started = time.monotonic()

    def tick() -> None:
        if on_tick:
            on_tick()
        if time_limit is not None and time.monotonic() - started > time_limit:
            last = f" It was last heard of with: {tail[-1]}" if tail else ""
            raise UserError(
                f"{module} ran past {limit_setting} of {time_limit:g} s and was ended; {limit_advice}.{last}"
            )

    code = _watch(command, log, line_seen, environment or {}, tick, grace)
    if on_tick:
        on_tick()  # once more, for what the worker left in its last second
    if code == 0 and path.with_suffix(".result").exists():
        return read_json(path.with_suffix(".result"))
    if path.with_suffix(".error").exists():
        raise UserError(read_json(path.with_suffix(".error"))["error"])
    raised = read_json(path.with_suffix(".memory"))["error"] if path.with_suffix(".memory").exists() else None
    if lacking := signs.diagnosis(module, code, raised):
        raise lacking
    what = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    raise WorkerFailed(f"{module} ended with {what}; its log is {log}. It ends:\n" + "\n".join(tail), code)


def _watch(
    command: Sequence[str],
    log: Path,
    on_line: Callable[[str], None],
    environment: dict[str, str],
    tick: Callable[[], None],
    grace: float,
) -> int:
    process, output = _start(command, log, on_line, environment)
    try:
        while output.open and process.poll() is None:
            output.read(timeout=1.0)
            tick()
        return process.wait()
    finally:
        # BaseException too: Prefect's cancellation arrives as one (TerminationSignal).
        _end_group(process, grace, output)


class Background:
    """A worker that runs beside others, as a server does, until it is ended.

    Its output is handed on by `check`, which is to be called every second or so.
    """

    def __init__(
        self,
        module: str,
        job: dict[str, Any],
        folder: Path,
        *,
        log: Path,
        on_line: Callable[[str], None],
        environment: dict[str, str],
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{module.rpartition('.')[2]}.job"
        write_json(path, job)
        self._module, self._log = module, log
        self._tail: deque[str] = deque(maxlen=30)
        self._signs = memory.Signs()

        def line_seen(line: str) -> None:
            self._tail.append(line)
            self._signs.line(line)
            on_line(line)

        self._process, self._output = _start([sys.executable, "-m", module, str(path)], log, line_seen, environment)

    def check(self) -> None:
        """Raise OutOfMemory or WorkerFailed if it has ended."""
        while self._output.read(timeout=0):
            pass
        code = self._process.poll()
        if code is not None:
            if lacking := self._signs.diagnosis(self._module, code, None):
                raise lacking
            last = "\n".join(self._tail)
            raise WorkerFailed(
                f"{self._module} ended with exit code {code}; its log is {self._log}. It ends:\n{last}", code
            )

    def end(self, grace: float = GRACE) -> None:
        """End it and all that it started."""
        _end_group(self._process, grace, self._output)


def _start(
    command: Sequence[str], log: Path, on_line: Callable[[str], None], environment: dict[str, str]
) -> tuple[subprocess.Popen[bytes], "_Output"]:
    process = subprocess.Popen(
        command,
        cwd=PROJECT,
        stdin=subprocess.PIPE,  # never written to; its closing tells the worker that we are gone
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1", "GRPO_SUPERVISED": "1"} | environment,
    )
    return process, _Output(process, log, on_line)


class _Output:
    """What a worker writes, line by line."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, on_line: Callable[[str], None]) -> None:
        assert process.stdout is not None
        self._pipe, self._on_line = process.stdout, on_line
        self._log = log.open("ab")
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._pipe, selectors.EVENT_READ)
        self._pending = b""
        self.open = True
        os.set_blocking(self._pipe.fileno(), False)

    def read(self, timeout: float) -> bool:
        """Wait for output and hand it on; False if there was none."""
        if not self.open or not self._selector.select(timeout):
            return False
        data = os.read(self._pipe.fileno(), 1 << 16)
        self.open = bool(data)
        *lines, self._pending = _LINE_END.split(self._pending + data)
        for line in lines + ([] if data else [self._pending]):
            self._emit(line)
        return self.open

    def close(self) -> None:
        self._selector.close()
        self._pipe.close()
        self._log.close()

    def _emit(self, line: bytes) -> None:
        if line.strip():
            self._log.write(line + b"\n")
            self._log.flush()
            self._on_line(line.decode("utf-8", "replace").rstrip())


def _end_group(process: subprocess.Popen[bytes], grace: float, output: _Output) -> None:
    """End the worker and all it started; SIGTERM first, SIGKILL after the grace."""
    try:
        if process.poll() is None:
            _signal_group(process.pid, signal.SIGTERM)
            # A launcher ends at once; the trainer that it started may still be writing its checkpoint.
            deadline = time.monotonic() + grace
            while time.monotonic() < deadline and (process.poll() is None or _has_members(process.pid)):
                if not output.read(timeout=0.1) and not output.open:
                    time.sleep(0.1)
    finally:  # its output may be more than the disk can take
        _signal_group(process.pid, signal.SIGKILL)  # also what outlived a worker that ended by itself
        process.wait()
    try:
        while output.read(timeout=0.2):
            pass
    finally:
        output.close()
        assert process.stdin is not None
        process.stdin.close()


def _has_members(group: int) -> bool:
    """Whether a process of the group still runs."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
