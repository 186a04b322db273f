"""Whether vLLM can serve a LoRA adapter beside the base weights, or only the two merged."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from peft import LoraConfig

# The fields of a LoraConfig that vLLM heeds, or that show in the names of the saved weights; others it may pass over.
_IN_VLLM = {"r", "lora_alpha", "use_rslora"}
_IN_NAMES = {"target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"}
_OF_TRAINING = {"lora_dropout", "init_lora_weights", "inference_mode"}
_OF_THE_FILE = {"task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision"}
_KNOWN = _IN_VLLM | _IN_NAMES | _OF_TRAINING | _OF_THE_FILE
# The ways to begin that leave the base weights as they are; with the others the adapter is one to changed weights.
_BEGINNINGS = (True, False, "gaussian", "eva", "orthogonal")
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)


def takes_adapters(architecture: Any) -> bool:
    """Whether vLLM's code for a model can serve adapters at all; `architecture` is the model's own configuration."""
    from vllm import ModelRegistry
    from vllm.model_executor.models.interfaces import supports_lora

    name = next((one for one in architecture.architectures or () if one in ModelRegistry.models), None)
    # One that it has no code for is run by transformers' code, with adapters.
    if name is None or supports_lora(ModelRegistry.models[name].load_model_cls()):
        return True
    print(f"merging the adapter, since vLLM serves none with a {name}", flush=True)
    return False


def served_rank(adapter: Path) -> int | None:
    """The smallest rank of vLLM's that holds the adapter; None where vLLM would not serve it as peft means it, so that
    it must be merged."""
    lora, plain = LoraConfig.from_pretrained(str(adapter)), LoraConfig()
    odd = [
        name
        for name in (field.name for field in fields(LoraConfig))
        if name not in _KNOWN and getattr(lora, name) != getattr(plain, name)
    ]
    if lora.init_lora_weights not in _BEGINNINGS:
        odd.append("init_lora_weights")
    if {"embed_tokens", "lm_head"} & set(lora.target_modules or ()):
        odd.append("target_modules")
    if lora.r > _RANKS[-1]:
        odd.append("r")
    if odd:
        print(f"merging the adapter, since vLLM serves none with this {', '.join(odd)}", flush=True)
        return None
    return next(rank for rank in _RANKS if lora.r <= rank)
