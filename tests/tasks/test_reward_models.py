"""Reward models: what is one, and what would stop the trainer or score at random is refused before it begins."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForSequenceClassification

from tasks.config import load
from tasks.errors import UserError
from tasks.preflight_worker import check_reward_models
from tasks.reward_models import check_reward_model, load_reward_model


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def judge(tmp_path: Path, untrained_model: Path) -> Path:
    return save(tmp_path / "my" / "judge-0.6B", untrained_model)


def save(folder: Path, tokenizer: Path | None, **changes: Any) -> Path:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 16, "num_labels": 1}
    config = Qwen2Config(num_attention_heads=1, num_key_value_heads=1, **sizes | changes)
    Qwen2ForSequenceClassification(config).save_pretrained(folder)
    if tokenizer:
        AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    return folder


def test_one_that_is_whole_passes_and_is_said_to_count_in_training_alone(judge, tmp_path, capsys):
    path = tmp_path / "config.yaml"  # which it lies beside
    path.write_text("rewards: {functions: [{name: int}, {name: my/judge-0.6B}]}")
    config = load(path, {"training.seed": 1})
    assert [reward.label for reward in config.rewards.functions] == ["int", "judge-0.6B"]
    weights = check_reward_models(config)
    assert f"WARNING the reward model {judge} counts in training alone" in capsys.readouterr().out
    assert load_reward_model(str(judge), torch.float32, False).score.out_features == 1
    assert weights == sum(one.numel() for one in load_reward_model(str(judge), torch.float32, False).parameters())


def test_what_is_none_is_refused(judge, tmp_path, untrained_model):
    cases = {
        "nowhere/judge": "cannot be read as a reward model",
        str(untrained_model): "is no reward model, .* it is LlamaForCausalLM",
        str(save(tmp_path / "three", untrained_model, num_labels=3)): "is no reward model, .* with 3 labels",
        str(save(tmp_path / "mute", None)): "cannot be read as a reward model",
    }
    broken = save(tmp_path / "broken", untrained_model)
    (broken / "config.json").write_text("[1]")
    weightless = save(tmp_path / "weightless", untrained_model)
    (weightless / "model.safetensors").rename(weightless / "pytorch_model.bin")
    cases |= {str(broken): "cannot be read as a reward model", str(weightless): "has no weights as safetensors"}
    for name, words in cases.items():
        with pytest.raises(UserError, match=f"rewards.functions: '{name}' {words}"):
            check_reward_model(name, False)


def test_weights_that_are_cut_short_are_one_sentence(judge):
    weights = judge / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-20])
    with pytest.raises(UserError, match="judge-0.6B' cannot be loaded"):
        load_reward_model(str(judge), torch.float32, False)
