"""What TRL does not tell the vLLM that it starts in the trainer's process.

Above all what `tasks.models.engine_arguments` says: in what precision to compute, and of a hub model which revision.
Left to itself vLLM takes the newest revision, and the precision of the checkpoint, which may be another than that of
the trainer, or one that the GPU has not. `tests/tasks/test_colocated.py` fails when TRL passes these itself.
"""

import functools
from typing import Any


def tell_vllm(**arguments: Any) -> None:
    """Have TRL start its vLLM with these arguments of `vllm.LLM`, too. Call before the trainer is made."""
    import trl.generation.vllm_generation

    generation: Any = trl.generation.vllm_generation
    generation.LLM = functools.partial(generation.LLM, **arguments)
