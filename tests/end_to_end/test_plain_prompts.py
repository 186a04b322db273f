"""Plain prompts without a gold, as in TL;DR: rewarded for a length, judged by the mean reward."""

import json
from pathlib import Path

import pandas as pd
import pytest
from sandbox import Sandbox, write_config

pytestmark = pytest.mark.slow


@pytest.fixture
def posts(tiny_problems: Path, tmp_path: Path) -> Path:
    """The tiny model's questions under TL;DR's column names; what is there of answers is not looked at."""
    folder = tmp_path / "posts"
    folder.mkdir()
    for split in ("train", "test"):
        rows = [json.loads(line) for line in (tiny_problems / f"{split}.jsonl").read_text().splitlines()]
        plain = [{"prompt": row["question"], "completion": "none"} for row in rows]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in plain))
    return folder


def test_a_run_without_a_gold_is_compared_and_promoted_by_its_mean_reward(
    sandbox: Sandbox, tiny_settings, tiny_model, posts
):
    settings = tiny_settings | {
        "data": {"path": str(posts), "question_column": "prompt", "answer_column": "completion", "gold": "none"},
        "prompt": {"conversational": False, "max_tokens": 200},
        "rewards": {"gold_template": None, "functions": [{"name": "length", "target": 10, "weight": 0.1}]},
        "model": tiny_settings["model"] | {"name": str(tiny_model)},
        "training": tiny_settings["training"] | {"max_steps": 30, "save_steps": 10},
        "evaluation": tiny_settings["evaluation"] | {"every_steps": 10, "limit": 100},
        "registry": {"name": "tiny-tldr", "experiment": "tiny-tldr"},
    }
    done = sandbox.grpo(write_config(sandbox.folder / "tldr.yaml", settings))
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = sandbox.mlflow_runs("tiny-tldr")
    metrics = run.data.metrics
    assert metrics["eval/reward"] > metrics["baseline/reward"]
    assert metrics["eval/delta"] == pytest.approx(metrics["eval/reward"] - metrics["baseline/reward"])
    assert metrics["eval/p_value"] < 0.01
    assert not [name for name in metrics if "accuracy" in name]
    [version] = sandbox.mlflow.search_model_versions("name = 'tiny-tldr'")
    assert run.data.tags["outcome"] == "promoted" and "permutation test" in version.description
    results = pd.read_parquet(sandbox.runs / run.data.tags["flow_run_id"] / "evaluate" / "results.parquet")
    lengths = results["completion"].str.len()
    assert results["reward"].tolist() == pytest.approx((-0.1 * (lengths - 10).abs()).tolist())
