"""The policy by example: the project's own cases, and those of the file that REWARD_CASES names."""

import os
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from rewards import extract_hash_answer
from rewards.casefile import Case, GoldCase, read_cases, shipped_cases, shipped_gold_cases
from rewards.registry import REGISTRY, load_reward


def value_of(name: str, case: Case, *, conversational: bool) -> Any:
    completion = case.completion
    if conversational and isinstance(completion, str):
        completion = [{"role": "assistant", "content": completion}]
    reward = load_reward(name, case.parameters.get(name))
    assert callable(reward)
    columns = {column: [value] for column, value in case.columns.items()}
    [value] = reward(prompts=[case.prompt], completions=[completion], **columns)
    return value


def gold_of(case: GoldCase) -> str | None:
    try:
        return extract_hash_answer(case.answer)
    except ValueError:
        return None


@pytest.mark.parametrize("conversational", [False, True], ids=["strings", "messages"])
@pytest.mark.parametrize("name", REGISTRY)
def test_every_shipped_case_gives_exactly_its_value(name: str, conversational: bool) -> None:
    cases = shipped_cases(name)
    assert len(cases) >= 8
    for case in cases:
        value = value_of(name, case, conversational=conversational)
        assert value == case.values[name], f"{case.where}: {case.note}"


def test_every_shipped_gold_is_read_or_refused() -> None:
    cases = shipped_gold_cases()
    assert sum(case.gold is None for case in cases) >= 10
    for case in cases:
        assert gold_of(case) == case.gold, f"{case.where}: {case.note}"


def test_every_case_of_a_file_gives_exactly_its_value() -> None:
    """Of the file that REWARD_CASES names, otherwise of the project's own for GSM8K."""
    own = resources.files("rewards") / "cases" / "gsm8k.jsonl"
    cases = read_cases(Path(os.environ.get("REWARD_CASES", str(own))))
    assert len(cases) >= 40
    for case in cases:
        if isinstance(case, GoldCase):
            assert gold_of(case) == case.gold, case.where
        else:
            assert set(case.values) == {"correctness", "int", "soft_format", "strict_format", "xmlcount"}
            for name, expected in case.values.items():
                for conversational in (False, True):
                    value = value_of(name, case, conversational=conversational)
                    assert value == expected, f"{case.where}: {name}"
