"""Which answers count as right."""

from pathlib import Path
from types import SimpleNamespace

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


def tokens(completions, completion_ids, trainer_state, log_extra, log_metric, **_):
    log_extra("step", [trainer_state.global_step] * len(completions))
    log_metric("mean", 1.0)
    return [float(len(ids) + trainer_state.global_step) for ids in completion_ids]


def written(completions, **columns):
    assert not {"completion", "prompt"} & set(columns)
    return [float(len(completion[0]["content"])) for completion in completions]
"""


@pytest.fixture
def config(tmp_path: Path):
    (tmp_path / "mine.py").write_text(REWARDS)

    def config(*names: str, **evaluation):
        functions = [{"name": f"{tmp_path}/mine.py:{name}"} for name in names]
        return load({"rewards": {"functions": functions}, "evaluation": evaluation})

    return config


ROWS = pd.DataFrame({"id": ["a", "b"], "question": ["?", "?"], "answer": ["72", "72"]})
COMPLETIONS = [Completion(text=text, ids=list(range(len(text))), finished=True) for text in ("72", "730")]


def scored(scorer: Scorer, rows: pd.DataFrame = ROWS, **more) -> pd.DataFrame:
    return scorer.score(rows, ["?", "?"], COMPLETIONS, **more)


def right(scorer: Scorer) -> list[bool]:
    return scored(scorer)["correct"].tolist()


def test_full_marks_are_so_up_to_rounding(config):
    assert 0.3 * 3 < 0.9
    assert right(Scorer.of(config("third"))) == [True, False]


def test_a_reward_without_full_marks_tells_nobody_right(config):
    assert Scorer.of(config("unbounded")).correct_by is None
    assert right(Scorer.of(config("unbounded", "third"))) == [True, False]
    with pytest.raises(UserError, match="evaluation.correct_by: unbounded does not say what full marks are"):
        Scorer.of(config("unbounded", correct_by="unbounded"))


def test_a_reward_gets_what_trl_gives_it_beside_the_columns(config):
    scorer = Scorer.of(config("tokens"))
    assert scored(scorer)["rewards/tokens"].tolist() == [2.0, 3.0]
    in_training = SimpleNamespace(global_step=10)
    assert scored(scorer, trainer_state=in_training)["rewards/tokens"].tolist() == [12.0, 13.0]


def test_columns_of_the_dataset_do_not_replace_what_trl_makes(config):
    names = {"completions": "a long text", "completion": "x", "prompt": "y", "completion_ids": "z"}
    table = scored(Scorer.of(config("written", "tokens")), ROWS.assign(**names))
    assert table["rewards/written"].tolist() == [2.0, 3.0] and table["rewards/tokens"].tolist() == [2.0, 3.0]
