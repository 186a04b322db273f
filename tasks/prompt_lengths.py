"""Part of the data gate: how many tokens the prompts have, against the configured limit.

It needs the model's tokenizer, so it waits until preflight has found the model, and is done by the preflight's worker.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tasks.config import Config
from tasks.dataset import SPLITS
from tasks.errors import UserError
from tasks.preflight import PreflightWorker
from tasks.run import digest, read_json, source_digest, stored, write_json


def prompt_lengths(
    config: Config,
    data: dict[str, Any],
    found: dict[str, Any],
    worker: PreflightWorker,
    on_line: Callable[[str], None],
    splits: Sequence[str] = SPLITS,
) -> dict[str, Any]:
    """For each split {min, median, mean, max} of the prompts in tokens, and how many are above `prompt.max_tokens`.

    `found` is what the preflight has found, and `splits` are those that the flow uses. Raises UserError where longer
    prompts must stop the run, where a prompt leaves no room for its completion, or where too few are short enough to
    train on.
    """
    model = found["model"]

    def make(folder: Path) -> None:
        job = {"config": config.dump(), "data": data["folder"], "model": model["path"]}
        write_json(folder / "lengths.json", worker.ask("prompt_lengths", job))

    key = digest(
        {
            "data": data["digest"],
            "model": model["identity"],
            "prompt": config.prompt.model_dump(mode="json"),
            "code": source_digest("tasks/prompts.py", "tasks/prompt_tokens.py"),
        }
    )
    counted = read_json(stored("prompt_lengths", key, make) / "lengths.json")
    lengths = {split: counted[split] for split in splits}
    limit = config.prompt.max_tokens
    for split, sizes in lengths.items():
        above = "" if limit is None else f", {sizes['too_long']} longer than {limit}"
        on_line(f"{split}: prompts of {sizes['min']} to {sizes['max']} tokens (median {sizes['median']:g}){above}")
        if sizes["too_long"] == sizes["prompts"]:
            raise UserError(
                f"every prompt of {split} is longer than prompt.max_tokens ({limit}); the shortest has {sizes['min']}: "
                "raise it, or shorten the system prompt or the examples"
            )
        if sizes["too_long"] and config.prompt.on_too_long == "stop":
            rows = ", ".join(f"row {row} ({tokens})" for row, tokens in sizes["first"])
            raise UserError(
                f"{split}: {sizes['too_long']} of {sizes['prompts']} prompts are longer than prompt.max_tokens "
                f"({limit}), the first {rows}; raise it, or set prompt.on_too_long=drop"
            )
    require_room(config, lengths, found["positions"])
    if "train" in lengths:
        _require_a_batch(config, lengths["train"])
    return lengths


def require_room(config: Config, lengths: dict[str, Any], positions: int | None) -> None:
    """Raise UserError where a prompt and its completion are longer together than what generates can hold: vLLM while it
    trains and validates, which would cut the completion short or end, and the model, which has `positions`."""
    training, limit = config.training, config.prompt.max_tokens
    room = training.trl("vllm_max_model_length") if config.training.vllm and "train" in lengths else None
    if room and positions and room > positions:
        raise UserError(
            f"training.vllm_max_model_length is {room}, but {config.model.name} has room for {positions} tokens; "
            "lower it"
        )
    for split, sizes in lengths.items():
        if split == "validation" and not config.evaluation.every_steps:
            continue
        trained = split == "train" or config.evaluation.max_new_tokens is None
        setting = "training.max_completion_length" if trained else "evaluation.max_new_tokens"
        completion = training.trl("max_completion_length") if split == "train" else config.max_new_tokens
        longest = min(sizes["max"], limit or sizes["max"])
        needed = f"{split}: the longest prompt has {longest} tokens and a completion up to {completion}"
        if positions and longest + completion > positions:
            raise UserError(
                f"{needed}, but {config.model.name} has room for {positions} in all; lower {setting} or "
                "prompt.max_tokens"
            )
        if room and split != "test" and longest + completion > room:
            raise UserError(
                f"{needed}, more than training.vllm_max_model_length ({room}) holds; raise that to "
                f"{longest + completion}, or lower {setting} or prompt.max_tokens"
            )


def _require_a_batch(config: Config, train: dict[str, Any]) -> None:
    """TRL leaves out what does not fill a generation batch, so with less there would be no step at all."""
    group, batch = config.training.trl("num_generations"), config.training.generation_batch
    left, needed = train["prompts"] - train["too_long"], batch // group
    if left < needed:
        raise UserError(
            f"train has {left} prompts, but one generation batch takes {needed} ({batch} completions in groups of "
            f"{group}); give more questions (data.max_samples, prompt.max_tokens), or generate fewer completions at a "
            "time (training.steps_per_generation, training.gradient_accumulation_steps, "
            "training.per_device_train_batch_size)"
        )
