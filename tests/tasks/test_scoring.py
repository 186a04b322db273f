"""Which answers count as right."""

from pathlib import Path

import pandas as pd
import pytest

from tasks.config import load
from tasks.errors import UserError
from tasks.generate import Completion
from tasks.scoring import Scorer

REWARDS = """
from rewards.traits import declare


@declare(maximum=0.9, gold_column="answer")
def third(completions, answer, **_):
    return [0.3 * 3 if "72" in completion[0]["content"] else 0.1 for completion in completions]


@declare(gold_column="answer")
def unbounded(completions, answer, **_):
    return [1.0 if "72" in completion[0]["content"] else 0.1 for completion in completions]
"""


@pytest.fixture
def config(tmp_path: Path):
    (tmp_path / "mine.py").write_text(REWARDS)

    def config(*names: str, **evaluation):
        functions = [{"name": f"{tmp_path}/mine.py:{name}"} for name in names]
        return load({"rewards": {"functions": functions}, "evaluation": evaluation})

    return config


def right(scorer: Scorer) -> list[bool]:
    rows = pd.DataFrame({"id": ["a", "b"], "question": ["?", "?"], "answer": ["72", "72"]})
    completions = [Completion(text=text, tokens=1, finished=True) for text in ("72", "73")]
    return scorer.score(rows, ["?", "?"], completions)["correct"].tolist()


def test_full_marks_are_so_up_to_rounding(config):
    assert 0.3 * 3 < 0.9
    assert right(Scorer.of(config("third"))) == [True, False]


def test_a_reward_without_full_marks_tells_nobody_right(config):
    assert Scorer.of(config("unbounded")).correct_by is None
    assert right(Scorer.of(config("unbounded", "third"))) == [True, False]
    with pytest.raises(UserError, match="evaluation.correct_by: unbounded does not say what full marks are"):
        Scorer.of(config("unbounded", correct_by="unbounded"))
