"""What the vLLM in the trainer's process is told beside what TRL tells it."""

import ast
import importlib.util
from pathlib import Path

import pytest
import torch

from tasks.config import load
from tasks.models import engine_arguments


def test_trl_does_not_say_it_itself():
    """Fails when TRL passes these to the engine: then they need not be added any more."""
    folder = Path(importlib.util.find_spec("trl").origin).parent
    tree = ast.parse((folder / "generation" / "vllm_generation.py").read_text(encoding="utf-8"))
    calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call) and getattr(one.func, "id", "") == "LLM"]
    assert len(calls) == 1
    passed = {keyword.arg for keyword in calls[0].keywords}
    assert "model" in passed and None not in passed
    assert not passed & set(engine_arguments("some/model", load({}).model, use_cpu=True))


def test_vllm_computes_as_the_trainer_does_from_the_same_revision(tmp_path):
    model = load({"model": {"dtype": "float32", "revision": "abc"}}).model
    assert engine_arguments("some/model", model, use_cpu=False) == {
        "dtype": "float32",
        "revision": "abc",
        "tokenizer_revision": "abc",
    }
    assert engine_arguments(str(tmp_path), model, use_cpu=False)["revision"] is None


@pytest.mark.parametrize(("computes", "dtype"), [(True, "bfloat16"), (False, "float16")])
def test_on_a_gpu_that_does_not_compute_in_bfloat16_vllm_takes_float16(computes, dtype, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: computes)
    assert engine_arguments("some/model", load({}).model, use_cpu=False)["dtype"] == dtype
