"""What holds for every registered reward on any completion."""

import copy
import math
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rewards.registry import REGISTRY, load_reward
from rewards.traits import traits_of

FRAGMENTS = st.sampled_from(
    [
        *(
            "<reasoning>",
            "</reasoning>",
            "<answer>",
            "</answer>",
            "<think>",
            "</think>",
            "<intro>",
            "</intro>",
        ),
        *(
            "72",
            "-3",
            "1,000",
            "$",
            "%",
            ".",
            ",",
            "-",
            "\n",
            "\r\n",
            " ",
            "x",
            "=",
            "\u00b2",
            "\u0667",
            "\u2212",
        ),
    ]
)
TEXT = st.one_of(st.text(max_size=60), st.lists(FRAGMENTS, max_size=16).map("".join))
BATCH = st.lists(st.tuples(TEXT, st.integers(-999, 99_999)), min_size=1, max_size=6)


def score(name: str, batch: list[tuple[str, int]], *, conversational: bool = False) -> list[float]:
    completions: list[Any] = [text for text, _ in batch]
    if conversational:
        completions = [[{"role": "assistant", "content": text}] for text in completions]
    golds = [str(gold) for _, gold in batch]
    arguments = {
        "prompts": ["?"] * len(batch),
        "completions": completions,
        "answer": golds,
        "ground_truth": golds,
        "completion_ids": [list(text.encode()) for text, _ in batch],
    }
    before = copy.deepcopy(arguments)
    reward = load_reward(name)
    assert callable(reward)
    values: list[float] = reward(**arguments)
    assert arguments == before, f"{name} changed its arguments"
    return values


@pytest.mark.parametrize("name", REGISTRY)
@given(batch=BATCH)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_values_are_finite_bounded_repeatable_and_independent_of_their_batch(
    name: str, batch: list[tuple[str, int]]
) -> None:
    maximum = traits_of(REGISTRY[name]).maximum
    values = score(name, batch)
    assert len(values) == len(batch)
    assert all(isinstance(value, float) and math.isfinite(value) for value in values)
    assert maximum is None or all(value <= maximum for value in values)
    assert score(name, batch) == values
    assert score(name, batch[::-1]) == values[::-1]
    assert [score(name, [row])[0] for row in batch] == values
    assert score(name, batch, conversational=True) == values


@pytest.mark.parametrize("name", REGISTRY)
@pytest.mark.parametrize(
    "fragment",
    [
        *(
            "<answer>",
            "</answer>",
            "<reasoning>\n",
            "<answer>\n72\n</answer>\n",
            "<think>",
            "<body>",
            "\\boxed{",
        ),
        *("<", "9", "1,", ",", ".", " ", "\n", "\r\n", "\u00b2", "\u0301"),
    ],
)
def test_time_is_linear_in_a_hostile_completion(name: str, fragment: str) -> None:
    """A quadratic reward takes far longer than a second on 200,000 characters."""
    text = fragment * (200_000 // len(fragment))
    completions = [f"<answer>{text}</answer>", f"\\boxed{{{text}}}"]
    golds = ["72", "72"]
    start = time.process_time()
    REGISTRY[name](prompts=golds, completions=completions, answer=golds, ground_truth=golds)
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize("name", REGISTRY)
def test_an_empty_batch_has_no_values(name: str) -> None:
    assert score(name, []) == []


@pytest.mark.parametrize("name", REGISTRY)
def test_what_is_no_completion_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a completion is a string or a message list, not int"):
        REGISTRY[name](prompts=["?"], completions=[72], answer=["72"], ground_truth=["72"])
