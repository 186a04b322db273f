"""Completions scored by the configured rewards, the same way in training, in its validation and in evaluation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from rewards import extract_last_number, parse_number
from rewards.registry import load_reward
from rewards.traits import traits_of
from rewards.wrapper import guard
from tasks.config import Config
from tasks.dataset import TRL_COLUMNS
from tasks.errors import UserError
from tasks.generate import Completion
from tasks.prompts import Messages, as_completion
from tasks.reward_scoring import TOLERANCE, beside_columns, call


@dataclass(frozen=True)
class Scorer:
    """The configured rewards, loaded and guarded.

    Raises UserError where `evaluation.correct_by` names a reward that declares no maximum.

    `functions` go to TRL as they are. `correct_by` is the index of the reward whose `full_marks` mean a right answer,
    or None where the task has no gold.
    """

    config: Config
    functions: list[Callable[..., Any] | str]
    correct_by: int | None
    full_marks: float

    @classmethod
    def of(cls, config: Config) -> "Scorer":
        loaded = [load_reward(reward.name, reward.parameters) for reward in config.rewards.functions]
        functions = [
            function if isinstance(function, str) else guard(function, name=reward.label, opening=config.prompt.opening)
            for function, reward in zip(loaded, config.rewards.functions, strict=True)
        ]
        correct_by, full_marks = _right_answer(config, loaded) or (None, 0.0)
        return cls(config, functions, correct_by, full_marks)

    @property
    def names(self) -> list[str]:
        return [reward.label for reward in self.config.rewards.functions]

    @property
    def weights(self) -> list[float]:
        return [reward.weight for reward in self.config.rewards.functions]

    def score(
        self,
        rows: pd.DataFrame,
        prompts: Sequence[Messages | str],
        completions: Sequence[Completion],
        trainer_state: Any = None,
    ) -> pd.DataFrame:
        """One row per question: the completion, each reward, their weighted sum, and whether the answer is right.

        The rewards get what TRL gives them; without a `trainer_state`, that of a trainer before its first step.
        Raises RewardError as `rewards.wrapper.guard` does.
        """
        texts = [as_completion(completion.text, self.config.prompt) for completion in completions]
        columns: dict[str, list[Any]] = {
            str(name): rows[name].tolist() for name in rows.columns if name not in TRL_COLUMNS
        }
        beside = beside_columns([completion.ids for completion in completions], trainer_state)
        table = pd.DataFrame(
            {
                "id": rows["id"].to_numpy(),
                "question": rows["question"].to_numpy(),
                "answer": rows["answer"].to_numpy() if "answer" in rows else None,
                "completion": [completion.text for completion in completions],
                "tokens": [completion.tokens for completion in completions],
                "finished": [completion.finished for completion in completions],
            }
        )
        for name, function in zip(self.names, self.functions, strict=True):
            if isinstance(function, str):
                continue  # a reward model lives inside the trainer; its share of the reward shows in train/rewards/*
            values = call(function, {"prompts": list(prompts), "completions": texts, **beside, **columns})
            table[f"rewards/{name}"] = pd.Series(values, dtype="float64")
        weights = {f"rewards/{name}": weight for name, weight in zip(self.names, self.weights, strict=True)}
        parts = [column for column in weights if column in table]
        # A reward of None means "not applicable" and adds nothing, as in TRL's nansum.
        table["reward"] = sum((table[column].fillna(0.0) * weights[column] for column in parts), start=0.0)
        if self.correct_by is not None:
            name = self.names[self.correct_by]
            table["correct"] = table[f"rewards/{name}"] >= self.full_marks - TOLERANCE
            found = [extract_last_number(text) for text in table["completion"]]
            table["flexible"] = found  # where a None becomes NaN
            table["correct_flexible"] = [
                number is not None and parse_number(number) == parse_number(str(gold))
                for number, gold in zip(found, table["answer"], strict=True)
            ]
        return table


def _right_answer(config: Config, loaded: Sequence[Any]) -> tuple[int, float] | None:
    """The reward that tells what is right, and its full marks."""
    chosen = config.evaluation.correct_by
    if config.data.gold == "none" and chosen is None:
        return None
    for index, (reward, function) in enumerate(zip(config.rewards.functions, loaded, strict=True)):
        traits = traits_of(function)
        if traits.maximum is not None and (chosen == reward.label or (chosen is None and traits.gold_column)):
            return index, float(traits.maximum)
        if chosen == reward.label:
            raise UserError(
                f"evaluation.correct_by: {chosen} does not say what full marks are; "
                "let it declare them, with rewards.traits.declare(maximum=...), or name another reward"
            )
    return None
