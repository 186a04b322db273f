"""The estimate before the first step: what it grows with, and what it says where a run cannot fit.

How near it comes to what is measured is checked by an end-to-end test, since it takes a training.
"""

from dataclasses import replace

import pytest

from tasks.config import Config, load
from tasks.errors import UserError
from tasks.estimate import Architecture, Machine, estimate, require_memory

QWEN = Architecture(
    layers=28,
    hidden=1536,
    intermediate=8960,
    kv_width=256,
    vocabulary=151_936,
    weights=1_543_714_304,
    trained=4_358_144,
    adapted_inputs=28 * 4 * 1536,
    bytes_per_weight=2,
)
GPU = Machine(memory_gib=24.0, flops=60e12, bandwidth=0.9e12)


def needs(config: Config, machine: Machine = GPU, architecture: Architecture = QWEN, prompt: int = 256):
    return estimate(config, architecture, machine, prompt)


def test_the_classic_recipe_fits_on_the_gpu_that_it_is_said_to_need():
    config = load("deployments/gsm8k.yaml")
    found = needs(config)
    require_memory(config, found, GPU)
    assert found.parts["weights"] == pytest.approx(2.9, abs=0.1)
    assert found.parts["vLLM's share"] == pytest.approx(7.2)
    assert 12 < found.memory_gib < 20


@pytest.mark.parametrize(
    ("machine", "changes", "words"),
    [
        (
            24.0,
            {"training.per_device_train_batch_size": 16},
            "set training.per_device_train_batch_size=8 and training.",
        ),
        (6.0, {"training.per_device_train_batch_size": 1}, "take a smaller model, or a larger machine"),
        (
            16.0,
            {
                "training.per_device_train_batch_size": 1,
                "training.max_completion_length": 4096,
                "training.vllm_gpu_memory_utilization": 0.1,
                "training.gradient_accumulation_steps": 32,
            },
            "set training.gradient_checkpointing=true",
        ),
        (24.0, {"training.vllm_gpu_memory_utilization": 0.8}, "lower training.vllm_gpu_memory_utilization"),
    ],
)
def test_a_run_that_cannot_fit_is_refused_with_what_would_help(machine, changes, words):
    config = load("deployments/gsm8k.yaml", changes)
    smaller = replace(GPU, memory_gib=machine)
    with pytest.raises(UserError, match="training needs about") as caught:
        require_memory(config, needs(config, smaller), smaller)
    assert words in str(caught.value) and "logits" in str(caught.value)


def test_what_it_advises_needs_less():
    config = load("deployments/gsm8k.yaml")
    half = {"training.per_device_train_batch_size": 1, "training.gradient_accumulation_steps": 32}
    smaller = load("deployments/gsm8k.yaml", half)
    assert needs(smaller).parts["activations"] == pytest.approx(needs(config).parts["activations"] / 2)
    assert needs(smaller).step_seconds == pytest.approx(needs(config).step_seconds)
    checkpointed = load("deployments/gsm8k.yaml", {"training.gradient_checkpointing": True})
    assert needs(checkpointed).parts["activations"] < needs(config).parts["activations"] / 5
    asleep = load("deployments/gsm8k.yaml", {"training.vllm_enable_sleep_mode": True})
    assert "vLLM's share" not in needs(asleep).parts


def test_a_step_takes_longer_with_more_to_generate_and_to_learn_from():
    config = load("deployments/gsm8k.yaml")
    longer = load(
        "deployments/gsm8k.yaml", {"training.max_completion_length": 768, "training.vllm_max_model_length": None}
    )
    twice = load("deployments/gsm8k.yaml", {"training.num_iterations": 2})
    assert needs(longer).step_seconds > 1.5 * needs(config).step_seconds
    # Of two steps only the first generates.
    assert needs(config).step_seconds / 2 < needs(twice).step_seconds < needs(config).step_seconds


def test_without_vllm_all_completions_of_a_generation_have_a_cache():
    plain = load("deployments/gsm8k.yaml", {"training.use_vllm": False})
    wider = load("deployments/gsm8k.yaml", {"training.use_vllm": False, "training.gradient_accumulation_steps": 32})
    name = "KV cache of generation"
    assert needs(wider).parts[name] == pytest.approx(2 * needs(plain).parts[name])
