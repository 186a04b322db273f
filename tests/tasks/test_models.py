"""Models are found or refused in a sentence, and none of them runs code unasked."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from tasks.config import ModelSettings, PromptSettings
from tasks.errors import UserError
from tasks.models import load_model, load_tokenizer, resolve_model


@pytest.fixture
def folder(untrained_model: Path, tmp_path: Path) -> Path:
    return shutil.copytree(untrained_model, tmp_path / "model")


def settings(folder: Path, **more: object) -> ModelSettings:
    return ModelSettings.model_validate({"name": str(folder), **more})


def test_a_folder_is_known_by_its_weights_and_not_by_its_place(folder, untrained_model, tmp_path):
    found = resolve_model(settings(folder))
    assert found == {"path": str(folder), "identity": resolve_model(settings(untrained_model))["identity"]}
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
