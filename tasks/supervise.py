"""The one place where child processes are started, watched and ended.

A worker runs in a session of its own, so that it and everything it starts can be ended as a group. Its output is
read line by line (a progress bar's carriage returns count as line ends), handed to a callback and kept in a file.
Whatever ends the supervisor, an exception, a signal or the time limit, ends the group. (The launcher of several GPUs
gives each trainer a session of its own; it hands SIGTERM on, and what is left ends when the supervisor's pipe closes.)
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from tasks import memory
from tasks.errors import UserError, WorkerFailed
from tasks.run import PROJECT, read_json, write_json

FAREWELL = 5.0  # seconds for what is still in the pipe of a worker that has ended
GRACE = 20.0  # seconds that a worker has after SIGTERM; Prefect kills a cancelled run after 30
# torchrun's, whose own defaults are PET_…, accelerate's, mpirun's, and those of recipes for Slurm.
_OF_A_LAUNCHER = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)"
    r"|(TORCHELASTIC|PET|OMPI_COMM_WORLD|PMI|MV2_COMM_WORLD)_\w+"
)
_LINE_END = re.compile(rb"[\r\n]+")


@dataclass(frozen=True)
class Part:
    """One of several workers of a stage: its job, the folder for that and the result, its log and its environment."""

    job: dict[str, Any]
    folder: Path
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)


def run_job(
    module: str, job: dict[str, Any], folder: Path, *, log: Path, on_line: Callable[[str], None], **how: Any
) -> dict[str, Any]:
    """`run_jobs` for one."""
    [result] = run_jobs(module, [Part(job, folder, log)], on_line=on_line, **how)
    return result


def run_jobs(
    module: str,
    parts: Sequence[Part],
    *,
    on_line: Callable[[str], None],
    launcher: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    time_limit: float | None = None,
    limit_setting: str = "the time limit",
    limit_advice: str = "raise it, or give it less to do",
    on_tick: Callable[[], object] | None = None,
    grace: float = GRACE,
) -> list[dict[str, Any]]:
    """Run `python -m module` (or `launcher … --module module`) on each part's job beside each other; give the results.

    Only the first part's lines go to `on_line`, all to the parts' logs; `on_tick` is called about once a second. As
    soon as one part fails all are ended, and so they are after `time_limit` seconds; `limit_setting` is where the user
    sets them. To end a worker is to send SIGTERM to it and all that it started, and SIGKILL to what is left after
    `grace` seconds. Raises UserError with the worker's own sentence, OutOfMemory where that was the reason, or
    WorkerFailed with the exit code and the last lines of the log.
    """
    started = time.monotonic()
    workers: list[Worker] = []
    codes: dict[Worker, int] = {}
    # All are ended, also where one cannot be in order, and on a BaseException: Prefect's cancellation arrives as one.
    with contextlib.ExitStack() as ending:
        for part in parts:
            heard = (lambda _: None) if workers else on_line
            worker = Worker(
                module,
                part.folder,
                log=part.log,
                on_line=heard,
                launcher=launcher,
                environment={**(environment or {}), **part.environment},
            )
            ending.callback(worker.end, grace)
            worker.give(part.job)
            workers.append(worker)
        for worker in workers:  # the last one in comes first: all are asked before the first is waited for
            ending.callback(worker.ask_to_end)
        while len(codes) < len(workers) and not any(codes.values()):
            for worker in [one for one in workers if one not in codes]:
                if (code := worker.wait(1.0 / len(workers))) is not None:
                    codes[worker] = code
            if on_tick:
                on_tick()
            if time_limit is not None and time.monotonic() - started > time_limit:
                raise workers[0].late(f"{limit_setting} of {time_limit:g} s", limit_advice)
    if on_tick:
        on_tick()  # once more, for what the workers left in their last second
    failed = [worker for worker, code in codes.items() if code]
    return [worker.result(codes[worker]) for worker in failed or workers]


class Worker:
    """`python -m module` (or `launcher … --module module`), until it has done its jobs or is ended.

    Its output is handed on by `answer`, `wait` or `check`; while it works one is to be called every second or so.
    """

    def __init__(
        self,
        module: str,
        folder: Path,
        *,
        log: Path,
        on_line: Callable[[str], None],
        jobs: Sequence[str] = (),
        launcher: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`jobs` are names for what the module can do, in its order; by default it can do one thing."""
        folder.mkdir(parents=True, exist_ok=True)
        self._module, self._log = module, log
        self._jobs = {name: folder / f"{name}.job" for name in jobs or (module.rpartition(".")[2],)}
        self._job = next(iter(self._jobs.values()))
        for job in self._jobs.values():
            for kind in (".job", ".result", ".error", ".memory"):
                job.with_suffix(kind).unlink(missing_ok=True)
        self.tail: deque[str] = deque(maxlen=30)
        """The last lines of its output."""
        self._signs = memory.Signs()
        self._asked: float | None = None

        def line_seen(line: str) -> None:
            self.tail.append(line)
            self._signs.line(line)
            on_line(line)

        kept = log.open("ab")
        self._process = subprocess.Popen(
            [*(launcher or (sys.executable, "-m")), module, *map(str, self._jobs.values())],
            cwd=PROJECT,
            stdin=subprocess.PIPE,  # never written to; its closing tells the worker that we are gone
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=_own_environment() | {"PYTHONUNBUFFERED": "1", "GRPO_SUPERVISED": "1"} | dict(environment or {}),
        )
        self._output = _Output(self._process, kept, line_seen)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def give(self, job: dict[str, Any], name: str | None = None) -> None:
        """Let it begin with `job`, by the name `name` of its jobs."""
        if name is not None:
            self._job = self._jobs[name]
        write_json(self._job, job)

    def answer(self, time_limit: float | None = None) -> dict[str, Any]:
        """Wait for the result of the job that was given last; raises as `result` does, and UserError after
        `time_limit` seconds."""
        started = time.monotonic()
        while (code := self.wait(0.1)) is None and not self._left(".result"):
            if time_limit is not None and time.monotonic() - started > time_limit:
                raise self.late(f"its time limit of {time_limit:g} s")
        self._hear_out()
        return self.result(code or 0)

    def late(self, limit: str, advice: str = "what it waited for may be there on another attempt") -> UserError:
        """What to tell the user when it is ended for the time that it takes."""
        last = f" It was last heard of with: {self.tail[-1]}" if self.tail else ""
        return UserError(f"{self._module} ran past {limit} and was ended; {advice}.{last}")

    def wait(self, timeout: float) -> int | None:
        """Hand on its output for `timeout` seconds, or until there is some; its exit code once it has ended."""
        if not self._output.open:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
        else:
            self._output.read(timeout)
        return self._process.poll()

    def hear(self, seconds: float) -> None:
        """Hand on its output for so long, or until it ends."""
        latest = time.monotonic() + seconds
        while (left := latest - time.monotonic()) > 0 and self.wait(left) is None:
            pass

    def check(self) -> None:
        """Raise as `result` does if it has ended, as one that serves others must not."""
        self._hear_out()
        if (code := self._process.poll()) is not None:
            raise self.failure(_how(code), code)

    def result(self, code: int) -> dict[str, Any]:
        """What it left when it ended with the exit code `code`, or the reason why it left nothing, raised."""
        if code == 0 and self._left(".result"):
            return read_json(self._job.with_suffix(".result"))
        if self._left(".error"):
            raise UserError(read_json(self._job.with_suffix(".error"))["error"])
        raise self.failure(_how(code), code)

    def ask_to_end(self) -> None:
        """Send SIGTERM to it and all that it started, unless it has ended or was asked before."""
        if self._process.poll() is None and self._asked is None:
            self._asked = time.monotonic()
            _signal_group(self._process.pid, signal.SIGTERM)

    def end(self, grace: float = GRACE) -> None:
        """End it and all that it started; SIGTERM first, SIGKILL when `grace` seconds have passed since that."""
        self.ask_to_end()
        _end_group(self._process, self._asked + grace if self._asked is not None else 0.0, self._output)

    def _hear_out(self) -> None:
        while self._output.read(timeout=0):
            pass

    def failure(self, what: str, code: int = 1) -> UserError | WorkerFailed:
        """What to raise where it failed, by `what`: OutOfMemory, or the user's mistake, where its output says so."""
        raised = read_json(self._job.with_suffix(".memory"))["error"] if self._left(".memory") else None
        if known := self._signs.diagnosis(self._module, code, raised):
            return known
        last = "It ends:\n" + "\n".join(self.tail) if self.tail else "Nothing is in it."
        return WorkerFailed(f"{self._module} {what}; its log is {self._log}. {last}", code)

    def _left(self, kind: str) -> bool:
        return self._job.with_suffix(kind).exists()


def _own_environment() -> dict[str, str]:
    """Ours, without the place that a launcher around us gave us: a worker would wait for others of that launcher's."""
    return {name: value for name, value in os.environ.items() if not _OF_A_LAUNCHER.fullmatch(name)}


class _Output:
    """What a worker writes, line by line."""

    def __init__(self, process: subprocess.Popen[bytes], log: BinaryIO, on_line: Callable[[str], None]) -> None:
        assert process.stdout is not None
        self._pipe, self._log, self._on_line = process.stdout, log, on_line
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._pipe, selectors.EVENT_READ)
        self._pending = b""
        self._redrawing = False
        self.open = True
        os.set_blocking(self._pipe.fileno(), False)

    def read(self, timeout: float) -> bool:
        """Wait for output and hand it on; False if there was none.

        A progress bar ends what it draws with the next drawing, so it is handed on as soon as nothing follows.
        """
        if not self.open:
            return False
        if not self._selector.select(timeout):
            if self._redrawing and self._pending:
                self._emit(self._pending)
                self._pending = b""
            return False
        data = os.read(self._pipe.fileno(), 1 << 16)
        self.open = bool(data)
        if ends := _LINE_END.findall(data):
            self._redrawing = ends[-1].endswith(b"\r")
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


def _how(code: int) -> str:
    return f"ended with {f'signal {signal.Signals(-code).name}' if code < 0 else f'exit code {code}'}"


def _end_group(process: subprocess.Popen[bytes], deadline: float, output: _Output) -> None:
    """Wait until the worker and all it started have ended, with SIGKILL at the deadline (by `time.monotonic`)."""
    try:
        # A launcher ends at once; the trainer that it started may still be writing its checkpoint.
        while time.monotonic() < deadline and (process.poll() is None or _has_members(process.pid)):
            if not output.read(timeout=0.1) and not output.open:
                time.sleep(0.1)
    finally:  # its output may be more than the disk can take
        _signal_group(process.pid, signal.SIGKILL)  # also what outlived a worker that ended by itself
        process.wait()
    try:
        latest = time.monotonic() + FAREWELL  # what has left the group may hold the pipe, and write for ever
        while time.monotonic() < latest and output.read(timeout=0.2):
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
