"""When memory runs out: how that is told from other failures, and what a stage tries next.

A worker's memory runs out in three ways: the GPU's allocator or the CPU's has none left and raises, a vLLM engine in
a process of its own says so in the log, or the kernel kills the process, which then says nothing at all. Told apart
here, they all end as `tasks.errors.OutOfMemory`.

What is tried next keeps the result: training halves the batch of a device and doubles the accumulation, so that groups,
generation batch and effective batch stay the same (and the gradient, for every loss that is not an average within the
batch of a device, as bnpo is); evaluation answers fewer questions at a time. Then vLLM's share is
lowered. What was tried is kept in the run folder, so that a later attempt begins with what did.
"""

import errno
import functools
import operator
import re
import signal
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tasks.config import Config
from tasks.engine import choose_engine
from tasks.errors import OutOfMemory, UserError
from tasks.run import read_json, write_json

VLLM_SHARE = 0.3  # of the GPU's memory, that TRL gives vLLM where nothing is said
LEAST_SHARE = 0.1  # below which lowering it is not tried
# Exceptions of a log's end in which the cause is looked for: an engine of several processes reports it four times over.
LAST_WORDS = 6
LAST_LINES = 200  # of a log, that they must be among: a reward's own failure of hours ago is no cause
VMSTAT = Path("/proc/vmstat")

# vLLM at its start, on a GPU and on a CPU
_NO_ROOM = re.compile(r"Free memory on device \S+ .*less than desired|Available memory on node \d+ .* on kv cache")
# What allocators say: torch's on a GPU (two ways), vLLM's of its sleep mode, those of CUDA's libraries and NCCL, the
# CPU's, C++'s, Python's.
_NOTHING_LEFT = re.compile(
    r"OutOfMemoryError|(CUDA|HIP|XPU) out of memory|CUDA [Ee]rror: out of memory"
    r"|CU(BLAS|DNN|SOLVER)_STATUS_ALLOC_FAILED"
    r"|Cuda failure 2\b|DefaultCPUAllocator: can't allocate memory|std::bad_alloc|Cannot allocate memory"
    r"|\b_?(Array)?MemoryError\b"
)
# The last is NCCL's, on a line of its own.
_EXCEPTION = re.compile(
    r"^(?:\S+ )*[\w.]*(?:Error|Exception)(?::|$)|^terminate called after throwing|^(?:\S+ )*Cuda failure \d+"
)
# vLLM, where the weights leave too little of its share for a single completion. Less would not help.
_NO_CACHE = re.compile(r"No available memory for the cache blocks|To serve at least one request")
_FREE = re.compile(r"Free memory on device \S+ \(([\d.]+)/([\d.]+) GiB\)")
_KILLED = re.compile(r"SIGKILL|exitcode: -9|exit code -9|Signal 9|status -9")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception, or one that it came from, is of an allocator that had nothing left."""
    from accelerate.utils.memory import should_reduce_batch_size

    while True:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            return True
        # Not by a class: a CPU's allocator raises a plain RuntimeError, and some GPU libraries, too.
        if isinstance(error, RuntimeError) and (should_reduce_batch_size(error) or _NOTHING_LEFT.search(str(error))):
            return True
        if _NO_ROOM.search(str(error)) or type(error).__name__ == "OutOfMemoryError":
            return True
        before = error.__cause__ or error.__context__
        if before is None:
            return False
        error = before


def kernel_kills() -> int:
    """How many processes the kernel has killed for want of memory, on this machine, since it began."""
    if not VMSTAT.exists():
        return 0
    return sum(int(line.split()[1]) for line in VMSTAT.read_text().splitlines() if line.startswith("oom_kill "))


class Signs:
    """Looks for signs of lacking memory while a worker runs that cannot say so itself: an engine in a process of its
    own, or one that the kernel has killed."""

    def __init__(self) -> None:
        self._kills = kernel_kills()
        self._lines = 0
        self._raised_at: deque[tuple[int, str]] = deque(maxlen=LAST_WORDS)
        self._killed = False

    def line(self, line: str) -> None:
        """See a line of the worker's output."""
        self._lines += 1
        if _KILLED.search(line):
            self._killed = True
        if _EXCEPTION.match(line.strip()):
            self._raised_at.append((self._lines, line.strip()[:300]))

    @property
    def _raised(self) -> list[str]:
        """The exceptions at the end of the log."""
        return [line for at, line in self._raised_at if at > self._lines - LAST_LINES]

    def diagnosis(self, module: str, code: int, raised: str | None) -> OutOfMemory | UserError | None:
        """What a failure with the exit code `code` means, if it was for want of memory; a UserError where less to do at
        a time would not help. `raised` is the worker's own word, where it was still able to say one."""
        if found := next((line for line in self._raised if _NO_CACHE.search(line)), None):
            return UserError(
                f"vLLM's share of the memory is too small for a single completion ({found}); raise "
                "evaluation.vllm_memory (in training vllm_gpu_memory_utilization, or vllm_server.memory), lower "
                "prompt.max_tokens and training.max_completion_length, or free the GPU of other programs"
            )
        reason = raised or self._last_words()
        if reason:
            return OutOfMemory(
                f"{module}: {reason}", code, any(_NO_ROOM.search(one) for one in (reason, *self._raised))
            )
        # The count is the machine's: it says something only of a process that was killed.
        if kernel_kills() > self._kills and (self._killed or code in (-signal.SIGKILL, 128 + signal.SIGKILL)):
            return OutOfMemory(f"{module}: the kernel killed a process, since the machine's memory was used up", code)
        return None

    def _last_words(self) -> str | None:
        """The exception that ended the worker, or of an engine the one before, if it was for want of memory."""
        for line in self._raised:
            if _NO_ROOM.search(line) or _NOTHING_LEFT.search(line):
                return line
        return None


@dataclass(frozen=True)
class Change:
    """One thing that was tried: settings by dotted name, with the value before and after, and why."""

    settings: dict[str, list[Any]]
    reason: str

    def __str__(self) -> str:
        return ", ".join(f"{name} {before:g} → {after:g}" for name, (before, after) in self.settings.items())


Smaller = Callable[[Config], dict[str, Any] | None]
"""Gives the next settings to try, by dotted name; None where there is nothing smaller."""


class Relief:
    """What one stage of a run does about lacking memory; `path` keeps what it has tried.

    `ways` are tried in order, each as often as it has something smaller; the last is about vLLM's share. Where that is
    of memory of its own, as a server's, it is left alone unless vLLM itself has too little.
    """

    def __init__(self, path: Path, ways: Sequence[Smaller], vllm_apart: bool = False) -> None:
        self._path, self._ways, self._vllm_apart = path, ways, vllm_apart
        self.changes = [Change(**change) for change in read_json(path)] if path.exists() else []

    def run(
        self, config: Config, work: Callable[[Config], dict[str, Any]], on_line: Callable[[str], None]
    ) -> dict[str, Any]:
        """Do `work` with as little memory as it takes, and enter what was changed for it as `memory_changes`.

        Raises UserError where nothing smaller is left to try.
        """
        while True:
            settings = self._applied(config)
            try:
                return work(settings) | {"memory_changes": [str(change) for change in self.changes]}
            except OutOfMemory as error:
                self._next(settings, error, on_line)

    def _applied(self, config: Config) -> Config:
        values = config.dump()
        for change in self.changes:
            for dotted, (_, after) in change.settings.items():
                *sections, name = dotted.split(".")
                functools.reduce(operator.getitem, sections, values)[name] = after
        return Config.model_validate(values)

    def _next(self, config: Config, error: OutOfMemory, on_line: Callable[[str], None]) -> None:
        ways = self._ways[:-1] if self._vllm_apart else self._ways
        if error.for_vllm:
            ways = self._ways[-1:]
        found = next((settings for settings in (way(config) for way in ways) if settings), None)
        if found and error.for_vllm and not config.training.on_cpu and (share := free_share(error.reason)):
            found = dict.fromkeys(found, share) if share >= LEAST_SHARE else None
        if found is None:
            tried = "; ".join(str(change) for change in self.changes) or "there is nothing smaller"
            raise UserError(
                f"memory ran out ({error.reason}). Tried: {tried}. Take a smaller model or a shorter "
                "training.max_completion_length, set training.gradient_checkpointing=true, take a larger machine, or, "
                "if it ran out while transformers generated, generate fewer completions at a time "
                "(training.steps_per_generation, evaluation.batch_size)"
            ) from None
        change = Change({name: [_value(config, name), value] for name, value in found.items()}, error.reason)
        self.changes.append(change)
        write_json(self._path, [asdict(one) for one in self.changes])
        on_line(f"WARNING memory ran out ({error.reason}); trying again with {change}")


def free_share(reason: str) -> float | None:
    """The largest share of a GPU that vLLM would find free, by its own words, with a little to spare."""
    said = _FREE.search(reason)
    return round(float(said[1]) / float(said[2]) - 0.03, 3) if said else None


def smaller_step(config: Config) -> dict[str, Any] | None:
    """Half the batch of a device with twice the accumulation (a third where it cannot be halved, and so on)."""
    training = config.training
    size = training.device_batch
    if size == 1:
        return None
    factor = next(divisor for divisor in range(2, size + 1) if size % divisor == 0)
    settings = {
        "training.per_device_train_batch_size": size // factor,
        "training.gradient_accumulation_steps": training.accumulation * factor,
    }
    # Where it is not given, TRL takes the accumulation; so the generation batch stays what it was in either case.
    if training.trl("steps_per_generation"):
        settings["training.steps_per_generation"] = training.grpo["steps_per_generation"] * factor
    return settings


def smaller_training_share(config: Config) -> dict[str, Any] | None:
    """Two thirds of vLLM's share of the GPU in training, or half its KV cache on a CPU."""
    if config.training.vllm_server:
        return _smaller_share(config, "training.vllm_server.memory")
    if config.training.vllm == "colocate":
        return _smaller_share(config, "training.vllm_gpu_memory_utilization")
    return None


def smaller_evaluation(config: Config) -> dict[str, Any] | None:
    """Half the prompts at a time, or less memory for vLLM, which decides by itself how many it takes."""
    if choose_engine(config)[0] == "transformers":
        return _half(config, "evaluation.batch_size")
    return _smaller_share(config, "evaluation.vllm_memory")


def _smaller_share(config: Config, share: str) -> dict[str, Any] | None:
    if config.training.on_cpu:
        return _half(config, "evaluation.vllm_kv_cache_gib")
    value = round(_value(config, share) * 2 / 3, 3)
    return {share: value} if value >= LEAST_SHARE else None


def _half(config: Config, name: str) -> dict[str, Any] | None:
    value = _value(config, name)
    return {name: value // 2} if value > 1 else None


def _value(config: Config, dotted: str) -> Any:
    """The value of one of the settings above."""
    in_force = {
        "training.per_device_train_batch_size": config.training.device_batch,
        "training.gradient_accumulation_steps": config.training.accumulation,
        "training.vllm_gpu_memory_utilization": VLLM_SHARE,
    }
    *sections, name = dotted.split(".")
    section: dict[str, Any] = functools.reduce(operator.getitem, sections, config.dump())
    return section.get(name, in_force.get(dotted))
