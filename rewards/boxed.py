"""Accuracy of a final `\\boxed{…}` answer."""

from collections.abc import Sequence
from typing import Any

from rewards.completion import per_completion
from rewards.extract import extract_boxed
from rewards.math_judge import equal_expressions
from rewards.number import parse_number, plain_number
from rewards.traits import declare


@declare(maximum=1.0, gold_column="ground_truth")
def boxed_accuracy_reward_func(
    prompts: Sequence[Any], completions: Sequence[Any], ground_truth: Sequence[str], **columns: Any
) -> list[float]:
    """1.0 where the last `\\boxed{…}` of the completion equals the ground truth, otherwise 0.0.

    A ground truth that is a plain number is compared with a number exactly, by the number rule of
    `rewards.number`; for anything more Math-Verify decides (`\\frac{1}{2}` is 0.5).
    """
    return [
        float(_equals(extract_boxed(text), str(gold)))
        for text, gold in per_completion(completions, "ground_truth", ground_truth)
    ]


def _equals(answer: str | None, gold: str) -> bool:
    if answer is None or not answer.strip():
        return False
    if answer.split() == gold.split():
        return True
    number = parse_number(answer)
    if number is not None and plain_number(gold) is not None:
        return number == parse_number(gold)
    return equal_expressions(gold, answer)
