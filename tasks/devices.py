"""Which GPUs a stage's processes get."""

import os


def visible_devices(count: int, after: int = 0) -> list[str]:
    """`count` of the GPUs that we may use, behind the first `after`, by the names that CUDA_VISIBLE_DEVICES takes."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (given.split(",") if given else [str(number) for number in range(after + count)])[after : after + count]


def only(devices: list[str]) -> dict[str, str]:
    """The environment of a process that is to see these GPUs and no other."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices)}
