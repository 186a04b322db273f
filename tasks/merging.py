"""A trained adapter with its base model: side by side as they were trained, or merged as the registry keeps them."""

import gc
from pathlib import Path
from typing import Any, Literal

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors import safe_open

from tasks.config import ModelSettings
from tasks.models import copy_processors, load
from tasks.whole import make_whole


def with_adapter(base: Any, adapter: Path) -> PeftModel:
    """`base` with the adapter on top, by peft.

    Raises RuntimeError where weights of the adapter find no place in `base`: peft goes on without them.
    """
    # Onto the device of the base; by itself peft would take a GPU, of which vLLM counts what is free.
    model = PeftModel.from_pretrained(base, str(adapter), torch_device=str(base.device))
    with safe_open(adapter / "adapter_model.safetensors", "pt") as file:
        saved = set(file.keys())
    missing = get_peft_model_state_dict(model, save_embedding_layers=False).keys() - saved
    if missing:
        raise RuntimeError(
            f"the adapter in {adapter} was trained in another model than {type(base).__name__}: it has no "
            f"{min(missing)}, and {len(missing) - 1} others are missing too"
        )
    return model


def write_merged(
    path: str,
    settings: ModelSettings,
    adapter: Path,
    tokenizer: Any,
    folder: Path,
    dtype: torch.dtype | Literal["auto"] = "auto",
) -> None:
    """The base model at `path`, in the dtype it was saved in, merged with the adapter, as a model in `folder`.

    One that is there already, and whole, is left as it is. To merge rounds: into weights in bfloat16 only a part of a
    small update fits, so what is registered is to be evaluated from the same folder.
    """

    def merge(into: Path) -> None:
        with_adapter(load(path, settings, dtype), adapter).merge_and_unload().save_pretrained(into)
        tokenizer.save_pretrained(into)
        copy_processors(path, settings, into)

    make_whole(folder, merge)
    gc.collect()  # peft's models refer to themselves, and an engine is loaded next
