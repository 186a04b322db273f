"""What a table of scored completions comes to: means, shares and their standard errors."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from rewards import parse_number
from tasks.statistics import mean_stderr, proportion_stderr


def summary(table: pd.DataFrame) -> dict[str, Any]:
    """Mean reward, and both accuracies where there is a gold, each with its standard error."""
    result: dict[str, Any] = {
        "n": len(table),
        "reward": float(table["reward"].mean()),
        "reward_stderr": mean_stderr(table["reward"].tolist()),
        "mean_tokens": float(table["tokens"].mean()),
        "unfinished": float(1 - table["finished"].mean()),
    }
    for column, name in (("correct", "accuracy"), ("correct_flexible", "accuracy_flexible")):
        if column in table:
            share = float(table[column].mean())
            result |= {name: share, f"{name}_stderr": proportion_stderr(share, len(table))}
    for column in table.columns:
        if column.startswith("rewards/"):
            result[column] = float(table[column].mean())
    return result


def sampled_summary(table: pd.DataFrame) -> dict[str, Any]:
    """The same for several sampled completions of each question, as `sampled/NAME`; all errors are over questions.

    `accuracy` is the share of right completions, `pass_at_k` the chance that one of k is right, for k a power of two
    and for all of them, `best_reward` the mean of each question's best. Where golds are numbers, `accuracy_flexible`
    goes by the number that each completion ends with, and `majority_flexible` by the most frequent of them (of equally
    frequent ones the first; without a number there is no vote).
    """
    questions = [part for _, part in table.groupby("id", sort=False)]
    n = len(questions[0])
    found = {
        "reward": [part["reward"].mean() for part in questions],
        "best_reward": [part["reward"].max() for part in questions],
    }
    if "correct" in table:
        right = [int(part["correct"].sum()) for part in questions]
        found["accuracy"] = [count / n for count in right]
        for k in sorted({2**power for power in range(1, n.bit_length()) if 2**power <= n} | {n}):
            found[f"pass_at_{k}"] = [pass_at(k, n, count) for count in right]
        if all(parse_number(str(part["answer"].iloc[0])) is not None for part in questions):
            found["accuracy_flexible"] = [part["correct_flexible"].mean() for part in questions]
            found["majority_flexible"] = [_majority_is_right(part) for part in questions]
    result: dict[str, Any] = {}
    for name, values in found.items():
        mean = sum(values) / len(values)
        yes_or_no = "reward" not in name and set(values) <= {0.0, 1.0}
        error = proportion_stderr(mean, len(values)) if yes_or_no else mean_stderr(values)
        result |= {f"sampled/{name}": mean, f"sampled/{name}_stderr": error}
    return result


def pass_at(k: int, n: int, right: int) -> float:
    """The chance that at least one of `k` completions is right, from `n` samples of which `right` are: the unbiased
    estimate 1 - C(n - right, k) / C(n, k).

    Source: Chen et al., "Evaluating Large Language Models Trained on Code", 2021, arXiv:2107.03374, section 2.1.
    """
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)


def scored(values: Mapping[str, Any]) -> float:
    """What one checkpoint is judged by: accuracy where there is a gold, else mean reward."""
    return float(values["accuracy"] if "accuracy" in values else values["reward"])


def _majority_is_right(part: pd.DataFrame) -> float:
    """1.0 or 0.0 for the completions of one question, by the number that each ends with."""
    votes = [None if pd.isna(number) else parse_number(number) for number in part["flexible"]]
    numbers = [vote for vote in votes if vote is not None]
    if not numbers:
        return 0.0
    chosen = max(numbers, key=numbers.count)
    return float(chosen == parse_number(str(part["answer"].iloc[0])))
