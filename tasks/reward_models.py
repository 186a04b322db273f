"""Rewards that are models, from the hub or a folder. Needs torch, so only worker programs import it.

They are the user's own choice beside the policy: of what the section model says only that code may be run
(`trust_remote_code`) is meant for them too, and above all not the revision.
"""

import os
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from tasks.errors import UserError, first_line, is_disk_full
from tasks.memory import is_out_of_memory
from tasks.models import has_no_safe_weights, has_safe_weights


def check_reward_model(name: str, trust_remote_code: bool) -> int:
    """How many weights it has. Raises UserError for what would stop the trainer, or give scores of weights that nobody
    has trained."""
    try:
        architecture = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)
        if not tokenizer("How many?")["input_ids"]:  # where there is none, transformers makes an empty one
            raise ValueError("it has no tokenizer")
        safe = has_safe_weights(name, None)
    except Exception as error:  # whatever a file in it leads to
        raise UserError(
            f"rewards.functions: {name!r} cannot be read as a reward model ({first_line(error)}); check the spelling, "
            "the access, model.trust_remote_code if it has code of its own, or give a local folder with its tokenizer"
        ) from None
    kinds = architecture.architectures or ["nothing"]
    if not any(kind.endswith("ForSequenceClassification") for kind in kinds) or architecture.num_labels != 1:
        raise UserError(
            f"rewards.functions: {name!r} is no reward model, which gives one score for a text: it is "
            f"{' and '.join(kinds)} with {architecture.num_labels} labels, where …ForSequenceClassification with 1 is "
            "wanted; take another one"
        )
    if not safe:
        raise has_no_safe_weights(f"rewards.functions: {name!r}")
    try:
        with torch.device("meta"):
            empty: Any = AutoModelForSequenceClassification.from_config(
                architecture, trust_remote_code=trust_remote_code
            )
    except Exception as error:  # of a kind that has no such model, or of its own code
        raise UserError(
            f"rewards.functions: {name!r} cannot be built ({first_line(error)}); take another one"
        ) from None
    return sum(weight.numel() for weight in empty.parameters())


def load_reward_model(name: str, dtype: torch.dtype, trust_remote_code: bool) -> Any:
    """The model, as TRL would load it. Raises UserError for weights that do not fit."""
    try:
        return AutoModelForSequenceClassification.from_pretrained(
            name, num_labels=1, dtype=dtype, trust_remote_code=trust_remote_code, use_safetensors=True
        )
    except (OSError, RuntimeError, SafetensorError, ValueError) as error:
        healing = isinstance(error, OSError) and not os.path.isdir(name)  # of the hub
        if healing or is_out_of_memory(error) or is_disk_full(error):
            raise
        raise UserError(f"rewards.functions: {name!r} cannot be loaded ({first_line(error)}); mend it") from None
