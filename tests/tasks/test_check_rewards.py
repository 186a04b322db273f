"""The stage around the reward gate: what passed once is known, and a user's own code is always asked again."""

import pytest

from tasks.check_rewards import check_rewards
from tasks.config import Config, SampleSettings
from tasks.errors import UserError
from tasks.ingest import ingest
from tasks.run import Run, read_json

MINE = """
def tags(prompts, completions, **columns):
    return [{value} * ("<answer>" in completion[0]["content"]) for completion in completions]
"""


@pytest.fixture
def stage(runs):
    """Check rewards on made problems in a run of its own; gives the result and whether the worker ran."""
    numbers = iter(range(100))

    def run(functions, train=60):
        config = Config.model_validate(
            {"data": {"samples": SampleSettings(train=train, test=20)}, "rewards": {"functions": functions}}
        )
        here = Run.open(f"run-{next(numbers)}")
        result = check_rewards(here, config, ingest(config.data))
        assert (here.folder / "check_rewards" / "report.md").read_text() == result["markdown"]
        return result, (here.folder / "check_rewards" / "check_rewards_worker.job").exists()

    return run


def test_what_passed_once_with_the_same_rows_and_rewards_is_not_checked_again(stage):
    first, ran = stage([{"name": "xmlcount"}])
    assert ran and first["checks"] == len(first["table"]) and first["failures"] == []
    assert stage([{"name": "xmlcount"}]) == (first, False)
    assert stage([{"name": "xmlcount", "weight": 0.5}])[1]
    assert stage([{"name": "xmlcount"}], train=61)[1]


def test_a_function_of_the_users_own_is_always_asked(stage, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MINE.format(value=1.0))
    assert stage([{"name": f"{file}:tags"}])[1]
    assert stage([{"name": f"{file}:tags"}])[1]
    file.write_text(MINE.format(value=0.0))
    with pytest.raises(UserError, match="tags gives 0 to every completion tried"):
        stage([{"name": f"{file}:tags"}])


def test_a_refusal_is_not_kept(stage, runs):
    wrong = [{"name": "int"}, {"name": "sections_format"}]  # which the gold template does not keep
    for _ in range(2):
        with pytest.raises(UserError, match="sections_format gives 0 instead of 1"):
            stage(wrong)
    assert not (runs / "store" / "checked_rewards").exists() or not any((runs / "store" / "checked_rewards").iterdir())
    assert "sections_format" in read_json(runs / "run-1" / "check_rewards" / "check_rewards_worker.result")["markdown"]
