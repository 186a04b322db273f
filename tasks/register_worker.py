"""Worker: the trained model as an MLflow model in a folder. Started by `tasks.register`."""

import os
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow.transformers
import torch
from huggingface_hub import ModelCard, snapshot_download
from mlflow.models import infer_signature
from peft import PeftModel
from safetensors.torch import load_file

from tasks.config import Config
from tasks.errors import UserError
from tasks.merging import with_adapter, write_merged
from tasks.models import copy_processors, load, load_tokenizer
from tasks.prompts import build_prompt, template_arguments
from tasks.run import require_disk
from tasks.whole import make_whole
from tasks.worker import run_worker

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


def build(job: dict[str, Any]) -> dict[str, Any]:
    """Write the model to `job["folder"]`, or give in `unchanged` a sentence about weights that training left alone."""
    config = Config.model_validate(job["config"])
    trained, base = job["trained"], job["trained"]["base"]
    tokenizer = load_tokenizer(base, config.model, config.prompt)
    if trained["adapter"]:
        adapter = Path(trained["adapter"])
        if _untrained(adapter):
            return {"unchanged": _nothing_learned("every lora_B of the adapter is still zero")}
        if job["merged"]:
            write_merged(base, config.model, adapter, tokenizer, Path(job["merged"]))  # unless it is still there
            model: Any = load(job["merged"], config.model, "auto")
            model.name_or_path = config.model.name  # rather than where it lies on this machine
        else:
            model = with_adapter(load(base, config.model, "auto"), adapter)
    else:
        adapter = None
        model = load(trained["model"], config.model, "auto")
        if _equal(model, load(base, config.model, "auto")):
            return {"unchanged": _nothing_learned("all weights are still those of the start model")}
    make_whole(Path(job["folder"]), lambda folder: _save(model, tokenizer, adapter, config, job, folder))
    print("the model is built", flush=True)
    return {"unchanged": None}


def _save(model: Any, tokenizer: Any, adapter: Path | None, config: Config, job: dict[str, Any], folder: Path) -> None:
    base = job["trained"]["base"]
    alone = isinstance(model, PeftModel)
    size = sum(weights.numel() * weights.element_size() for weights in model.parameters() if not alone)
    require_disk(folder.parent, 1.1 * size / 2**30, "the merged model")
    prompt = build_prompt(job["question"], config.prompt)
    if not isinstance(prompt, str):
        prompt = tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, tokenize=False, **template_arguments(config.prompt)
        )
    limits = {"max_new_tokens": config.max_new_tokens}
    mlflow.transformers.save_model(
        {"model": model, "tokenizer": tokenizer},
        str(folder),
        task="text-generation",
        signature=infer_signature(prompt, "a completion", params=limits),
        input_example=(prompt, limits),
        # By pyfunc the model answers as it was evaluated: greedily, the completion only; a chat template has put in
        # the special tokens already.
        model_config={
            "return_full_text": False,
            "do_sample": False,
            # For an adapter alone the base is loaded with its own defaults.
            "repetition_penalty": 1.0,
            "no_repeat_ngram_size": 0,
            "add_special_tokens": not config.prompt.conversational,
        },
        model_card=ModelCard(job["card"]),
        pip_requirements=_requirements(peft=adapter is not None),
        # Without this MLflow would save the base model's weights with the adapter.
        base_model_path=_local(base, config.model.revision) if alone else None,
    )
    if not alone:
        # So that transformers alone loads it from there; MLflow keeps its own tokenizer elsewhere.
        tokenizer.save_pretrained(folder / "model")
        copy_processors(base, config.model, folder / "model")
        (folder / "model" / "README.md").write_text(job["card"], encoding="utf-8")
        if os.path.isdir(base):
            (folder / "LICENSE.txt").unlink()  # it says that the hub has none for the path of a folder
    if adapter:
        kept = folder / "peft"
        kept.mkdir(exist_ok=True)
        for name in ADAPTER_FILES:
            shutil.copyfile(adapter / name, kept / name)
        (kept / "README.md").write_text(job["card"], encoding="utf-8")


def _untrained(adapter: Path) -> bool:
    """Whether every lora_B is zero, as LoRA begins. Raises UserError for an adapter with values that are not finite."""
    weights = load_file(adapter / "adapter_model.safetensors")
    broken = [name for name, values in weights.items() if not torch.isfinite(values).all()]
    if broken:
        raise UserError(
            f"the adapter holds values that are not finite (in {broken[0]}, and {len(broken) - 1} more), so it is not "
            "registered; training has diverged: lower training.learning_rate or training.max_grad_norm"
        )
    return not any(values.any() for name, values in weights.items() if "lora_B" in name or "lora_embedding_B" in name)


def _equal(model: Any, base: Any) -> bool:
    theirs = base.state_dict()
    return all(torch.equal(values, theirs[name].to(values.dtype)) for name, values in model.state_dict().items())


def _nothing_learned(fact: str) -> str:
    return (
        f"training has not changed the model ({fact}), so it is not registered; look at train/grad_norm and "
        "train/frac_reward_zero_std, and at training.learning_rate with its warm-up, which begins at 0"
    )


def _requirements(peft: bool) -> list[str]:
    """What loading needs, in the versions that are installed here, without the `+cpu` of a local build."""
    packages = ["mlflow", "torch", "transformers", "accelerate", "safetensors", *(["peft"] if peft else [])]
    return [f"{package}=={version(package).partition('+')[0]}" for package in packages]


def _local(base: str, revision: str | None) -> str:
    """The folder of the base model: itself, or the hub's snapshot that has just been loaded."""
    return base if os.path.isdir(base) else snapshot_download(base, revision=revision, local_files_only=True)


if __name__ == "__main__":
    run_worker(build)
