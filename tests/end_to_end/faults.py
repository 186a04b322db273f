"""Kills a run of the flow at chosen moments, goes on with it, and looks at what is left in the end."""

import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from sandbox import Sandbox

from tasks.metrics import series

STAGES = (
    "preflight",
    "ingest",
    "validate",
    "check_rewards",
    "record_gates",
    "baseline",
    "train",
    "evaluate",
    "register",
)
IN_FLOW = ("ingest", "validate", "record_gates")  # the others are done by programs of their own
DID_NOT_COME = "did not come"
# Seconds that a stage takes at the least, with the tiny model; a moment lies somewhere within.
SECONDS = dict(zip(STAGES, (3.0, 0.1, 1.5, 1.2, 0.2, 4.0, 6.0, 4.0, 2.5), strict=True))


@dataclass(frozen=True)
class Moment:
    """When to kill: `after` seconds of a stage, or as soon as `sign` is seen in the run folder; and whom."""

    stage: str
    target: str
    """`flow` for the flow's process, `job` for the program that does the stage's work."""
    number: signal.Signals = signal.SIGKILL
    after: float = 0.0
    sign: str = ""

    def __str__(self) -> str:
        when = self.sign or f"after {self.after:.1f} s"
        return f"{self.target} in {self.stage}, {when}"


SIGNS: dict[str, Callable[[Path], bool]] = {
    "a checkpoint half written": lambda run: any(
        not (path / "trainer_state.json").exists() for path in (run / "train").glob("checkpoint-*")
    ),
    "the model built, not uploaded": lambda run: (run / "register" / "model").exists(),
    "the first steps done": lambda run: steps_done(run) >= 2,
    "more than half of the steps done": lambda run: steps_done(run) >= 7,
}


def steps_done(run: Path) -> int:
    """The last step whose reward was logged."""
    return max((step for step, _ in series(run / "train" / "metrics.jsonl", "train/reward")), default=0)


def draw_moments(count: int, seed: int) -> list[Moment]:
    """`count` moments, spread over all stages, in the order in which a run comes to them."""
    draw = random.Random(seed)
    signs = [
        Moment("train", "job", sign="the first steps done"),
        Moment("train", "flow", sign="a checkpoint half written"),
        Moment("train", "job", sign="more than half of the steps done"),
        Moment("register", "flow", sign="the model built, not uploaded"),
    ]
    stages = [*STAGES, "train", "register", "evaluate", "baseline", "register", "train", "check_rewards"]
    others = [
        Moment(stage, "job" if number % 2 and stage not in IN_FLOW else "flow", after=draw.uniform(0.0, SECONDS[stage]))
        for number, stage in enumerate(stages)
    ]
    moments = [*signs, *others]
    draw.shuffle(moments)
    return sorted(moments[:count], key=lambda moment: (STAGES.index(moment.stage), moment.sign, moment.after))


@dataclass
class Faults:
    """One run, from its start to its end, with what was done to it."""

    place: Sandbox
    config: Path
    arguments: tuple[str, ...] = ()
    happened: list[tuple[Moment, str]] = field(default_factory=list)
    redone: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    starts: int = 0

    def survive(self, moments: list[Moment], most_starts: int = 60) -> int:
        """Kill at each moment that comes, and go on until the flow succeeds; gives its last exit code."""
        process = self._start()
        waiting = list(moments)
        stage, since = "", time.monotonic()
        finished: dict[str, int] = {}
        while True:
            if process.poll() is not None:
                self._look_for_redone(finished)
                if process.returncode == 0 or self.starts >= most_starts:
                    self.happened += [(moment, DID_NOT_COME) for moment in waiting]
                    return process.returncode
                process = self._start()
            if self._stage() != stage:
                stage, since = self._stage(), time.monotonic()
            due = next((one for one in waiting if self._is_due(one, stage, time.monotonic() - since)), None)
            if due is None:
                time.sleep(0.02)
                continue
            finished = self._results()
            victim = self._victim(process, due)
            if victim is None:
                time.sleep(0.02)
                continue
            waiting.remove(due)
            family = process_family(process.pid)
            victim.send_signal(due.number)
            self.happened.append((due, "killed"))
            if victim.pid == process.pid:
                process.wait(60)
                self.orphans += left_of(family, within=15.0)
                stage = ""

    @property
    def run(self) -> Path | None:
        runs = [path.parent for path in self.place.runs.glob("*/run.json")]
        return runs[0] if runs else None

    def _start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        run = self.run
        first = ["-m", "flows.grpo", str(self.config), *self.arguments]
        command = ["-m", "flows.resume", run.name] if run else first
        return self.place.start(*command, log=self.place.folder / f"attempt-{self.starts}.log")

    def _results(self) -> dict[str, int]:
        run = self.run
        return {path.stem: path.stat().st_mtime_ns for path in (run / "results").glob("*.json")} if run else {}

    def _stage(self) -> str:
        """The stage that is being done, or will be next."""
        done = self._results()
        return next((stage for stage in STAGES if stage not in done), "") if self.run else ""

    def _is_due(self, moment: Moment, stage: str, elapsed: float) -> bool:
        if moment.stage != stage:
            return False
        return SIGNS[moment.sign](self.run) if moment.sign and self.run else elapsed >= moment.after and not moment.sign

    def _victim(self, process: subprocess.Popen[bytes], moment: Moment) -> psutil.Process | None:
        if moment.target == "flow":
            return psutil.Process(process.pid)
        # The innermost of the worker programs: behind accelerate's launcher, the trainer itself. The preflight's waits
        # for another job while other stages have workers of their own.
        commands = {one: " ".join(command_of(one)) for one in process_family(process.pid)[1:]}
        if moment.stage != "preflight":
            commands = {one: command for one, command in commands.items() if "preflight_worker" not in command}
        jobs = [one for one, command in commands.items() if ".job" in command]
        return jobs[-1] if jobs else None

    def _look_for_redone(self, finished: dict[str, int]) -> None:
        now = self._results()
        self.redone += [stage for stage, written in finished.items() if now.get(stage) != written]


def process_family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def left_of(family: list[psutil.Process], within: float) -> list[str]:
    """The commands of those that still run after so many seconds."""
    _, alive = psutil.wait_procs(family, timeout=within)
    return [" ".join(command_of(one))[:100] for one in alive if one.status() != psutil.STATUS_ZOMBIE]
