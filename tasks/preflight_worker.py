"""Worker: build the real `GRPOConfig` and `LoraConfig`, and find the model, before anything else is done.

Then it waits for the data, to count the tokens of the prompts: what it has imported would take seconds once more.
"""

import copy
import os
import re
import shutil
import warnings
from dataclasses import asdict, replace
from importlib.util import find_spec
from typing import Any, cast

import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import PrecisionType
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.tuners.lora.layer import ParamWrapper
from transformers import GenerationConfig, Trainer, get_scheduler
from transformers.quantizers import AutoHfQuantizer
from trl import GRPOConfig

from rewards.registry import is_model_name
from tasks.config import Config
from tasks.engine import INSTALL, choose_engine, vllm_fault
from tasks.errors import UserError, first_line
from tasks.estimate import Architecture
from tasks.machine import measure
from tasks.models import check_prompt, load_architecture, load_empty, load_tokenizer, pick_dtype, resolve_model
from tasks.prompt_tokens import count_tokens
from tasks.reward_models import check_reward_model
from tasks.training_arguments import grpo_config, lora_config, weights_dtype
from tasks.vllm_server import healthy
from tasks.worker import run_worker

# Optimizers that are made for the modules of a model, which one weight has not, and their packages.
OF_WHOLE_MODELS = {"galore": "galore_torch", "apollo": "apollo_torch", "lomo": "lomo_optim", "adalomo": "lomo_optim"}
OTHERS_GIB = 0.5  # logs, completions, results and the metrics of a run


def preflight(job: dict[str, Any]) -> dict[str, Any]:
    """Fail early, with a sentence, on what only torch, TRL or the model can tell; else say what there is.

    What concerns training alone is left out where the flow does not train (`job["trains"]`).
    """
    config = Config.model_validate(job["config"])
    check_device(config)
    if job["trains"]:
        check_training_devices(config)
        check_launch(config)
        check_vllm(config)
        check_server(config)
        check_precision(config)
        judges = check_reward_models(config)
        # Here is one process; the groups are to divide what all of them take together.
        batch = config.training.step_size
        try_out(grpo_config(config, output_dir=job["scratch"], per_device_train_batch_size=batch), config)
    dtype = pick_dtype(config.model, config.training.on_cpu)
    model = resolve_model(config.model)
    tokenizer = load_tokenizer(model["path"], config.model, config.prompt)
    check_prompt(tokenizer, config.model, config.prompt)
    architecture = load_architecture(model["path"], config.model)
    engine, why = choose_engine(config)
    check_quantized(config, architecture, engine, job["trains"])
    empty = load_empty(model["path"], architecture, config.model)
    check_vocabulary(tokenizer, empty, config)
    if not config.training.on_cpu and getattr(architecture, "quantization_config", None) is None:
        memory = torch.cuda.get_device_properties(0).total_memory / 2**30
        check_evaluation(config, engine, sum(weight.numel() for weight in empty.parameters()) * dtype.itemsize, memory)
    print(f"model {model['path']} ({architecture.model_type}) in {dtype}, evaluated with {engine}: {why}", flush=True)
    found = {
        "model": model | {"dtype": str(dtype).removeprefix("torch.")},
        "engine": engine,
        "gpus": torch.cuda.device_count(),
        "disk_gib": OTHERS_GIB,
        "positions": positions(architecture.get_text_config()),
    }
    if job["trains"]:
        if not architecture.architectures:
            raise UserError(
                f"model.name: config.json of {config.model.name} does not say by which class the model is trained "
                "(architectures); save the model anew with save_pretrained"
            )
        sizes = replace(check_lora(lora_config(config), empty, architecture, config), reward_weights=judges)
        saved = architecture.dtype or architecture.get_text_config().dtype or torch.float32
        found |= {
            "disk_gib": disk_gib(sizes, config, saved.itemsize),
            "architecture": asdict(sizes),
            "machine": asdict(measure(dtype, config.training.on_cpu)),
        }
    return found


def check_device(config: Config) -> None:
    gpus, use_cpu = torch.cuda.device_count(), config.training.on_cpu
    if not use_cpu and gpus == 0:
        driver = ""
        if shutil.which("nvidia-smi") and torch.version.cuda and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
            driver = f" (of NVIDIA's driver, which it has, torch {torch.__version__} may need a newer version)"
        raise UserError(
            f"this machine has no GPU that torch can use{driver}; set training.use_cpu=true to take the CPU"
        )
    if not use_cpu and config.evaluation_processes > gpus:
        raise UserError(
            f"evaluation.processes is {config.evaluation_processes}, but this machine has {gpus} GPUs; "
            f"set evaluation.processes={gpus}"
        )


def check_evaluation(config: Config, engine: str, weights: int, memory_gib: float) -> None:
    """Raise UserError where the model's `weights`, in bytes, cannot be held by one GPU, as every evaluation does."""
    share = config.evaluation.vllm_memory if engine == "vllm" else 1.0
    if weights / 2**30 > share * memory_gib:
        of_it = f", of which vLLM takes {share:g} (evaluation.vllm_memory)" if engine == "vllm" else ""
        raise UserError(
            f"an evaluation holds the whole model on one GPU: the weights of {config.model.name} take "
            f"{weights / 2**30:.1f} GiB, and a GPU has {memory_gib:.1f}{of_it}; take a smaller model, or larger GPUs"
        )


def check_training_devices(config: Config) -> None:
    gpus, use_cpu = torch.cuda.device_count(), config.training.on_cpu
    serving = config.training.vllm_server.gpus if config.training.vllm_server else 0
    wanted = config.training.processes + serving
    if not use_cpu and wanted > gpus:
        beside = f", and training.vllm_server.gpus {serving} beside them" if serving else ""
        raise UserError(
            f"training.processes is {config.training.processes}{beside}, but this machine has {gpus} GPUs; "
            f"set training.processes={max(1, gpus - serving)}{' and fewer for the server' if serving >= gpus else ''}"
        )


def check_launch(config: Config) -> None:
    """Raise UserError where `accelerate launch` could not read the user's configuration of it."""
    path = config.training.accelerate_config
    if path is None:
        return
    try:
        chosen = load_config_from_file(str(path))
    except Exception as error:  # YAML's and JSON's mistakes, fields that it lacks or that there are none of …
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"training.accelerate_config: accelerate cannot read {path} ({reason}); mend it, or write another one by "
            f"accelerate config --config_file {path}"
        ) from None
    if (getattr(chosen, "num_machines", None) or 1) > 1:
        raise UserError(
            f"training.accelerate_config: {path} asks for {chosen.num_machines} machines, but a run trains on the one "
            "that its worker is on; set num_machines: 1"
        )
    precision = chosen.mixed_precision
    if precision is not None and str(precision).lower() not in list(PrecisionType):
        advice = "quote it" if isinstance(precision, bool) else "correct it"
        raise UserError(
            f"training.accelerate_config: {path} asks for mixed_precision {precision!r}, which is none of "
            f"{', '.join(PrecisionType)}; {advice}"
        )
    if str(getattr(chosen.distributed_type, "value", "")) == "DEEPSPEED" and find_spec("deepspeed") is None:
        raise UserError(
            f"training.accelerate_config: {path} asks for DeepSpeed, which is not installed; pip install deepspeed, or "
            "take another one"
        )


def check_vllm(config: Config) -> None:
    if config.training.vllm and (fault := vllm_fault(config.training.on_cpu)):
        raise UserError(f"training.use_vllm is set, but {fault}; {INSTALL}, or set training.use_vllm=false")


def check_vocabulary(tokenizer: Any, model: Any, config: Config) -> None:
    """Raise UserError where the model has no place for tokens that every completion needs."""
    try:
        places = model.get_input_embeddings().weight.shape[0]
    except (AttributeError, NotImplementedError):  # of a model with code of its own
        return
    for name in ("eos_token", "pad_token"):
        if (token := getattr(tokenizer, f"{name}_id")) >= places:
            raise UserError(
                f"model.name: the tokenizer of {config.model.name} has {getattr(tokenizer, name)!r} ({name}) as token "
                f"{token}, but the model knows {places}; save the tokenizer that belongs to the model beside it"
            )


def check_quantized(config: Config, architecture: Any, engine: str, trains: bool) -> None:
    """Raise UserError for what cannot be done with quantized weights: they can carry an adapter, and nothing more."""
    settings: Any = getattr(architecture, "quantization_config", None)
    if settings is None:
        return
    values = settings if isinstance(settings, dict) else settings.to_dict()
    method = getattr(values.get("quant_method"), "value", values.get("quant_method"))
    if trains or engine == "transformers":  # vLLM has code of its own for most ways to quantize
        try:
            quantizer = AutoHfQuantizer.from_config(settings, pre_quantized=True)
            quantizer.validate_environment(device_map=None if config.training.on_cpu else {"": 0})
        except Exception as error:  # of a method that it does not know, or of a package that is not installed
            raise UserError(
                f"model.name: the weights of {config.model.name} are quantized ({method}) in a way that transformers "
                f"cannot read here ({first_line(error, 300)}); install what is missing, or take a model that is not "
                "quantized"
            ) from None
    of_it = f"the weights of {config.model.name} are quantized ({method})"
    if trains:
        if config.training.lora is None:
            raise UserError(f"training.lora: {of_it}, so only an adapter can be trained; give training.lora")
        if config.training.vllm:
            raise UserError(
                f"training.use_vllm: {of_it}, so vLLM cannot be sent them merged with an adapter; set "
                "training.use_vllm=false"
            )
        if config.registry.merged:
            raise UserError(
                f"registry.merged: {of_it}, so an adapter merged into them would be rounded away; set "
                "registry.merged=false"
            )
    if engine == "vllm" and method == "bitsandbytes":
        raise UserError(f"evaluation.engine: {of_it}, which vLLM does not read; set evaluation.engine=transformers")


def check_precision(config: Config) -> None:
    """A whole model's weights can be trained in 16 bits only with a loss, or not at all."""
    dtype = weights_dtype(config)
    if config.training.lora is not None or dtype == torch.float32:
        return
    if dtype == torch.float16:
        raise UserError(
            "model.dtype=float16 with training.lora=null cannot be trained, since gradients in float16 cannot be "
            "scaled; leave model.dtype to auto, which keeps the weights in float32 and computes in what the GPU can"
        )
    print(
        "WARNING model.dtype=bfloat16 with training.lora=null: updates of the size of a learning rate are rounded away "
        "from most weights; auto keeps them in float32 and computes in bfloat16 all the same",
        flush=True,
    )


def check_reward_models(config: Config) -> int:
    """How many weights the reward models have together. Raises UserError for one that only the trainer would miss."""
    weights = 0
    for reward in config.rewards.functions:
        if not is_model_name(reward.name):
            continue
        weights += check_reward_model(reward.name, config.model.trust_remote_code)
        print(
            f"WARNING the reward model {reward.name} counts in training alone; validation, evaluation and promotion go "
            "by the other rewards",
            flush=True,
        )
    return weights


def check_server(config: Config) -> None:
    """A server needs GPUs on both sides, and one that the user has started must be there."""
    if config.training.vllm != "server":
        return
    if config.training.on_cpu:
        raise UserError(
            "training.vllm_mode is server, but weights are sent to a server from GPU to GPU only; on a CPU set "
            f"training.vllm_mode=colocate{' and training.vllm_server=null' if config.training.vllm_server else ''}"
        )
    if config.training.vllm_server:
        return
    training = config.training
    host, port = training.trl("vllm_server_host"), training.trl("vllm_server_port")
    address = training.trl("vllm_server_base_url") or f"http://{host}:{port}"
    if not healthy(address):
        raise UserError(
            f"training.vllm_mode is server, but no vLLM server answers at {address}; start it (trl vllm-serve --model "
            f"{config.model.name}), correct training.vllm_server_host and _port, or let the pipeline start one with "
            "training.vllm_server={gpus: 1}"
        )


def try_out(arguments: GRPOConfig, config: Config) -> None:
    """Raise UserError for values that the trainer comes upon only when it begins: optimizer and schedule of one weight,
    and the settings of generation."""
    optimizer_name = str(getattr(arguments.optim, "value", arguments.optim))
    package = next((needed for name, needed in OF_WHOLE_MODELS.items() if optimizer_name.startswith(name)), None)
    if package and find_spec(package) is None:
        raise UserError(f"training.optim={optimizer_name} needs the package {package}; pip install it, or take another")
    weight: Any = torch.nn.Linear(1, 1)
    schedule, generation = cast(Any, arguments.lr_scheduler_kwargs), cast(Any, arguments.generation_kwargs)
    try:
        kind, options = (torch.optim.SGD, {}) if package else Trainer.get_optimizer_cls_and_kwargs(arguments, weight)
        optimizer = kind(weight.parameters(), **options)
        steps = arguments.max_steps if arguments.max_steps > 0 else 100
        warm_up = arguments.get_warmup_steps(steps)
        rate: Any = get_scheduler(arguments.lr_scheduler_type, optimizer, warm_up, steps, schedule or None)
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "cache_implementation")
        GenerationConfig(
            **({"do_sample": True} | {name: getattr(arguments, name) for name in names} | (generation or {}))
        )
    except Exception as error:  # whatever a value leads to, a package that is not installed among it
        raise UserError(f"training cannot begin with these settings: {error}; correct the section training") from None
    of_transformers = set(GenerationConfig().to_dict()) | {"cache_implementation"}
    if unknown := [] if config.training.vllm else sorted(set(generation or {}) - of_transformers):
        raise UserError(
            f"training.generation_kwargs has {unknown[0]}, which transformers' GenerationConfig does not know; correct "
            "it (vLLM's names count with training.use_vllm=true)"
        )
    if arguments.learning_rate > 0 and never_above_zero(rate, steps):
        raise UserError(
            f"training.max_steps={steps} with training.warmup_steps={arguments.warmup_steps:g} leaves the learning "
            "rate at 0 in every step, so nothing would be learned; take more steps, or training.warmup_steps=0"
        )
    if arguments.use_liger_kernel and find_spec("liger_kernel") is None:
        raise UserError("training.use_liger_kernel needs liger-kernel; pip install it, or set it to false")
    if arguments.sync_ref_model and arguments.beta == 0:
        raise UserError("training.sync_ref_model needs a reference model, so a training.beta above 0; set one of them")
    if arguments.sync_ref_model and config.training.lora is not None:
        raise UserError(
            "training.sync_ref_model needs a reference model of its own, and with training.lora the model without its "
            "adapter is the reference; remove one of them"
        )


def never_above_zero(rate: Any, steps: int) -> bool:
    """Whether a schedule of the learning rate gives 0 to each of so many optimizer steps."""
    for _ in range(steps):
        if any(group["lr"] > 0 for group in rate.optimizer.param_groups):
            return False
        rate.optimizer.step()
        rate.step()
    return True


def check_lora(lora: LoraConfig | None, model: Any, of: Any, config: Config) -> Architecture:
    """The model's sizes. peft says that a target module is missing only when it meets the whole model, so both are
    found out on the empty one."""
    weights = sum(weight.numel() for weight in model.parameters())
    computed = pick_dtype(config.model, config.training.on_cpu).itemsize
    held = weights_dtype(config).itemsize
    if lora is not None:
        for name in lora.modules_to_save or []:
            if not any(module.endswith(name) for module, _ in model.named_modules()):
                raise UserError(
                    f"training.lora.modules_to_save: {config.model.name} has no module {name!r}; correct it"
                )
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model = get_peft_model(model, copy.deepcopy(lora))  # which peft may rewrite
            except Exception as error:  # a broken regular expression, a way to begin that needs more than weights …
                raise UserError(f"training.lora does not fit {config.model.name}: {error}") from None
        check_embeddings(model.get_base_model(), getattr(of.get_text_config(), "tie_word_embeddings", False), config)
        check_patterns(lora, model, config)
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
        bytes_per_weight=computed,
        bytes_per_held=held,
        # peft keeps adapters in 32 bits; without one it is the model's own weights, of which autocast makes copies.
        bytes_per_trained=16 if lora is not None else 3 * held + (computed if computed < held else 0),
    )


def check_patterns(asked: LoraConfig, model: Any, config: Config) -> None:
    """Raise UserError for a rank, a scale or weights for what has no adapter; peft passes over them.

    `model` is the one with the adapter. For mixtures of experts peft rewrites what was asked for by older names.
    """
    in_force = model.peft_config["default"]
    layers = {name: one for name, one in model.get_base_model().named_modules() if isinstance(one, LoraLayer)}
    parameters = {
        f"{re.sub(r'(.base_layer)+$', '', name)}.{layer.parameter_name}"
        for name, layer in layers.items()
        if isinstance(layer, ParamWrapper)
    }
    adapted = {name for name, layer in layers.items() if not isinstance(layer, ParamWrapper)}
    for field in ("rank_pattern", "alpha_pattern"):
        patterns = getattr(asked, field) or {}
        for pattern in patterns if getattr(in_force, field) == patterns else ():
            if not any(re.match(rf"(.*\.)?({pattern})$", name) for name in adapted | parameters):  # as peft matches
                raise UserError(
                    f"training.lora.{field}: no module of {config.model.name} with an adapter is called {pattern!r}; "
                    "correct it"
                )
    wanted = asked.target_parameters or []
    for name in wanted if set(in_force.target_parameters or []) == set(wanted) else ():
        if not any(f".{one}".endswith(f".{name}") for one in parameters):
            raise UserError(
                f"training.lora.target_parameters: {config.model.name} has no weights {name!r} that could have an "
                "adapter; correct it"
            )


def check_embeddings(model: Any, tied: bool, config: Config) -> None:
    """Raise UserError where the adapter trains the embedding or the output layer in a way that would be lost.

    Where the two are `tied` they are one matrix, and an adapter of one of them makes them two, which neither a merged
    model nor vLLM has.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import ModulesToSaveWrapper, TrainableTokensWrapper

    embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    if isinstance(output, BaseTunerLayer):
        raise UserError(
            "training.lora.target_modules has the output layer (lm_head), an adapter of which TRL does not train; take "
            "it out"
        )
    if not tied:
        return
    shared = f"{config.model.name} has one matrix as embedding and output layer (tie_word_embeddings)"
    if isinstance(embedding, BaseTunerLayer):
        raise UserError(
            f"training.lora.target_modules has the embedding, but {shared}, and merged with an adapter of one of them "
            "it would be another model than was trained; take it out"
        )
    if isinstance(embedding, TrainableTokensWrapper):
        raise UserError(f"training.lora.trainable_token_indices is set, but {shared}, for which TRL has no code")
    if config.training.vllm and any(isinstance(one, ModulesToSaveWrapper) for one in (embedding, output)):
        raise UserError(
            f"training.lora.modules_to_save has the embedding or the output layer, but {shared}, and vLLM would go on "
            "with the old one; take it out, or set training.use_vllm=false"
        )


def positions(text: Any) -> int | None:
    """The most tokens that the model has room for, where its configuration says so and does not stretch them."""
    rope = getattr(text, "rope_parameters", None) or {}
    return None if rope.get("rope_type", "default") != "default" else getattr(text, "max_position_embeddings", None)


def disk_gib(sizes: Architecture, config: Config, saved: int) -> float:
    """About how much disk a run takes, in GiB; `saved` are the bytes of a weight in the start model's files.

    A checkpoint holds the trained weights and Adam's two moments; one more than are kept exists while it is written.
    The chosen weights are kept beside them. At the end the merged model is built, and copied where MLflow keeps it; the
    one that was evaluated is gone by then.
    """
    training = config.training
    kept = training.trl("save_total_limit") or 1  # with null all are kept, and it cannot be known how many that will be
    whole = config.training.lora is None
    trained = sizes.trained * (sizes.bytes_per_held if whole else 4)
    checkpoints = 0 if training.trl("save_strategy") == "no" else (kept + 1) * 3 * trained
    has_merged = whole or config.registry.merged
    merged = 2 * sizes.weights * (sizes.bytes_per_held if whole else saved) if has_merged else 0
    return (checkpoints + trained + merged) / 2**30 + OTHERS_GIB


if __name__ == "__main__":
    run_worker(preflight, count_tokens)
