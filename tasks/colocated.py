"""What TRL does not tell the vLLM that it starts in the trainer's process: in what precision to compute, and of a hub
model which revision. Left to itself vLLM takes the checkpoint's precision, which may be another than the trainer
computes in, or one that the GPU has not, and the newest revision.

`tests/tasks/test_colocated.py` fails when TRL passes these itself.
"""

import functools
import os
from typing import Any

from tasks.config import Config


def engine_arguments(config: Config, path: str) -> dict[str, Any]:
    """Keyword arguments of `vllm.LLM` on top of TRL's, for the model at `path` (a folder, or a name on the hub)."""
    from tasks.models import pick_dtype

    revision = None if os.path.isdir(path) else config.model.revision
    dtype = str(pick_dtype(config.model, config.training.on_cpu)).removeprefix("torch.")
    return {"dtype": dtype, "revision": revision, "tokenizer_revision": revision}


def tell_vllm(**arguments: Any) -> None:
    """Have TRL start its vLLM with these arguments, too. Call before the trainer is made."""
    import trl.generation.vllm_generation

    generation: Any = trl.generation.vllm_generation
    generation.LLM = functools.partial(generation.LLM, **arguments)
