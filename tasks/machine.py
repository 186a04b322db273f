"""What there is to compute on: memory, and how fast products and memory are, measured in a moment."""

import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch

from tasks.estimate import Machine
from tasks.memory import is_out_of_memory

# What a container may use, by version 2 and 1 of control groups; "max", or more than all RAM, where it is free.
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def measure(dtype: torch.dtype, use_cpu: bool) -> Machine:
    """Look at the GPU that training will use, or the CPU. Takes about a second.

    Another run may have the GPU, since only a stage that needs it for long waits for its turn: then the speed is that
    of the moment, or, where no memory is left to measure it with, unknown.
    """
    device = torch.device("cpu" if use_cpu else "cuda")
    memory_gib = (ram_bytes() if use_cpu else torch.cuda.get_device_properties(device).total_memory) / 2**30
    try:
        speeds = _speeds(dtype, device)
        if not use_cpu:
            torch.cuda.empty_cache()  # this process may wait for a while until it is asked again
        return Machine(memory_gib, *speeds)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return Machine(memory_gib, None, None)


def _speeds(dtype: torch.dtype, device: torch.device) -> tuple[float, float]:
    """Operations of a product per second, and bytes read from memory per second."""
    size = 1024 if device.type == "cpu" else 4096
    left, right = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    seconds = _fastest(lambda: left @ right, device)
    # Larger than any cache.
    matrix = torch.ones(2**14, 2**12, dtype=dtype, device=device)
    vector = torch.ones(2**12, dtype=dtype, device=device)
    read = matrix.numel() * matrix.element_size()
    return 2 * size**3 / seconds, read / _fastest(lambda: matrix @ vector, device)


def ram_bytes() -> int:
    """The machine's RAM, or what its container may use of it."""
    limits = [path.read_text().strip() for path in _LIMITS if path.is_file()]
    return min([psutil.virtual_memory().total, *(int(limit) for limit in limits if limit.isdigit())])


def _fastest(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of a few runs; the first ones warm up."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return min(times)
