"""The configuration as TRL and peft take it. Needs torch, so only worker programs import it."""

import warnings
from typing import Any

import torch
from peft import LoraConfig
from trl import GRPOConfig

from tasks.config import Config
from tasks.errors import UserError
from tasks.models import pick_dtype
from tasks.prompts import template_arguments


def weights_dtype(config: Config) -> torch.dtype:
    """Of the model's weights as the trainer holds them; what it computes in is `pick_dtype`'s, by autocast.

    A whole model is trained in 32 bits unless `model.dtype` says otherwise, as TRL does: in 16 bits an update of the
    size of a learning rate is rounded away from most weights. An adapter is in 32 bits whatever the model is in (peft).
    """
    if config.training.lora is None and config.model.dtype == "auto":
        return torch.float32
    return pick_dtype(config.model, config.training.on_cpu)


def grpo_config(config: Config, output_dir: str, **more: Any) -> GRPOConfig:
    """The real `GRPOConfig` of a configuration, with `more` on top. Raises UserError where TRL refuses a value."""
    dtype = pick_dtype(config.model, config.training.on_cpu)
    arguments: dict[str, Any] = {
        # bf16 where the device computes in it, fp16 on older GPUs, else fp32; a value of the user's own wins.
        "bf16": str(dtype) == "torch.bfloat16",
        "fp16": str(dtype) == "torch.float16",
        **config.training.grpo,
        "output_dir": output_dir,
        "report_to": [],
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "reward_weights": [reward.weight for reward in config.rewards.functions],
        "chat_template_kwargs": template_arguments(config.prompt) or None,
        "trust_remote_code": config.model.trust_remote_code,
        # Writes completions/*.parquet beside the checkpoints and, with 0, prints none.
        "log_completions": True,
        "num_completions_to_print": 0,
        **more,
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return GRPOConfig(**arguments)
    except Exception as error:  # a value may lead it anywhere, to a file or a package that is not there
        raise UserError(f"TRL refuses the section training: {error}; correct it") from None


def lora_config(config: Config) -> LoraConfig | None:
    """The real `LoraConfig`, or None for full training. Raises UserError where peft refuses a value."""
    if config.training.lora is None:
        return None
    try:
        return LoraConfig(**{"task_type": "CAUSAL_LM", **config.training.lora})
    except Exception as error:
        raise UserError(f"peft refuses training.lora: {error}; correct it") from None
