"""The fields of TRL's `GRPOConfig` and peft's `LoraConfig`, as a table that needs neither to be read.

The flow process must refuse a wrong field at once, but importing TRL imports torch and takes ten seconds. So the
names, types, choices and defaults are written down once, in `trl_fields.json`, from the installed versions:

    python -m tasks.trl_fields        # writes the table anew after an upgrade

A test compares the table with what is installed.
"""

import dataclasses
import enum
import json
import types
import typing
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("trl_fields.json")

# What older recipes, tutorials and other libraries call it, and what to write today.
SUCCESSORS = {
    "warmup_ratio": "training.warmup_steps (a value below 1 is a share of all steps)",
    "max_prompt_length": "prompt.max_tokens",
    "num_generation": "training.num_generations",
    "group_size": "training.num_generations",
    "kl_coef": "training.beta",
    "max_new_tokens": "training.max_completion_length",
    "evaluation_strategy": "evaluation.every_steps",
    "eval_strategy": "evaluation.every_steps",
    "eval_steps": "evaluation.every_steps",
    "no_cuda": "training.use_cpu",
    "use_liger_loss": "training.use_liger_kernel",
    "vllm_importance_sampling_cap": "training.vllm_importance_sampling_clip_max",
    "use_transformers_paged": "training.use_transformers_continuous_batching",
    "vllm_device": "training.vllm_mode",
    "vllm_max_model_len": "training.vllm_max_model_length",
    "vllm_dtype": "model.dtype",
    "lora_r": "training.lora.r",
    "lora_alpha": "training.lora.lora_alpha",
    "lora_dropout": "training.lora.lora_dropout",
    "lora_target_modules": "training.lora.target_modules",
    "use_peft": "training.lora (null trains all weights)",
    "num_processes": "training.processes",
    "torch_dtype": "model.dtype",
    "reward_weights": "rewards.functions (each one's weight)",
    "model_name_or_path": "model.name",
    "trust_remote_code": "model.trust_remote_code",
}

# Fields that the pipeline itself sets, and why they are not the user's.
OWNED = {
    "output_dir": "the run folder is made per flow run",
    "overwrite_output_dir": "the run folder is made per flow run",
    "report_to": "metrics go to MLflow through the pipeline",
    "run_name": "the MLflow run is named after the flow run",
    "resume_from_checkpoint": "a retried run goes on from its newest checkpoint by itself",
    "remove_unused_columns": "rewards need the dataset's columns",
    "do_train": "stages are chosen with --until",
    "do_eval": "stages are chosen with --until",
    "do_predict": "stages are chosen with --until",
    "disable_tqdm": "progress is printed line by line",
    "load_best_model_at_end": "the best checkpoint is chosen by greedy evaluation on validation",
    "metric_for_best_model": "the best checkpoint is chosen by greedy evaluation on validation",
    "greater_is_better": "the best checkpoint is chosen by greedy evaluation on validation",
    "hub_token": "secrets come from the environment",
    "save_only_model": "a run that goes on needs the optimizer's state",
    "eval_on_start": "evaluation.every_steps scores validation before the first step",
    "auto_find_batch_size": "it breaks groups; set per_device_train_batch_size",
    "local_rank": "the launcher sets it",
    "model_init_kwargs": "the section model says how the model is loaded",
    "chat_template_kwargs": "prompt.opening uses it",
    "inference_mode": "an adapter is trained here",
    "log_completions": "they are kept in the run folder, and a table of them in MLflow",
    "num_completions_to_print": "completions are kept in the run folder, and a table of them in MLflow",
    "log_completions_hub_repo": "completions are kept in the run folder, and a table of them in MLflow",
    "push_to_hub": "a model is registered in MLflow",
    "base_model_name_or_path": "it is model.name",
}

# Fields that have one value here, whether it is written down or not.
FIXED = {"task_type": "CAUSAL_LM", "peft_type": "LORA"}

# Fields that would be passed over, or that what comes after training cannot follow, and why.
REFUSED = {
    "label_smoothing_factor": "GRPO has no labels",
    "layer_replication": "the model that it makes is another one than can be evaluated or registered",
    "alora_invocation_tokens": "an adapter that begins within a text can neither be merged nor evaluated",
    "megatron_config": "training is not by Megatron",
    "megatron_core": "training is not by Megatron",
}

# Choices that TRL documents but types as plain `str`.
TRL_CHOICES = {
    "loss_type": ["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"],
    "scale_rewards": ["group", "batch", "none"],
    "vllm_mode": ["colocate", "server"],
    "importance_sampling_level": ["token", "sequence"],
    "save_strategy": ["no", "steps", "epoch"],  # "best" follows an evaluation of TRL's own
    "log_level": ["detail", "debug", "info", "warning", "error", "critical", "passive"],
    "log_level_replica": ["detail", "debug", "info", "warning", "error", "critical", "passive"],
    "multi_objective_aggregation": ["sum_then_normalize", "normalize_then_sum"],
    "vllm_importance_sampling_mode": ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"],
    "vllm_model_impl": ["auto", "vllm", "transformers", "terratorch"],
}

# The smallest value that can work, and whether that value itself is allowed.
MINIMUM: dict[str, tuple[float, bool]] = {
    "learning_rate": (0, True),
    "weight_decay": (0, True),
    "warmup_steps": (0, True),
    "beta": (0, True),
    "epsilon": (0, False),
    "epsilon_high": (0, False),
    "delta": (0, False),
    "temperature": (0, False),
    "top_p": (0, False),
    "max_grad_norm": (0, True),
    "per_device_train_batch_size": (1, True),
    "per_device_eval_batch_size": (1, True),
    "gradient_accumulation_steps": (1, True),
    "num_generations": (2, True),
    "num_iterations": (1, True),
    "max_completion_length": (1, True),
    "steps_per_generation": (1, True),
    "generation_batch_size": (2, True),
    "num_train_epochs": (0, False),
    "logging_steps": (0, False),
    "save_steps": (0, False),
    "save_total_limit": (1, True),
    "vllm_gpu_memory_utilization": (0, False),
    "vllm_tensor_parallel_size": (1, True),
    "vllm_max_model_length": (1, True),
    "seed": (0, True),
    "data_seed": (0, True),
    "dataloader_num_workers": (0, True),
    "adam_beta1": (0, True),
    "adam_beta2": (0, True),
    "adam_epsilon": (0, True),
    "repetition_penalty": (0, False),
    "min_p": (0, True),
    "top_k": (0, True),
    "neftune_noise_alpha": (0, True),
    "r": (1, True),
    "lora_alpha": (0, False),
    "lora_dropout": (0, True),
}
# The largest value that can work, itself allowed.
MAXIMUM = {
    "adam_beta1": 1.0,
    "adam_beta2": 1.0,
    "top_p": 1.0,
    "min_p": 1.0,
    "vllm_gpu_memory_utilization": 1.0,
    "lora_dropout": 0.99,
    "learning_rate": 1.0,
}


# What TRL types as optional, and training cannot do without.
NEEDED = ("num_generations", "max_completion_length")


@cache
def table() -> dict[str, dict[str, dict[str, Any]]]:
    """`{"grpo": {field: {"types": [...], "choices": [...] | None, "default": ...}}, "lora": {...}}`.

    A field whose default is made anew for each object has none in the table.
    """
    return json.loads(TABLE.read_text(encoding="utf-8"))


def check_field(kind: str, prefix: str, name: str, value: Any) -> Any:
    """Return `value` as the field `name` of `kind` ("grpo" or "lora") takes it.

    Raises ValueError with one sentence that begins with the dotted name.
    """
    dotted = f"{prefix}.{name}"
    fields = table()[kind]
    if name in OWNED:
        raise ValueError(f"{dotted} is set by the pipeline ({OWNED[name]}); remove it")
    if kind == "lora" and name in FIXED and value != FIXED[name]:
        raise ValueError(f"{dotted} is {value!r}, but only {FIXED[name]} is trained here; remove it")
    if name in REFUSED:
        raise ValueError(f"{dotted} cannot be used here ({REFUSED[name]}); remove it")
    if name in SUCCESSORS and (kind == "grpo" or name not in fields):
        raise ValueError(f"{dotted} is not a setting any more or goes by another name: use {SUCCESSORS[name]}")
    if name not in fields:
        near = get_close_matches(name, [field for field in fields if field not in OWNED | REFUSED], n=1)
        hint = f"; did you mean {prefix}.{near[0]}?" if near else ""
        raise ValueError(f"{dotted} is not a field of {'GRPOConfig' if kind == 'grpo' else 'LoraConfig'}{hint}")
    value = _convert(dotted, value, fields[name])
    _check_range(dotted, name, value)
    return value


def _convert(dotted: str, value: Any, field: dict[str, Any]) -> Any:
    types_, choices = field["types"], field["choices"]
    if dotted.rpartition(".")[2] in NEEDED:
        types_ = [one for one in types_ if one != "null"]
    if value is None:
        if "null" not in types_:
            raise ValueError(f"{dotted} cannot be null: it must be {_words(types_)}")
        return None
    if choices is not None:
        if isinstance(value, bool) and dotted.endswith(".scale_rewards"):
            return "group" if value else "none"  # TRL's own reading of true and false
        if value not in choices:
            near = get_close_matches(str(value), choices, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ValueError(f"{dotted} is {value!r}, but must be one of {', '.join(choices)}{hint}")
        return value
    if isinstance(value, bool):
        if "bool" in types_:
            return value
    elif isinstance(value, int):
        if "int" in types_:
            return value
        if "float" in types_:
            return float(value)
    elif isinstance(value, float):
        if "float" in types_:
            return value
        if "int" in types_ and value.is_integer():
            return int(value)
    elif (
        (isinstance(value, str) and "str" in types_)
        or (isinstance(value, dict) and "dict" in types_)
        or (isinstance(value, list) and "list" in types_)
    ):
        return value
    raise ValueError(f"{dotted} is {value!r}, but must be {_words(types_)}")


def _check_range(dotted: str, name: str, value: Any) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    if name in MINIMUM:
        low, allowed = MINIMUM[name]
        if value < low or (value == low and not allowed):
            raise ValueError(f"{dotted} is {value}, but must be {'at least' if allowed else 'more than'} {low}")
    if name == "max_steps" and value < 1 and value != -1:
        raise ValueError(f"{dotted} is {value}, but must be at least 1, or -1 for as many as training.num_train_epochs")
    if name in MAXIMUM and value > MAXIMUM[name]:
        raise ValueError(f"{dotted} is {value}, but must be at most {MAXIMUM[name]:g}")
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(f"{dotted} is {value}, but must be a finite number")


def _words(types_: list[str]) -> str:
    words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text",
             "dict": "a mapping", "list": "a list", "null": "null"}  # fmt: skip
    return " or ".join(words[type_] for type_ in types_)


def _describe(annotation: Any) -> dict[str, Any]:
    """The plain types behind an annotation, and the choices where it is an enum or a Literal."""
    types_: list[str] = []
    choices: list[str] | None = None
    stack = [annotation]
    while stack:
        hint = stack.pop(0)
        origin = typing.get_origin(hint) or hint
        if origin in (typing.Union, types.UnionType):
            stack = [*typing.get_args(hint), *stack]
        elif origin is typing.Literal:
            literals = [value for value in typing.get_args(hint) if isinstance(value, str)]
            types_ += ["str"] if literals else ["bool"]
            choices = literals if hint is annotation else choices
        elif isinstance(origin, type) and issubclass(origin, enum.Enum):
            choices = [member.value for member in origin]
            types_.append("str")
        elif origin in (bool, int, float, str, dict, list):
            types_.append(origin.__name__)
        elif origin is type(None):
            types_.append("null")
        elif dataclasses.is_dataclass(origin) or isinstance(origin, type):
            types_.append("dict")  # an object that a YAML file can only give as a mapping
        else:
            raise TypeError(f"cannot describe {hint!r}")
    return {"types": sorted(set(types_)), "choices": choices}


def _default(field: dataclasses.Field[Any]) -> dict[str, Any]:
    value = field.default.value if isinstance(field.default, enum.Enum) else field.default
    return {} if value is dataclasses.MISSING else {"default": value}


def installed_table() -> dict[str, dict[str, dict[str, Any]]]:
    """The table of the installed TRL and peft (imports torch)."""
    from peft import LoraConfig
    from trl import GRPOConfig

    result: dict[str, dict[str, dict[str, Any]]] = {}
    for kind, cls in (("grpo", GRPOConfig), ("lora", LoraConfig)):
        hints = typing.get_type_hints(cls)
        fields = [field for field in dataclasses.fields(cls) if field.init]
        result[kind] = {field.name: _describe(hints[field.name]) | _default(field) for field in fields}
    for name, choices in TRL_CHOICES.items():
        result["grpo"][name]["choices"] = choices
    return result


if __name__ == "__main__":
    TABLE.write_text(json.dumps(installed_table(), indent=1) + "\n", encoding="utf-8")
    print(f"wrote {TABLE.name}")
