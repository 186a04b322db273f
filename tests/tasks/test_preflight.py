"""Settings that TRL takes, and comes to grief on when it begins to train, are refused before anything is done."""

from pathlib import Path
from typing import Any

import pytest

from tasks.config import load
from tasks.errors import UserError
from tasks.preflight_worker import check_lora, try_out
from tasks.training_arguments import grpo_config, lora_config


def begin(folder: Path, **training: Any) -> None:
    config = load({"training": {"use_cpu": True} | training})
    try_out(grpo_config(config, str(folder)))
    lora_config(config)


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"lr_scheduler_type": "cosine", "warmup_steps": 0.1},
        {
            "lr_scheduler_type": "cosine_with_min_lr",
            "lr_scheduler_kwargs": {"min_lr": 1e-7},
            "optim": "adamw_torch_fused",
        },
        {"top_k": 50, "min_p": 0.1, "repetition_penalty": 1.1, "generation_kwargs": {"num_beams": 1}},
        {"sync_ref_model": True, "beta": 0.04},
        {"generation_kwargs": {"top_k": 20, "repetition_penalty": 1.2}},
    ],
    ids=str,
)
def test_what_can_be_done_is_begun(training, tmp_path):
    begin(tmp_path, **training)


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"optim": "lomo"}, "training.optim=lomo needs the package lomo_optim; pip install it"),
        ({"optim": "adamw_8bit"}, "training cannot begin with these settings: .*bitsandbytes"),
        ({"optim_args": "x"}, "training cannot begin"),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "training cannot begin"),
        ({"cache_implementation": "nonsense"}, "training cannot begin"),
        ({"use_liger_kernel": True}, "training.use_liger_kernel needs liger-kernel; pip install it"),
        ({"sync_ref_model": True, "beta": 0.0}, "training.sync_ref_model needs a reference model"),
        ({"accelerator_config": "nowhere.json"}, "TRL refuses the section training: .*; correct it"),
        ({"deepspeed": "nowhere.json"}, "TRL refuses the section training: .*; correct it"),
        ({"lora": {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "layers_pattern": "x"}}, "peft refuses"),
    ],
    ids=str,
)
def test_what_would_stop_the_trainer_is_refused_in_a_sentence(training, words, tmp_path):
    with pytest.raises(UserError, match=words):
        begin(tmp_path, **training)


@pytest.mark.parametrize(
    ("lora", "words"),
    [
        ({"target_modules": ["nowhere"]}, "training.lora does not fit"),
        ({"target_modules": "x["}, "training.lora does not fit"),
        ({"target_modules": ["q_proj"], "modules_to_save": ["nope"]}, "modules_to_save: .* has no module 'nope'"),
        ({"target_modules": ["q_proj"], "init_lora_weights": "corda"}, "training.lora does not fit"),
    ],
    ids=str,
)
def test_an_adapter_that_the_model_has_no_place_for_is_refused(lora, words, untrained_model):
    from tasks.models import load_architecture, load_empty

    config = load({"model": {"name": str(untrained_model)}, "training": {"lora": lora}})
    of = load_architecture(str(untrained_model), config.model)
    with pytest.raises(UserError, match=words):
        check_lora(lora_config(config), load_empty(str(untrained_model), of, config.model), of, config, 4)
