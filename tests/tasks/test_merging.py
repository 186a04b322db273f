"""An adapter goes on top of the model that it was trained in, or nothing does."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from adapters import randomise_adapter
from peft import LoraConfig, get_peft_model
from trl.trainer.utils import create_model_from_path

from tasks.config import ModelSettings
from tasks.merging import with_adapter, write_merged
from tasks.models import load, load_architecture, load_empty, load_tokenizer, model_class
from tasks.prompts import PromptSettings


@pytest.fixture(scope="module")
def seeing(untrained_model: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelSettings:
    """A small Qwen3.5, which sees too: as a class for text alone its weights have other names."""
    folder = tmp_path_factory.mktemp("seeing")
    tokenizer = load_tokenizer(str(untrained_model), ModelSettings(), PromptSettings())
    linear = {f"linear_{name}": 2 if "num" in name else 16 for name in ("num_key_heads", "num_value_heads")}
    linear |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
    text = {
        **{"vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 32, "head_dim": 16},
        **{"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True},
        **{"layer_types": ["linear_attention", "full_attention"], "eos_token_id": tokenizer.eos_token_id},
        **linear,
    }
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
    tokens = dict.fromkeys(("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"), 1)
    config = transformers.Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=True, **tokens)
    transformers.Qwen3_5ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"image_processor_type": "Qwen2VLImageProcessor"}')
    return ModelSettings(name=str(folder), dtype="float32")


def test_a_model_is_loaded_as_the_class_that_trl_trains(seeing, untrained_model):
    for settings in (seeing, ModelSettings(name=str(untrained_model), dtype="float32")):
        trained = type(create_model_from_path(settings.name))
        architecture = load_architecture(settings.name, settings)
        assert model_class(architecture) is trained
        assert type(load(settings.name, settings, torch.float32)) is trained
        assert type(load_empty(settings.name, architecture, settings)) is trained


def test_code_of_a_models_own_is_found_by_the_class_that_it_registers():
    own = transformers.PretrainedConfig(architectures=["OfNobody"], auto_map={"AutoModelForImageTextToText": "a.B"})
    assert model_class(own) is transformers.AutoModelForImageTextToText
    assert model_class(transformers.PretrainedConfig()) is transformers.AutoModelForCausalLM


@pytest.fixture(scope="module")
def adapter(seeing: ModelSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained, as it were: a fresh one changes nothing."""
    lora = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], r=4)
    model = get_peft_model(create_model_from_path(seeing.name), lora)
    randomise_adapter(model, seed=1)
    folder = tmp_path_factory.mktemp("adapter")
    model.save_pretrained(folder)
    return folder


def test_merged_into_a_model_that_sees_too_the_adapter_is_still_there(seeing, adapter, tmp_path):
    ids = torch.tensor([[5, 6, 7, 8]])
    tokenizer = load_tokenizer(seeing.name, seeing, PromptSettings())
    write_merged(seeing.name, seeing, adapter, tokenizer, tmp_path / "merged")
    with torch.no_grad():
        before = load(seeing.name, seeing, torch.float32)(ids).logits
        beside = with_adapter(load(seeing.name, seeing, torch.float32), adapter)(ids).logits
        merged = load(str(tmp_path / "merged"), seeing, torch.float32)(ids).logits
    assert (merged - before).abs().max() > 0.01
    pictures = [Path(where) / "preprocessor_config.json" for where in (seeing.name, tmp_path / "merged")]
    assert pictures[0].read_bytes() == pictures[1].read_bytes()
    torch.testing.assert_close(merged, beside, atol=1e-4, rtol=1e-3)
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "merged").iterdir()}
    write_merged(seeing.name, seeing, adapter, tokenizer, tmp_path / "merged")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "merged").iterdir()} == written
    weights = tmp_path / "merged" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])  # by a machine that lost its power
    write_merged(seeing.name, seeing, adapter, tokenizer, tmp_path / "merged")
    assert weights.read_bytes() == whole


def test_an_adapter_to_another_model_is_no_adapter_to_this_one(seeing, adapter):
    """peft would only warn, and go on with the base model as if nothing had been learned."""
    architecture = load_architecture(seeing.name, seeing)
    text = transformers.AutoModelForCausalLM.from_config(architecture.get_text_config())
    saved = json.loads((adapter / "adapter_config.json").read_text())["target_modules"]
    assert sorted(saved) == ["q_proj", "v_proj"]
    with pytest.raises(RuntimeError, match="was trained in another model than Qwen3_5ForCausalLM: it has no base_mod"):
        with_adapter(text, adapter)
