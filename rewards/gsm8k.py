"""The five GSM8K rewards: is the answer right, is it an integer, and does the completion keep the format.

The format asked for:

    <reasoning>
    Half of 48 is 24, and 48 + 24 = 72.
    </reasoning>
    <answer>
    72
    </answer>
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from rewards.completion import per_completion, texts
from rewards.extract import extract_xml_answer
from rewards.number import parse_number
from rewards.traits import declare

TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")


@declare(maximum=2.0, gold_column="answer")
def correctness_reward_func(
    prompts: Sequence[Any], completions: Sequence[Any], answer: Sequence[str], **columns: Any
) -> list[float]:
    """2.0 where the answer is one number whose exact value equals the gold's, otherwise 0.0.

    `answer` holds one gold per completion. Raises `ValueError` for a gold that is not a number: no completion
    could ever be right then.
    """
    return [
        2.0 if parse_number(extract_xml_answer(text)) == _gold(gold) else 0.0
        for text, gold in per_completion(completions, "answer", answer)
    ]


@declare(maximum=0.5)
def int_reward_func(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
    """0.5 where the answer is one number with an integer value (`72.0` has one), right or wrong."""
    values = [parse_number(extract_xml_answer(text)) for text in texts(completions)]
    return [0.5 if value is not None and value == value.to_integral_value() else 0.0 for value in values]


@declare(maximum=0.5)
def soft_format_reward_func(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
    """0.5 where a reasoning pair is followed, anywhere later, by an answer pair; both may be empty."""
    return [0.5 if _has_in_order(text, TAGS) else 0.0 for text in texts(completions)]


@declare(maximum=0.5)
def strict_format_reward_func(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
    """0.5 where the completion is one reasoning and one answer pair, as the module's docstring shows them.

    Each tag occurs once and has a line of its own, both pairs hold some text, and there is nothing but
    blank space around them. `\\n` and `\\r\\n` both end a line.
    """
    return [0.5 if _is_strict(text) else 0.0 for text in texts(completions)]


@declare(maximum=0.5)
def xmlcount_reward_func(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
    """0.125 for each of the four tags that occurs exactly once."""
    return [0.125 * sum(text.count(tag) == 1 for tag in TAGS) for text in texts(completions)]


def _gold(gold: str) -> Decimal:
    value = parse_number(str(gold))
    if value is None:
        raise ValueError(f"the gold {gold!r} is not one number")
    return value


def _has_in_order(text: str, tags: Sequence[str]) -> bool:
    position = 0
    for tag in tags:
        position = text.find(tag, position)
        if position < 0:
            return False
    return True


def _is_strict(text: str) -> bool:
    head, opens, rest = text.partition("<reasoning>")
    reasoning, closes, rest = rest.partition("</reasoning>")
    between, answer_opens, rest = rest.partition("<answer>")
    answer, answer_closes, tail = rest.partition("</answer>")
    if not (opens and closes and answer_opens and answer_closes) or any(text.count(tag) != 1 for tag in TAGS):
        return False
    outside_is_blank = not (head.strip() or between.strip() or tail.strip())
    return outside_is_blank and "\n" in between and _has_lines_of_its_own(reasoning) and _has_lines_of_its_own(answer)


def _has_lines_of_its_own(content: str) -> bool:
    """Whether there is some text, and a line break between it and what stands before and after."""
    start, end = len(content) - len(content.lstrip()), len(content.rstrip())
    return start < end and "\n" in content[:start] and "\n" in content[end:]
