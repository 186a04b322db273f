"""What a run takes from the store, and what it does again since something differs."""

import json
from pathlib import Path
from typing import Any

import pytest
from sandbox import Sandbox, write_config

pytestmark = pytest.mark.slow

REWARD = """
def digits(completions, **_):
    return [{weight} + sum(letter.isdigit() for letter in message[0]["content"]) for message in completions]
"""


class Runs:
    """Runs up to the baseline, with what each of them did itself."""

    def __init__(self, place: Sandbox, settings: dict[str, Any]) -> None:
        self.place, self.settings = place, settings

    def done_anew(self, **changes: Any) -> set[str]:
        """What a run with these settings did itself, by the kinds of the store."""
        before = self._stored()
        config = write_config(self.place.folder / "cached.yaml", self.settings | changes)
        done = self.place.grpo(config, "--until", "baseline")
        assert done.returncode == 0, done.stderr[-3000:]
        return {kind for kind, keys in self._stored().items() if keys != before.get(kind, set())}

    def _stored(self) -> dict[str, set[str]]:
        return {kind.name: {key.name for key in kind.iterdir()} for kind in (self.place.runs / "store").glob("*")}


@pytest.fixture
def runs(sandbox: Sandbox, tiny_settings: dict[str, Any], untrained_model: Path) -> Runs:
    data = sandbox.folder / "sums"
    data.mkdir()
    for split in ("train", "test"):
        source = Path(tiny_settings["data"]["path"]) / f"{split}.jsonl"
        (data / source.name).write_text("".join(source.read_text().splitlines(keepends=True)[:60]))
    (sandbox.folder / "mine.py").write_text(REWARD.format(weight=0.125))
    settings = tiny_settings | {
        "data": {"path": str(data)},
        "model": tiny_settings["model"] | {"name": str(untrained_model)},
        "evaluation": {"engine": "transformers", "limit": 8},
        "rewards": {"functions": [{"name": "correctness"}, {"name": "length", "target": 80}]},
    }
    return Runs(sandbox, settings)


def change_row(runs: Runs, split: str) -> None:
    path = Path(runs.settings["data"]["path"]) / f"{split}.jsonl"
    first, *others = path.read_text().splitlines()
    row = json.loads(first)
    row["question"] = f"Listen. {row['question']}"
    path.write_text("\n".join([json.dumps(row), *others]) + "\n")


def test_what_is_the_same_is_taken_from_the_store_and_what_differs_is_done_again(runs: Runs):
    everything = {"data", "validated", "checked_rewards", "prompt_lengths", "baselines"}
    assert everything == runs.done_anew()
    assert runs.done_anew() == set()
    # Nothing of it is about how one trains.
    assert runs.done_anew(training=runs.settings["training"] | {"learning_rate": 1e-6}) == set()

    change_row(runs, "train")
    assert runs.done_anew() == everything - {"baselines"}
    change_row(runs, "test")
    assert runs.done_anew() == everything - {"checked_rewards"}

    other = {"functions": [{"name": "correctness"}, {"name": "length", "target": 81}]}
    assert runs.done_anew(rewards=other) == {"checked_rewards", "baselines"}
    assert runs.done_anew(rewards=other) == set()
    assert runs.done_anew(validation={"max_shared_ngrams": None, "question_characters": [11, 4000]}) == {"validated"}
    assert runs.done_anew(prompt={"system": "Add."}) == {"prompt_lengths", "baselines"}


def test_what_a_users_reward_has_judged_is_never_taken_from_the_store(runs: Runs):
    """It cannot be known what it reads or calls."""
    own = {"functions": [{"name": "mine.py:digits"}], "gold_template": None}
    runs.done_anew(rewards=own)
    (runs.place.folder / "mine.py").write_text(REWARD.format(weight=0.25))
    assert runs.done_anew(rewards=own) == {"baselines"}
    assert runs.done_anew(rewards=own) == {"baselines"}
    checks, means = (list(runs.place.runs.glob(pattern)) for pattern in ("*/logs/check_rewards.log", "*/baseline"))
    assert len(checks) == len(means) == 3
    rewards = {json.loads((folder / "summary.json").read_text())["reward"] for folder in means}
    assert len(rewards) == 2
