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

from tasks.errors import UserError, WorkerFailed
from tasks.run import PROJECT, read_json, write_json
from tasks.worker import USER_ERROR_EXIT

GRACE = 20.0  # seconds a worker has after SIGTERM; Prefect kills a cancelled run after 30
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
    on_tick: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Run `python -m module` (or `launcher … --module module`) on `job` and return its result.

    `folder` takes the job file and the result; `on_tick` is called about once a second meanwhile. A worker that takes
    longer than `time_limit` seconds is ended; `limit_setting` is where the user sets them. Raises UserError
    with the worker's own sentence, or WorkerFailed with the exit code and the last lines of the log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{module.rpartition('.')[2]}.job"
    for stale in (path.with_suffix(".result"), path.with_suffix(".error")):
        stale.unlink(missing_ok=True)
    write_json(path, job)
    command = [*(launcher or (sys.executable, "-m")), module, str(path)]
    tail: deque[str] = deque(maxlen=30)

    def line_seen(line: str) -> None:
        tail.append(line)
        on_line(line)

    started = time.monotonic()

    def tick() -> None:
        if on_tick:
            on_tick()
        if time_limit is not None and time.monotonic() - started > time_limit:
            last = f" It was last heard of with: {tail[-1]}" if tail else ""
            raise UserError(
                f"{module} ran past {limit_setting} of {time_limit:g} s and was ended; raise it, or give it less to do."
                f"{last}"
            )

    code = _watch(command, log, line_seen, environment or {}, tick)
    if on_tick:
        on_tick()  # once more, for what the worker left in its last second
    if code == 0 and path.with_suffix(".result").exists():
        return read_json(path.with_suffix(".result"))
    if path.with_suffix(".error").exists():
        raise UserError(read_json(path.with_suffix(".error"))["error"])
    what = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    assert code != USER_ERROR_EXIT, "a worker that exits so leaves a sentence"
    raise WorkerFailed(f"{module} ended with {what}; its log is {log}. It ends:\n" + "\n".join(tail), code)


def _watch(
    command: Sequence[str],
    log: Path,
    on_line: Callable[[str], None],
    environment: dict[str, str],
    tick: Callable[[], None],
) -> int:
    process = subprocess.Popen(
        command,
        cwd=PROJECT,
        stdin=subprocess.PIPE,  # never written to; its closing tells the worker that we are gone
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1", "GRPO_SUPERVISED": "1"} | environment,
    )
    assert process.stdout is not None
    try:
        with log.open("ab") as sink, selectors.DefaultSelector() as selector:
            os.set_blocking(process.stdout.fileno(), False)
            selector.register(process.stdout, selectors.EVENT_READ)
            pending, open_ = b"", True
            while open_ and process.poll() is None:
                for _ in selector.select(timeout=1.0):
                    pending, open_ = _forward(process.stdout.fileno(), pending, sink, on_line)
                tick()
            while open_ and selector.select(timeout=0.2):
                pending, open_ = _forward(process.stdout.fileno(), pending, sink, on_line)
            if pending:
                _emit(pending, sink, on_line)
        return process.wait()
    finally:
        # BaseException too: Prefect's cancellation arrives as one (TerminationSignal).
        _end_group(process)


def _forward(fd: int, pending: bytes, sink: Any, on_line: Callable[[str], None]) -> tuple[bytes, bool]:
    data = os.read(fd, 1 << 16)
    *lines, rest = _LINE_END.split(pending + data)
    for line in lines:
        _emit(line, sink, on_line)
    return rest, bool(data)


def _emit(line: bytes, sink: Any, on_line: Callable[[str], None]) -> None:
    if line.strip():
        sink.write(line + b"\n")
        sink.flush()
        on_line(line.decode("utf-8", "replace").rstrip())


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the worker and all it started; SIGTERM first, SIGKILL after the grace."""
    if process.poll() is None:
        _signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    _signal_group(process.pid, signal.SIGKILL)  # also what outlived a worker that ended by itself
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
