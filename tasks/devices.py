"""Which GPUs a stage's processes get."""

import os


def visible_devices(count: int) -> list[str]:
    """The first `count` GPUs that we may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (given.split(",") if given else [str(number) for number in range(count)])[:count]
