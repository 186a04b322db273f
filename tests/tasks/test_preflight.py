"""Settings that TRL takes, and comes to grief on when it begins to train, are refused before anything is done."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GPT2Config, MixtralConfig, MixtralForCausalLM, Qwen2Config

from tasks import preflight_worker
from tasks.config import load
from tasks.errors import UserError
from tasks.estimate import Machine
from tasks.models import load_architecture, load_empty, load_tokenizer
from tasks.preflight_worker import (
    check_device,
    check_evaluation,
    check_launch,
    check_lora,
    check_precision,
    check_quantized,
    check_server,
    check_vocabulary,
    disk_gib,
    positions,
    try_out,
)
from tasks.training_arguments import grpo_config, lora_config, weights_dtype


def begin(folder: Path, **training: Any) -> None:
    config = load({"training": {"use_cpu": True} | training})
    try_out(grpo_config(config, str(folder)), config)
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
        {"sync_ref_model": True, "beta": 0.04, "lora": None},
        {"max_steps": 2, "warmup_steps": 1},
        {"max_steps": 1, "learning_rate": 0.0, "warmup_steps": 0.1},
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
        ({"sync_ref_model": True, "beta": 0.04}, "needs a reference model of its own, and with training.lora"),
        (
            {"max_steps": 1, "warmup_steps": 0.1},
            "the learning rate at 0 in every step, .*training.warmup_steps=0",
        ),
        ({"generation_kwargs": {"stop": ["x"]}}, "has stop, which transformers' GenerationConfig does not know"),
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
    ("name", "text", "words"),
    [
        ("mine.yaml", "distributed_type: [NO", "while parsing a flow sequence"),
        ("mine.yaml", "", "NoneType"),
        ("mine.yaml", "num_processes: 2", "A `distributed_type` must be specified"),
        ("mine.yaml", "distributed_type: SOMEHOW", "SOMEHOW"),
        ("mine.yaml", "distributed_type: MULTI_GPU\nnum_procs: 2", "unknown keys .*num_procs"),
        (
            "mine.yaml",
            "distributed_type: NO\nmixed_precision: fp17",
            "'fp17', which is none of .*; correct it",
        ),
        ("mine.yaml", "distributed_type: MULTI_GPU\nmixed_precision: no", "quote it"),
        ("mine.yaml", "distributed_type: MULTI_GPU\nnum_machines: 2", "asks for 2 machines, .*num_machines: 1"),
        ("mine.json", "{", "Expecting property name"),
    ],
)
def test_a_configuration_of_accelerate_that_it_cannot_read_is_refused(name, text, words, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    refused_by_us = "precision" in text or "machines" in text
    about = f"{path} asks for " if refused_by_us else f"accelerate cannot read {path} ("
    with pytest.raises(UserError, match=words) as refused:
        check_launch(load({"training": {"accelerate_config": str(path)}}))
    assert "training.accelerate_config: " in str(refused.value) and about in str(refused.value)


def test_a_configuration_of_accelerate_that_it_reads_is_taken(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("distributed_type: MULTI_GPU\nnum_processes: 8\nmixed_precision: BF16\n")
    check_launch(load({"training": {"accelerate_config": str(path)}}))
    check_launch(load({}))


def test_deepspeed_that_is_not_installed_is_missed_before_anything_is_done(tmp_path, monkeypatch):
    path = tmp_path / "mine.yaml"
    path.write_text("distributed_type: DEEPSPEED\nnum_processes: 2\n")
    config = load({"training": {"accelerate_config": str(path)}})
    monkeypatch.setattr("tasks.preflight_worker.find_spec", lambda name: None)
    with pytest.raises(UserError, match="mine.yaml asks for DeepSpeed, which is not installed; pip install deepspeed"):
        check_launch(config)
    monkeypatch.setattr("tasks.preflight_worker.find_spec", lambda name: object())
    check_launch(config)


@pytest.mark.parametrize(("engine", "fits"), [("vllm", 0.85 * 24), ("transformers", 24)])
def test_a_model_that_no_gpu_holds_is_not_evaluated(engine, fits):
    check_evaluation(load({}), engine, int(fits * 2**30) - 1, memory_gib=24)
    with pytest.raises(UserError, match="an evaluation holds the whole model on one GPU: .* and a GPU has 24.0"):
        check_evaluation(load({}), engine, int(fits * 2**30) + 2**25, memory_gib=24)


def test_where_a_driver_is_there_and_torch_finds_no_gpu_the_driver_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="has no GPU that torch can use; set training.use_cpu=true"):
        check_device(load({}))
    (tmp_path / "nvidia-smi").touch(0o755)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(UserError, match=r"can use \(of NVIDIA's driver, which it has, torch \S+ may need a newer"):
        check_device(load({}))


@pytest.mark.parametrize(
    ("lora", "words"),
    [
        ({"target_modules": ["nowhere"]}, "training.lora does not fit"),
        ({"target_modules": "x["}, "training.lora does not fit"),
        ({"target_modules": ["q_proj"], "modules_to_save": ["nope"]}, "modules_to_save: .* has no module 'nope'"),
        ({"target_modules": ["q_proj"], "init_lora_weights": "corda"}, "training.lora does not fit"),
        ({"target_modules": ["q_proj"], "rank_pattern": {"k_proj": 2}}, "rank_pattern: no module .* called 'k_proj'"),
        ({"target_modules": ["q_proj"], "alpha_pattern": {"layers.9.q_proj": 2}}, "alpha_pattern: no module"),
        ({"target_modules": ["q_proj"], "target_parameters": ["mlp.nothing"]}, "target_parameters: .*'mlp.nothing'"),
    ],
    ids=str,
)
def test_an_adapter_that_the_model_has_no_place_for_is_refused(lora, words, untrained_model):
    config = load({"model": {"name": str(untrained_model)}, "training": {"lora": lora}})
    of = load_architecture(str(untrained_model), config.model)
    with pytest.raises(UserError, match=words):
        check_lora(lora_config(config), load_empty(str(untrained_model), of, config.model), of, config)


@pytest.mark.parametrize(
    ("lora", "words"),
    [
        ({"target_modules": "all-linear"}, None),  # which peft rewrites, with ranks of its own
        ({"target_modules": ["q_proj"], "rank_pattern": {"^model.layers.0.self_attn.q_proj": 8}}, None),
        ({"target_parameters": ["mlp.experts.down_proj"], "rank_pattern": {"experts.down_proj": 2}}, None),
        ({"target_parameters": ["mlp.experts.down_proj"], "rank_pattern": {"experts": 2}}, "rank_pattern: no module"),
        ({"target_parameters": ["mlp.experts.down_proj", "mlp.experts.typo"]}, "has no weights 'mlp.experts.typo'"),
    ],
    ids=str,
)
def test_patterns_are_held_to_what_peft_adapts_of_a_mixture_of_experts(lora, words):
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "vocab_size": 16}
    of = MixtralConfig(num_attention_heads=1, num_key_value_heads=1, num_local_experts=2, **sizes)
    with torch.device("meta"):
        model = MixtralForCausalLM(of)
    config = load({"training": {"use_cpu": True, "lora": lora | {"r": 4}}})
    with pytest.raises(UserError, match=words) if words else nullcontext():
        check_lora(lora_config(config), model, of, config)


def whole(dtype: str, **training: Any) -> Any:
    """A configuration that trains all weights."""
    return load({"model": {"dtype": dtype}, "training": {"use_cpu": True, "lora": None} | training})


def test_a_whole_model_is_trained_in_32_bits_whatever_is_computed_in(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert weights_dtype(whole("auto")) == torch.float32
    assert grpo_config(whole("auto"), "nowhere").bf16
    assert weights_dtype(load({"training": {"use_cpu": True}})) == torch.bfloat16
    assert weights_dtype(whole("bfloat16")) == torch.bfloat16


def test_16_bits_for_a_whole_model_are_warned_of_or_refused(capsys):
    check_precision(whole("auto"))
    check_precision(load({"model": {"dtype": "float16"}, "training": {"use_cpu": True}}))
    assert capsys.readouterr().out == ""
    check_precision(whole("bfloat16"))
    assert capsys.readouterr().out.startswith("WARNING model.dtype=bfloat16 with training.lora=null")
    with pytest.raises(UserError, match="model.dtype=float16 with training.lora=null .* leave model.dtype to auto"):
        check_precision(whole("float16"))


@pytest.mark.parametrize(
    ("lora", "training", "words"),
    [
        ({"target_modules": ["q_proj", "embed_tokens"]}, {}, "target_modules has the embedding, but .* take it out"),
        ({"target_modules": ["q_proj", "lm_head"]}, {}, "target_modules has the output layer .* take it out"),
        ({"target_modules": ["q_proj"], "trainable_token_indices": [1, 2]}, {}, "trainable_token_indices is set, but"),
        ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, {"use_vllm": True}, "set training.use_vllm=f"),
        ({"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}, {"use_vllm": True}, "go on with the old"),
        ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, {}, None),
        ({"target_modules": "all-linear", "modules_to_save": ["norm"]}, {"use_vllm": True}, None),
    ],
    ids=str,
)
def test_an_adapter_that_would_part_what_the_model_has_as_one_is_refused(lora, training, words, untrained_model):
    """The embedding is the output layer, too: what is learned for one would be lost, or change both, in a merge."""
    config = load({"model": {"name": str(untrained_model)}, "training": training | {"lora": lora}})
    of = load_architecture(str(untrained_model), config.model)
    empty = load_empty(str(untrained_model), of, config.model)
    with pytest.raises(UserError, match=words) if words else nullcontext():
        check_lora(lora_config(config), empty, of, config)


def test_weights_cannot_be_sent_to_a_server_from_a_cpu():
    training = {"use_cpu": True, "use_vllm": True, "vllm_mode": "server", "vllm_server": {"gpus": 1}}
    with pytest.raises(UserError, match="from GPU to GPU only; on a CPU set training.vllm_mode=colocate"):
        check_server(load({"training": training}))


def test_a_whole_model_in_32_bits_is_counted_as_such(untrained_model, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    sizes = {}
    for dtype in ("auto", "bfloat16"):
        config = whole(dtype)
        of = load_architecture(str(untrained_model), config.model)
        sizes[dtype] = check_lora(None, load_empty(str(untrained_model), of, config.model), of, config)
        assert sizes[dtype].trained == sizes[dtype].weights
    auto, half = sizes["auto"], sizes["bfloat16"]
    assert (auto.bytes_per_weight, auto.bytes_per_held, auto.bytes_per_trained) == (2, 4, 14)
    assert (half.bytes_per_weight, half.bytes_per_held, half.bytes_per_trained) == (2, 2, 6)
    assert disk_gib(auto, whole("auto"), 2) > disk_gib(half, whole("bfloat16"), 2)


def test_the_disk_is_counted_for_a_merged_model_in_the_precision_of_its_files(untrained_model):
    config = load({"model": {"name": str(untrained_model), "dtype": "bfloat16"}, "training": {"use_cpu": True}})
    of = load_architecture(str(untrained_model), config.model)
    sizes = check_lora(lora_config(config), load_empty(str(untrained_model), of, config.model), of, config)
    more = (disk_gib(sizes, config, 4) - disk_gib(sizes, config, 2)) * 2**30
    assert more == pytest.approx(2 * 2 * sizes.weights, abs=1)


def test_groups_that_only_several_processes_fill_pass_the_preflight(untrained_model, tmp_path, monkeypatch):
    monkeypatch.setattr(preflight_worker, "check_device", lambda config: None)  # there are no four GPUs here
    monkeypatch.setattr(preflight_worker, "check_training_devices", lambda config: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=2**34))
    monkeypatch.setattr(preflight_worker, "measure", lambda *_: Machine(16.0, None, None))
    training = {"processes": 4, "per_device_train_batch_size": 2, "num_generations": 8, "save_steps": 1}
    config = load(
        {
            "model": {"name": str(untrained_model), "dtype": "float32"},
            "training": training,
            "evaluation": {"engine": "transformers"},
        }
    )
    found = preflight_worker.preflight({"config": config.dump(), "trains": True, "scratch": str(tmp_path)})
    assert found["model"]["path"] == str(untrained_model)


def test_a_tokenizer_whose_end_the_model_does_not_know_is_refused(untrained_model):
    config = load({"model": {"name": str(untrained_model)}})
    empty = load_empty(str(untrained_model), load_architecture(str(untrained_model), config.model), config.model)
    tokenizer = load_tokenizer(str(untrained_model), config.model, config.prompt)
    check_vocabulary(tokenizer, empty, config)
    tokenizer.add_special_tokens({"eos_token": "<|nowhere|>"})
    with pytest.raises(UserError, match=r"has '<\|nowhere\|>' \(eos_token\) as token \d+, but the model knows \d+;"):
        check_vocabulary(tokenizer, empty, config)


def quantized(method: str) -> Qwen2Config:
    how = {"load_in_4bit": True} if method == "bitsandbytes" else {}
    return Qwen2Config(quantization_config={"quant_method": method} | how)


@pytest.mark.parametrize(
    ("changes", "engine", "words"),
    [
        ({"training.lora": None}, "transformers", r"training.lora: .* quantized \(bitsandbytes\), so only an adapter"),
        ({"training.use_vllm": True}, "transformers", "training.use_vllm: .*; set training.use_vllm=false"),
        ({}, "transformers", "registry.merged: .* would be rounded away; set registry.merged=false"),
        ({"registry.merged": False}, "vllm", "evaluation.engine: .* vLLM does not read; set evaluation.engine=transf"),
        ({"registry.merged": False}, "transformers", None),
    ],
    ids=str,
)
def test_quantized_weights_carry_an_adapter_and_nothing_more(changes, engine, words, monkeypatch):
    monkeypatch.setattr("transformers.quantizers.quantizer_bnb_4bit.Bnb4BitHfQuantizer.validate_environment", nothing)
    config = load({"model": {"name": "some/model"}, "training": {"use_cpu": True}}, changes)
    with pytest.raises(UserError, match=words) if words else nullcontext():
        check_quantized(config, quantized("bitsandbytes"), engine, trains=True)
    check_quantized(config, quantized("bitsandbytes"), "transformers", trains=False)


@pytest.mark.parametrize(("method", "words"), [("bitsandbytes", "bitsandbytes"), ("of-nobody", "of-nobody")])
def test_a_way_to_quantize_that_transformers_does_not_read_here_is_refused_where_it_loads(method, words):
    for engine, trains in (("transformers", False), ("vllm", True)):
        with pytest.raises(UserError, match=rf"quantized \({method}\) in a way that transformers cannot .*{words}"):
            check_quantized(load({}), quantized(method), engine, trains)


def test_quantized_weights_that_vllm_alone_reads_are_left_to_it():
    check_quantized(load({}), quantized("modelopt"), "vllm", trains=False)
    check_quantized(load({}), quantized("gptq"), "vllm", trains=False)


def nothing(*_: object, **__: object) -> None: ...


def test_the_room_of_a_model_is_known_unless_its_positions_are_stretched():
    assert positions(Qwen2Config(max_position_embeddings=4096)) == 4096
    assert positions(GPT2Config(n_positions=1024)) == 1024
    stretched = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6, "original_max_position_embeddings": 4096}
    assert positions(Qwen2Config(rope_parameters=stretched)) is None
