"""The estimate before the first step: what it grows with, and what it says where a run cannot fit.

How near it comes to what is measured is checked by an end-to-end test, since it takes a training.
"""

from dataclasses import replace

import pytest
import torch

from tasks import machine
from tasks.config import Config, load
from tasks.errors import UserError
from tasks.estimate import Architecture, Machine, estimate, judge
from tasks.machine import measure

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
    bytes_per_held=2,
    bytes_per_trained=16,
)
GPU = Machine(memory_gib=24.0, flops=60e12, bandwidth=0.9e12)


def needs(config: Config, machine: Machine = GPU, architecture: Architecture = QWEN, prompt: int = 256):
    return estimate(config, architecture, machine, prompt)


def test_the_classic_recipe_fits_on_the_gpu_that_it_is_said_to_need():
    config = load("deployments/gsm8k.yaml")
    found = needs(config)
    assert judge(config, found, GPU) is None
    assert found.held["weights"] == pytest.approx(2.9, abs=0.1)
    assert found.held["vLLM's share"] == pytest.approx(7.2)
    assert 12 < found.memory_gib < 20


def test_what_cannot_fit_is_refused_and_what_may_not_is_warned_of():
    config = load("deployments/gsm8k.yaml")
    small = replace(GPU, memory_gib=5.0)
    with pytest.raises(UserError, match="training needs about .* 5.0 GiB of memory on each GPU; take a smaller model"):
        judge(config, needs(config, small), small)
    greedy = load("deployments/gsm8k.yaml", {"training.vllm_gpu_memory_utilization": 0.9})
    with pytest.raises(UserError, match="lower training.vllm_gpu_memory_utilization"):
        judge(greedy, needs(greedy), GPU)
    wide = load("deployments/gsm8k.yaml", {"training.per_device_train_batch_size": 16})
    warning = judge(wide, needs(wide), GPU)
    assert warning is not None and "training.per_device_train_batch_size=8 and training.gradient_acc" in warning
    single = {"training.per_device_train_batch_size": 1, "training.gradient_accumulation_steps": 32}
    long = load("deployments/gsm8k.yaml", single | {"training.max_completion_length": 8192})
    warning = judge(long, needs(long), GPU)
    assert warning is not None and "training.gradient_checkpointing=true" in warning


def test_a_cache_that_is_larger_than_the_machine_is_told_from_a_model_that_is():
    demo = load("deployments/demo.yaml", {"evaluation.vllm_kv_cache_gib": 500})
    with pytest.raises(UserError, match="24.0 GiB of RAM; lower evaluation.vllm_kv_cache_gib$"):
        judge(demo, needs(demo), GPU)
    small = replace(GPU, memory_gib=5.0)
    demo = load("deployments/demo.yaml")
    with pytest.raises(UserError, match="take a smaller model, or a larger machine$"):
        judge(demo, needs(demo, small), small)


def test_vllm_on_a_cpu_holds_the_weights_twice():
    config = load("deployments/demo.yaml", {"evaluation.vllm_kv_cache_gib": 3})
    twice = 2 * QWEN.weights * 2 / 2**30
    assert needs(config).held["vLLM"] == pytest.approx(3 + twice)


def test_weights_that_may_be_divided_among_processes_are_not_judged():
    config = load("deployments/gsm8k.yaml", {"training.deepspeed": "zero3.json"})
    assert judge(config, needs(config, replace(GPU, memory_gib=1.0)), replace(GPU, memory_gib=1.0)) is None


def test_what_it_advises_needs_less():
    config = load("deployments/gsm8k.yaml")
    half = {"training.per_device_train_batch_size": 1, "training.gradient_accumulation_steps": 32}
    smaller = load("deployments/gsm8k.yaml", half)
    assert needs(smaller).learning["activations"] == pytest.approx(needs(config).learning["activations"] / 2)
    assert needs(smaller).step_seconds == pytest.approx(needs(config).step_seconds)
    checkpointed = load("deployments/gsm8k.yaml", {"training.gradient_checkpointing": True})
    assert needs(checkpointed).learning["activations"] < needs(config).learning["activations"] / 5


def test_a_vllm_that_sleeps_needs_its_share_while_it_generates_and_not_beside_the_activations():
    awake = needs(load("deployments/gsm8k.yaml"))
    config = load("deployments/gsm8k.yaml", {"training.vllm_enable_sleep_mode": True})
    asleep = needs(config)
    assert awake.memory_gib > asleep.memory_gib > sum(asleep.held.values()) + awake.held["vLLM's share"] - 0.01
    greedy = {"training.vllm_enable_sleep_mode": True, "training.vllm_gpu_memory_utilization": 0.95}
    with pytest.raises(UserError, match="lower training.vllm_gpu_memory_utilization$"):
        judge(config, needs(load("deployments/gsm8k.yaml", greedy)), GPU)


def test_a_whole_model_with_a_penalty_has_a_second_one_to_refer_to():
    whole = replace(QWEN, trained=QWEN.weights, adapted_inputs=0, bytes_per_held=4, bytes_per_trained=14)
    for beta, lora, extra in ((0.0, None, 0.0), (0.04, None, 5.75), (0.04, {"r": 8}, 0.0)):
        config = load({"training": {"beta": beta, "lora": lora}})
        assert needs(config, architecture=whole).held.get("reference model", 0.0) == pytest.approx(extra, abs=0.01)


def test_of_the_logits_no_more_is_counted_than_trl_holds_at_a_time():
    longer = {"training.per_device_train_batch_size": 8, "training.max_completion_length": 2048}
    changes = longer | {"training.gradient_accumulation_steps": 4}
    gradient = 8 * 2048 * 1536 * 4
    found = needs(load("deployments/gsm8k.yaml", changes))
    assert found.learning["logits"] == pytest.approx((4096 * 32768 * 2 + gradient) / 2**30)
    whole = needs(load("deployments/gsm8k.yaml", changes | {"training.lora": None}))
    assert whole.learning["logits"] - found.learning["logits"] == pytest.approx(151_936 * 1536 * 4 / 2**30)
    on_cpu = needs(load("deployments/gsm8k.yaml", changes | {"training.use_cpu": True}))
    assert on_cpu.learning["logits"] == pytest.approx(4096 * 151_936 * 8 / 2**30)


def test_reward_models_take_their_place_beside_the_model():
    with_judge = needs(load("deployments/gsm8k.yaml"), architecture=replace(QWEN, reward_weights=QWEN.weights))
    assert with_judge.held["reward models"] == with_judge.held["weights"]


def test_a_trainer_beside_a_server_holds_the_weights_that_it_sends():
    server = {"training.vllm_mode": "server", "training.vllm_server": {"gpus": 1}}
    found = needs(load("deployments/gsm8k.yaml", server))
    assert found.held["weights on their way to the server"] == 2.0 and "vLLM's share" not in found.held


def test_a_step_takes_longer_with_more_to_generate_and_to_learn_from():
    config = load("deployments/gsm8k.yaml")
    longer = load("deployments/gsm8k.yaml", {"training.max_completion_length": 768})
    twice = load("deployments/gsm8k.yaml", {"training.num_iterations": 2})
    assert needs(longer).step_seconds > 1.5 * needs(config).step_seconds
    # Of two steps only the first generates.
    assert needs(config).step_seconds / 2 < needs(twice).step_seconds < needs(config).step_seconds


def test_what_trl_scores_before_it_learns_takes_time_too():
    plain = needs(load("deployments/gsm8k.yaml", {"training.vllm_importance_sampling_correction": False}))
    corrected = needs(load("deployments/gsm8k.yaml"))
    with_reference = needs(load("deployments/gsm8k.yaml", {"training.beta": 0.04}))
    times = [found.step_seconds for found in (plain, corrected, with_reference)]
    assert times == sorted(times) and times[2] - times[1] == pytest.approx(times[1] - times[0])
    # Half of what the products take that are learned from.
    learned = 32 * 640 * 4 * QWEN.weights / (0.4 * GPU.flops)
    assert times[1] - times[0] == pytest.approx(learned / 2)


def test_a_small_model_waits_for_its_kernels_on_a_gpu_and_not_on_a_cpu():
    small = replace(QWEN, layers=30, hidden=576, weights=135_000_000, vocabulary=49_152)
    fast = replace(GPU, flops=900e12, bandwidth=4e12)
    config = load("deployments/gsm8k.yaml")
    cpu = load("deployments/gsm8k.yaml", {"training.use_cpu": True, "training.cpu_shortcuts": False})
    assert needs(config, fast, small).step_seconds > 10 * needs(cpu, fast, small).step_seconds
    assert needs(config, fast, small).step_seconds < 5


def test_without_vllm_all_completions_of_a_generation_have_a_cache_which_learning_does_not_wait_for():
    plain = load("deployments/gsm8k.yaml", {"training.use_vllm": False})
    wider = load("deployments/gsm8k.yaml", {"training.use_vllm": False, "training.gradient_accumulation_steps": 32})
    assert needs(wider).generating["KV cache"] == pytest.approx(2 * needs(plain).generating["KV cache"])
    assert needs(plain).memory_gib < needs(plain).certain_gib + sum(needs(plain).learning.values()) + 0.01


def test_a_gpu_without_room_to_measure_its_speed_is_judged_by_its_memory_alone(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert measure(torch.float32, use_cpu=True).flops is not None
    monkeypatch.setattr(machine, "_speeds", full)
    busy = measure(torch.float32, use_cpu=True)
    assert busy.memory_gib > 0 and (busy.flops, busy.bandwidth) == (None, None)
    config = load("deployments/gsm8k.yaml")
    found = needs(config, replace(GPU, flops=None, bandwidth=None))
    assert found.memory_gib == needs(config).memory_gib and found.step_seconds is None
    assert str(found).endswith(")") and str(needs(config)).endswith(" s a step")
