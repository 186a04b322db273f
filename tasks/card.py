"""The model card: what the model is, from what it was made, and what is known about how good it is."""

import json

import yaml

from tasks.config import Config
from tasks.markdown import code, fence
from tasks.outcome import Outcome
from tasks.report import before_after_table, memory_note
from tasks.tracking import without_password

MOST = 5000  # characters of a version's description, in MLflow's database


def facts(config: Config, outcome: Outcome) -> str:
    """Scores, data and training, as Markdown: what the card and the version's description share."""
    data, trained = outcome.data, outcome.trained
    rewards = [
        f"- {code(one.name)} × {one.weight:g}{f', {code(json.dumps(one.parameters))}' if one.parameters else ''}"
        for one in config.rewards.functions
    ]
    counts = ", ".join(f"{count} {split}" for split, count in data["counts"].items())
    return "\n\n".join(
        [
            "## Scores\n\nGreedy answers to the test questions, before and after training, ± one standard error.",
            before_after_table(outcome.before, outcome.after, outcome.gain),
            "## Data",
            f"- source: {code(data['source'])}{_at(data['revision'])}\n"
            f"- questions: {counts}\n"
            f"- digest: {data['digest']}",
            "## Training",
            f"GRPO on {code(config.model.name)}{_at(config.model.revision)}, {_method(config)}; "
            f"the weights of step {trained['step']} of {trained['steps']} were kept.{memory_note(trained)}",
            "Rewards, by weight:\n\n" + "\n".join(rewards),
        ]
    )


def model_card(config: Config, facts: str) -> str:
    """The whole card, with the front matter that the hub reads."""
    merged = config.registry.merged or config.training.lora is None
    head = {
        "library_name": "transformers" if merged else "peft",
        "pipeline_tag": "text-generation",
        "tags": ["grpo", "trl"],
    }
    return "\n\n".join(
        [
            f"---\n{yaml.safe_dump(head)}---",
            f"# {config.registry.name}",
            facts,
            "## Configuration",
            "Everything that the run was told; under `prompt` the form of prompts that the model knows.",
            fence(without_password(yaml.safe_dump(config.dump(), sort_keys=False, allow_unicode=True))),
        ]
    )


def description(reason: str, facts: str) -> str:
    """The text of a registered version: why it has its alias, and the facts."""
    text = f"{reason}\n\n{facts}"
    return text if len(text) <= MOST else f"{text[: MOST - 1]}…"


def _at(revision: str | None) -> str:
    return f" at revision {code(revision)}" if revision else ""


def _method(config: Config) -> str:
    lora = config.training.lora
    return "all weights" if lora is None else f"a LoRA adapter of rank {lora.get('r', 8)}"
