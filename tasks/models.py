"""Finding, converting and loading models and tokenizers. Needs torch, so only worker programs import it."""

import hashlib
import importlib.util
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    GenerationConfig,
)
from transformers.utils import cached_file, has_file

from tasks.config import ModelSettings, PromptSettings
from tasks.errors import UserError, first_line, is_disk_full
from tasks.model_folder import folder_digest
from tasks.prompts import build_prompt, encode, teach_opening
from tasks.run import require_disk, stored

# What a model that sees too needs beside its tokenizer, above all where vLLM loads it.
PROCESSORS = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
SAFE_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def resolve_model(settings: ModelSettings) -> dict[str, Any]:
    """Where the weights are and which they are: `{"path", "identity", "revision"}`.

    `path` is a local folder or a hub id; `identity` is the same for the same weights (a digest, or the hub's commit);
    `revision` is that commit, and None for a folder.
    A GGUF file is converted once, into the store. Raises UserError for a model that cannot be found or read.
    """
    if settings.name.startswith("gguf:"):
        return _converted(settings.name)
    if settings.name.startswith("models:/"):
        raise UserError(
            f"model.name: {settings.name} is a version in MLflow, which flows.evaluate scores by --model; to train on "
            "from it, fetch it (mlflow artifacts download) and give the folder model/ in it"
        )
    folder = Path(settings.name).expanduser()
    if folder.is_dir():
        if settings.revision:
            raise UserError(
                f"model.revision is {settings.revision!r}, but model.name is the folder {folder}, which has none; set "
                "model.revision=null"
            )
        found: dict[str, Any] = {"path": str(folder.absolute()), "identity": folder_digest(folder), "revision": None}
        load_architecture(found["path"], settings)
    else:
        architecture = load_architecture(settings.name, settings)
        commit = getattr(architecture, "_commit_hash", None)
        found = {"path": settings.name, "identity": f"{settings.name}@{commit}", "revision": commit}
    if not has_safe_weights(found["path"], found["revision"]):
        raise has_no_safe_weights(f"model.name: {settings.name}")
    return found


def has_safe_weights(path: str, revision: str | None) -> bool:
    """Whether a folder, or a model of the hub, holds its weights as safetensors."""
    whole, index = SAFE_WEIGHTS
    if has_file(path, whole, revision=revision):
        return True
    listed = cached_file(path, index, revision=revision, _raise_exceptions_for_missing_entries=False)
    if listed is None:
        return False
    files = json.loads(Path(listed).read_text(encoding="utf-8"))["weight_map"].values()
    return all(name.endswith(".safetensors") for name in files)


def has_no_safe_weights(what: str) -> UserError:
    """What to tell the user of a model without such weights."""
    return UserError(
        f"{what} has no weights as safetensors ({SAFE_WEIGHTS[0]}); pickled ones can run code as they are loaded and "
        "are not read: save the model with save_pretrained, or take another"
    )


def load_architecture(path: str, settings: ModelSettings) -> Any:
    """The model's own configuration. Raises UserError for a model that is not there, or needs code of its own."""
    try:
        return AutoConfig.from_pretrained(
            path, revision=_revision(path, settings), trust_remote_code=settings.trust_remote_code
        )
    except Exception as error:  # of the hub, of transformers' look at each value, or of whatever code comes with it
        if is_disk_full(error):
            raise
        if "trust_remote_code" in str(error):
            raise UserError(
                f"model.name: {settings.name} comes with Python code of its own, which is not run unasked; read it, "
                "and set model.trust_remote_code=true"
            ) from None
        if os.path.isdir(path):
            raise UserError(f"model.name: the folder {path} cannot be read as a model: {first_line(error)}") from None
        # Where it is no name for the hub, that explains at length what would be one.
        why = "" if "Repo id must be" in str(error) else f" ({first_line(error)})"
        raise UserError(
            f"model.name: {settings.name!r} is neither a folder here nor a model that the hub gives{why}; check the "
            "spelling, the access, or give a local folder"
        ) from None


def load_tokenizer(path: str, settings: ModelSettings, prompt: PromptSettings) -> Any:
    """The tokenizer, padded on the left as generation needs it, with the prompt's opening taught.

    Raises UserError for one that cannot be read, or not be used for such prompts.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path,
            revision=_revision(path, settings),
            trust_remote_code=settings.trust_remote_code,
            padding_side="left",
            truncation_side="left",
        )
    except Exception as error:  # of its parser, which raises plain ones, or of whatever a file leads it to
        if isinstance(error, OSError) and "connect" in str(error):  # to the hub, which may heal
            raise
        raise UserError(
            f"model.name: the tokenizer of {settings.name} cannot be read ({first_line(error)}); save it beside "
            "the weights with save_pretrained, or take another model"
        ) from None
    # By it transformers' pipelines and TRL would parse a completion into a structure, of which rewards know nothing.
    tokenizer.response_template = None
    if prompt.conversational and not tokenizer.chat_template:
        raise UserError(
            f"the tokenizer of {settings.name} has no chat template; set prompt.conversational to false, "
            "or use an instruction-tuned model"
        )
    teach_opening(tokenizer, prompt)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.eos_token is None:
        raise UserError(
            f"model.name: the tokenizer of {settings.name} has no token for the end of a text (eos_token), so no "
            "completion would end; set it and save the tokenizer again, or take another model"
        )
    return tokenizer


def check_prompt(tokenizer: Any, settings: ModelSettings, prompt: PromptSettings) -> None:
    """Raise UserError where the chat template cannot write the prompts, as one without a system role, or leaves the
    question out."""
    try:
        one, other = encode([build_prompt(text, prompt) for text in ("How many?", "And why?")], tokenizer, prompt)
    except Exception as error:  # what a template raises is up to whoever wrote it
        system = ", and prompt.system to null if it takes no system prompt" if prompt.system else ""
        raise UserError(
            f"the chat template of {settings.name} cannot write the prompt ({first_line(error)}); mend the "
            f"template, or set prompt.conversational to false{system}"
        ) from None
    if one == other:
        raise UserError(
            f"the chat template of {settings.name} leaves the question out: two questions give the same prompt; mend "
            "the template, or set prompt.conversational to false"
        )


def model_class(architecture: Any) -> Any:
    """The class that a model is loaded as: the one that TRL trains, which the names of an adapter's weights belong to.

    It is that which the model's configuration names first, as `trl.trainer.utils.create_model_from_path` has it; for a
    model that sees too, such as Qwen3.5, AutoModelForCausalLM would take its part for text, under other names.
    """
    named = (architecture.architectures or [""])[0]
    if known := getattr(transformers, named, None):
        return known
    mapped = getattr(architecture, "auto_map", None) or {}
    return AutoModelForImageTextToText if AutoModelForImageTextToText.__name__ in mapped else AutoModelForCausalLM


def load(path: str, settings: ModelSettings, dtype: torch.dtype | Literal["auto"]) -> Any:
    """The model, from safetensors only; the dtype "auto" is the one that it was saved in.

    Raises UserError where weights are missing, which would be drawn at random.
    """
    loaded: Any = model_class(load_architecture(path, settings)).from_pretrained(
        path, **load_arguments(path, settings, dtype), output_loading_info=True
    )
    model, found = loaded
    _refuse_missing(found, settings)
    forget_ways(model)
    return model


def load_model(path: str, settings: ModelSettings, use_cpu: bool) -> Any:
    """`load` in the dtype of `pick_dtype`, on the CPU."""
    return load(path, settings, pick_dtype(settings, use_cpu))


def copy_processors(path: str, settings: ModelSettings, folder: Path) -> None:
    """Copy to `folder` what the model at `path` has beside its tokenizer to read its input by, if anything."""
    for name in PROCESSORS:
        found = cached_file(path, name, revision=_revision(path, settings), _raise_exceptions_for_missing_entries=False)
        if found is not None:
            shutil.copyfile(found, folder / name)


def forget_ways(model: Any) -> None:
    """Reduce the model's `generation_config` to its tokens.

    A model may bring ways of its own to generate (Qwen2.5 a penalty of repetitions, 1.1), which `generate` would heed
    wherever it is given no other value, in training and in evaluation, while vLLM knows of none. What is registered
    answers as it was evaluated. (And where a temperature is named without sampling, transformers would not save what it
    has loaded.)
    """
    own = model.generation_config
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    plain = GenerationConfig(**{name: getattr(own, name) for name in names})
    getattr(model, "get_base_model", lambda: model)().generation_config = plain


def load_empty(path: str, architecture: Any, settings: ModelSettings) -> Any:
    """The model without its weights, on torch's meta device.

    Raises UserError for one that is no causal language model, or, where it is a folder of plain weights, for weights
    that are damaged or not those that its configuration means.
    """
    kind = model_class(architecture)
    # A hub model's weights would have to be fetched first, and quantized ones need their own package and a GPU.
    read = os.path.isdir(path) and not getattr(architecture, "quantization_config", None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, found = _meta_weights(path, kind, settings) if read else (_meta(kind, architecture, settings), {})
    except ValueError as error:
        raise UserError(f"model.name: {settings.name} is no causal language model ({first_line(error)})") from None
    except Exception as error:  # whatever sizes that do not go together, or code of its own, lead to
        what = "the weights" if isinstance(error, OSError | KeyError | RuntimeError | SafetensorError) else "the model"
        raise UserError(
            f"model.name: {what} in {path} cannot be loaded ({first_line(error)}); copy or save the model anew"
        ) from None
    if not model.can_generate() or architecture.is_encoder_decoder:
        raise UserError(f"model.name: {settings.name} is no causal language model, but a {type(model).__name__}")
    if read:
        _check_weights(path, found, settings)
    return model


def _meta(kind: Any, architecture: Any, settings: ModelSettings) -> Any:
    with torch.device("meta"):
        if hasattr(kind, "from_config"):
            return kind.from_config(architecture, trust_remote_code=settings.trust_remote_code)
        return kind(architecture)


def _meta_weights(path: str, kind: Any, settings: ModelSettings) -> Any:
    return kind.from_pretrained(
        path,
        device_map="meta",
        trust_remote_code=settings.trust_remote_code,
        use_safetensors=True,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )


def _check_weights(path: str, found: dict[str, Any], settings: ModelSettings) -> None:
    _refuse_missing(found, settings)
    if wrong := sorted(found["mismatched_keys"], key=str):
        name, kept, meant = wrong[0]
        raise UserError(
            f"model.name: in {path} the weights {name} have the size {list(kept)}, but config.json means "
            f"{list(meant)}; copy or save the model anew"
        )
    if left_out := sorted(found["unexpected_keys"]):
        more = f" and {len(left_out) - 1} others" if len(left_out) > 1 else ""
        print(f"WARNING {path} holds the weights {left_out[0]}{more}, which config.json does not mean", flush=True)


def _refuse_missing(found: dict[str, Any], settings: ModelSettings) -> None:
    if missing := sorted(found["missing_keys"]):
        more = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise UserError(
            f"model.name: {settings.name} lacks the weights {missing[0]}{more}, which would be drawn at random; copy "
            "or save the model anew"
        )


def load_arguments(path: str, settings: ModelSettings, dtype: torch.dtype | Literal["auto"]) -> dict[str, Any]:
    """Keyword arguments of `from_pretrained` for the model; "auto" is the dtype that it was saved in."""
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "revision": _revision(path, settings),
        "trust_remote_code": settings.trust_remote_code,
        "use_safetensors": True,
    }


def engine_arguments(path: str, settings: ModelSettings, use_cpu: bool) -> dict[str, Any]:
    """Keyword arguments of `vllm.LLM` for the precision and the revision that everything else has the model in."""
    revision = _revision(path, settings)
    dtype = str(pick_dtype(settings, use_cpu)).removeprefix("torch.")
    return {"dtype": dtype, "revision": revision, "tokenizer_revision": revision}


def pick_dtype(settings: ModelSettings, use_cpu: bool) -> torch.dtype:
    """The dtype that `model.dtype` names; auto takes what the device computes in."""
    if settings.dtype != "auto":
        return getattr(torch, settings.dtype)
    if torch.cuda.is_available() and not use_cpu:
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    computes_in_bfloat16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if computes_in_bfloat16 else torch.float32


def _revision(path: str, settings: ModelSettings) -> str | None:
    return None if os.path.isdir(path) else settings.revision


def _converted(name: str) -> dict[str, Any]:
    """transformers reads a GGUF file but refuses to save what it read, so the weights move into a plain model."""
    package, _, file = name.removeprefix("gguf:").partition("/")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"model.name: {name} needs the package {package!r}, which is not installed; pip install it")
    source = Path(spec.submodule_search_locations[0]) / file
    if not source.is_file():
        raise UserError(f"model.name: the package {package} holds no file {file!r}")
    key = hashlib.sha256(source.read_bytes() + b"bfloat16, version 1").hexdigest()

    def convert(folder: Path) -> None:
        require_disk(folder, 2 + 8 * source.stat().st_size / 2**30, f"converting {source.name}")
        where: dict[str, Any] = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
        try:
            loaded = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.bfloat16)
        except (ValueError, OSError, KeyError) as error:  # of its reader
            raise UserError(
                f"model.name: {source} cannot be read as a GGUF model ({first_line(error)}); give another file"
            ) from None
        config = loaded.config
        del config.quantization_config
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        plain.load_state_dict(loaded.state_dict())
        plain.tie_weights()
        plain.save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(**where)
        # The file names the token that begins a turn as the end of one; the model's own config is right.
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(config.eos_token_id)
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(config.pad_token_id)
        tokenizer.save_pretrained(folder)

    return {"path": str(stored("models", key, convert)), "identity": key, "revision": None}
