"""Models are found or refused in a sentence, and none of them runs code unasked."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.config import ModelSettings, PromptSettings
from tasks.errors import UserError
from tasks.models import check_prompt, load_architecture, load_empty, load_model, load_tokenizer, resolve_model


@pytest.fixture
def folder(untrained_model: Path, tmp_path: Path) -> Path:
    return shutil.copytree(untrained_model, tmp_path / "model")


def settings(folder: Path, **more: object) -> ModelSettings:
    return ModelSettings.model_validate({"name": str(folder), **more})


def test_a_folder_is_known_by_its_weights_and_not_by_its_place(folder, untrained_model, tmp_path):
    found = resolve_model(settings(folder))
    same = resolve_model(settings(untrained_model))
    assert found == {"path": str(folder), "identity": same["identity"], "revision": None}
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    assert resolve_model(settings(folder))["identity"] != found["identity"]


class Marks:
    """As a pickle it writes a file when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


def test_pickled_weights_are_refused_and_never_loaded(folder, tmp_path):
    (folder / "model.safetensors").unlink()
    mark = tmp_path / "it-ran"
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Marks(mark)))
    with pytest.raises(UserError, match="has no weights as safetensors .* pickled ones can run code"):
        resolve_model(settings(folder))
    with pytest.raises(OSError, match="safetensors"):
        load_model(str(folder), settings(folder), use_cpu=True)
    assert not mark.exists()


def test_code_that_comes_with_a_model_runs_only_where_the_configuration_says_so(folder, tmp_path):
    mark = tmp_path / "it-ran"
    code = f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n"
    code += "from transformers import LlamaConfig\nclass OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
    (folder / "own.py").write_text(code)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="comes with Python code of its own, which is not run unasked"):
        resolve_model(settings(folder))
    assert not mark.exists()
    resolve_model(settings(folder, trust_remote_code=True))
    assert mark.exists()


def test_a_folder_that_is_no_model_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="holds no config.json, so it is no model"):
        resolve_model(settings(tmp_path))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(UserError, match=f"so it is no model; give {tmp_path}/model"):
        resolve_model(settings(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read as a model"):
        resolve_model(settings(tmp_path))


def test_a_tokenizer_without_a_chat_template_says_what_to_set(folder):
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match="has no chat template; set prompt.conversational to false"):
        load_tokenizer(str(folder), settings(folder), PromptSettings())
    assert load_tokenizer(str(folder), settings(folder), PromptSettings(conversational=False)).pad_token


def test_the_dtype_is_the_configured_one(folder):
    model = load_model(str(folder), settings(folder, dtype="float16"), use_cpu=True)
    assert model.dtype == torch.float16


def edited(folder: Path, change) -> None:
    """The weights after `change` has been made to the dictionary of them."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, {"format": "pt"})


def halved(weights: dict[str, torch.Tensor]) -> None:
    weights["model.layers.0.mlp.up_proj.weight"] = weights["model.layers.0.mlp.up_proj.weight"][:3].clone()


def without_a_layer(weights: dict[str, torch.Tensor]) -> None:
    for name in [name for name in weights if name.startswith("model.layers.1.")]:
        del weights[name]


def cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def without_a_shard(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "model-00001-of-00002.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            lambda folder: edited(folder, without_a_layer),
            r"lacks the weights model.layers.1.\S+ and \d others, .* random",
        ),
        (lambda folder: edited(folder, halved), r"up_proj.weight have the size \[3, \d+\], but config.json means \["),
        (cut, "the weights in .* cannot be loaded .* copy or save the model anew"),
        (without_a_shard, "the weights in .* cannot be loaded .* copy or save the model anew"),
    ],
    ids=["a layer is missing", "another size", "cut short", "a shard is missing"],
)
def test_weights_that_are_not_those_of_the_model_are_refused_before_anything_is_done(folder, damage, words):
    of = load_architecture(str(folder), settings(folder))
    whole = load_empty(str(folder), of, settings(folder))
    assert {weight.device.type for weight in whole.parameters()} == {"meta"}
    damage(folder)
    with pytest.raises(UserError, match=words):
        load_empty(str(folder), of, settings(folder))


def test_weights_that_the_configuration_does_not_mean_are_warned_of(folder, capsys):
    config_changed(folder, num_hidden_layers=1)
    load_empty(str(folder), load_architecture(str(folder), settings(folder)), settings(folder))
    found = capsys.readouterr().out
    assert found.startswith("WARNING ") and "holds the weights model.layers.1." in found


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 65}, "cannot be read as a model|cannot be loaded"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "is no causal language model, but a|lacks the weights"),
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, "is no causal language model|cannot"),
    ],
    ids=str,
)
def test_a_configuration_that_means_no_language_model_is_one_sentence(folder, changes, words):
    config_changed(folder, **changes)
    with pytest.raises(UserError, match=words):
        load_empty(str(folder), load_architecture(str(folder), settings(folder)), settings(folder))


def test_a_configuration_that_is_no_mapping_or_comes_with_broken_code_is_one_sentence(folder):
    config_changed(folder, model_type="own", auto_map={"AutoConfig": "own.OwnConfig"})
    (folder / "own.py").write_text("import of_nobody\n")
    with pytest.raises(UserError, match="cannot be read as a model: .*of_nobody"):
        load_architecture(str(folder), settings(folder, trust_remote_code=True))
    (folder / "config.json").write_text("[]")
    with pytest.raises(UserError, match="cannot be read as a model"):
        load_architecture(str(folder), settings(folder))


def config_changed(folder: Path, **values: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("models:/sums@champion", "flows.evaluate scores by --model; to train on from it, fetch it"),
        ("/nowhere/at/all", "is neither a folder here nor a model that the hub gives; check the spelling"),
    ],
)
def test_a_name_that_no_model_has_is_one_sentence(name, words):
    with pytest.raises(UserError, match=words):
        resolve_model(ModelSettings(name=name))


def test_a_revision_of_a_folder_is_refused(folder):
    with pytest.raises(UserError, match="model.revision is 'main', but model.name is the folder .*revision=null"):
        resolve_model(settings(folder, revision="main"))


def test_a_file_that_is_no_gguf_model_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "holds_no_model").mkdir()
    (tmp_path / "holds_no_model" / "__init__.py").touch()
    (tmp_path / "holds_no_model" / "a.gguf").write_bytes(b"GGUF, or so it says" * 10)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("GRPO_RUNS", str(tmp_path / "runs"))
    with pytest.raises(UserError, match="a.gguf cannot be read as a GGUF model"):
        resolve_model(ModelSettings(name="gguf:holds_no_model/a.gguf"))


def test_a_model_that_names_a_temperature_and_does_not_sample_can_be_saved_again(folder, tmp_path):
    ends = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    (folder / "generation_config.json").write_text(
        json.dumps({"do_sample": False, "temperature": 0.6, "eos_token_id": ends})
    )
    model = load_model(str(folder), settings(folder), use_cpu=True)
    model.save_pretrained(tmp_path / "again")
    assert load_model(str(tmp_path / "again"), settings(folder), use_cpu=True).generation_config.eos_token_id == ends


def test_quantized_weights_are_left_to_their_own_package(folder):
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (folder / "config.json").write_text(json.dumps(config))
    of = load_architecture(str(folder), settings(folder))
    assert {weight.device.type for weight in load_empty(str(folder), of, settings(folder)).parameters()} == {"meta"}


def test_a_model_that_lacks_weights_is_not_loaded_either(folder):
    edited(folder, without_a_layer)
    with pytest.raises(UserError, match="which would be drawn at random"):
        load_model(str(folder), settings(folder), use_cpu=True)


def tokenizer_changed(folder: Path, **values: object) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "tokenizer.json").unlink(),
        lambda folder: (folder / "tokenizer.json").write_text("{"),
        lambda folder: (folder / "tokenizer_config.json").write_text("[]"),
    ],
    ids=["missing", "broken", "no mapping"],
)
def test_a_tokenizer_that_cannot_be_read_is_one_sentence(folder, damage):
    damage(folder)
    with pytest.raises(UserError, match="the tokenizer of .* cannot be read .*; save it beside the weights"):
        load_tokenizer(str(folder), settings(folder), PromptSettings())


def test_a_tokenizer_by_which_no_completion_ends_is_refused(folder):
    tokenizer_changed(folder, eos_token=None, pad_token=None)
    with pytest.raises(UserError, match="no token for the end of a text"):
        load_tokenizer(str(folder), settings(folder), PromptSettings())


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('System role not supported') }}", "System role not supported.*prompt.system to null"),
        ("{% for message in %}", "cannot write the prompt"),
        ("Hello, how much is it?", "leaves the question out"),
    ],
)
def test_a_chat_template_that_cannot_write_the_prompt_is_one_sentence(folder, template, words):
    prompt = PromptSettings(system="Answer.")
    check_prompt(load_tokenizer(str(folder), settings(folder), prompt), settings(folder), prompt)
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(UserError, match=words):
        check_prompt(load_tokenizer(str(folder), settings(folder), prompt), settings(folder), prompt)
