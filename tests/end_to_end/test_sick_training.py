"""A planted collapse is stopped within a few steps with the right diagnosis, and is not tried again."""

from typing import Any

import pytest
from sandbox import Sandbox, write_config

pytestmark = pytest.mark.slow

# What is planted, and what must be said of it; the steps of the watch are 3.
COLLAPSES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a reward that is always 0": (
        # Without a gold the reward gate cannot see that nothing pays.
        {"rewards": {"functions": [{"name": "correctness", "weight": 0.0}], "gold_template": None}},
        ("stopped at step 3", "completions of every group have earned the same", "the mean reward is 0 all the time"),
    ),
    "groups that are all equal": (
        {"training": {"temperature": 0.001}},
        ("stopped at step 3", "completions of every group have earned the same", "raise training.num_generations or"),
    ),
    "steps far too large": (
        {"training": {"learning_rate": 1.0, "lora": {"r": 8, "lora_alpha": 10**38, "target_modules": "all-linear"}}},
        ("training was stopped at step", "the weights are no numbers any more", "Lower training.learning_rate"),
    ),
}


@pytest.mark.parametrize(("planted", "words"), COLLAPSES.values(), ids=COLLAPSES.keys())
def test_a_collapse_is_stopped_with_its_diagnosis(planted, words, sandbox: Sandbox, tiny_settings, tiny_model):
    settings = tiny_settings | {
        "model": tiny_settings["model"] | {"name": str(tiny_model)},
        "evaluation": {"engine": "transformers", "limit": 16, "batch_size": 64},
        "watch": {"steps": 3},
    }
    for section, values in planted.items():
        settings[section] = settings.get(section, {}) | values
    done = sandbox.grpo(write_config(sandbox.folder / "sick.yaml", settings), "--until", "train")
    assert done.returncode == 1
    [last] = [line for line in done.stderr.splitlines() if line.startswith("error: train: ")]
    for part in words:
        assert part in last, done.stderr
    [run] = sandbox.mlflow_runs()
    assert (run.info.status, run.data.tags["outcome"]) == ("FAILED", "failed")
    logs = sandbox.runs / run.data.tags["flow_run_id"] / "logs"
    assert len(list(logs.glob("train-*.log"))) == 1
