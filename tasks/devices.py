"""Which GPUs a stage's processes get, and what vLLM is told there."""

import os

# As long as the environment does not say otherwise.
VLLM_ON_GPUS = {
    # FlashInfer compiles its sampler when it is first used, by an nvcc that no package of the lock brings into reach.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    # Its engine is a process of its own, and a worker that has looked for GPUs cannot hand them on to a fork.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # On a B200 its LoRA kernels with it (programmatic dependent launch) give wrong values or fail; others have none.
    "VLLM_LORA_DISABLE_PDL": "1",
}


def visible_devices(count: int, after: int = 0) -> list[str]:
    """`count` of the GPUs that we may use, behind the first `after`, by the names that CUDA_VISIBLE_DEVICES takes."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (given.split(",") if given else [str(number) for number in range(after + count)])[after : after + count]


def only(devices: list[str]) -> dict[str, str]:
    """The environment of a process that is to see these GPUs and no other."""
    told = {name: os.environ.get(name, value) for name, value in VLLM_ON_GPUS.items()}
    return told | {"CUDA_VISIBLE_DEVICES": ",".join(devices)}
