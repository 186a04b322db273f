"""Accuracy of a final `\\boxed{…}` answer."""

import re
from collections.abc import Sequence
from typing import Any

from rewards.completion import per_completion
from rewards.extract import extract_boxed
from rewards.math_judge import equal_expressions
from rewards.number import parse_number, plain_number
from rewards.traits import declare

_ASKED_FOR = re.compile(r"^\s*(?:[A-Za-z]\w*|\\(?:text|mathrm)\{[^{}0-9=]*\})\s*=(?!=)")
_UNIT = re.compile(r"\\(?:text|mathrm|mbox)\s*\{[^{}0-9]*\}")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_RELATION = re.compile(r"[=<>~]|[0-9]\s+[0-9]|\\(?:approx|sim|text|mathrm|mbox|neq?|leq?|geq?|equiv|pm|or)(?![A-Za-z])")


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
    if plain_number(gold) is not None:
        if number is not None:
            return number == parse_number(gold)
        return _is_one_expression(answer) and equal_expressions(gold, answer)
    return equal_expressions(gold, answer)


def _is_one_expression(answer: str) -> bool:
    """Whether `answer` says one value, of which Math-Verify would else take the part that suits.

    `\\frac{144}{2}` and `x = 72` do; hedges, chains of relations, and what holds an unknown (`72 + x`) do not.
    """
    if any(not letter.isascii() and (letter.isnumeric() or letter.isalpha()) for letter in answer):
        return False
    value = _ASKED_FOR.sub("", answer, count=1)
    value = _UNIT.sub(" ", value)
    return not (_RELATION.search(value) or re.search(r"[A-Za-z]", _COMMAND.sub("", value)))
