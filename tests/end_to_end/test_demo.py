"""The demo keeps its promise: the trained model is clearly better than the start model on questions held out."""

import os

import pytest
from sandbox import PROJECT, Sandbox

pytestmark = [pytest.mark.slow, pytest.mark.alone]


@pytest.mark.parametrize("seed", os.environ.get("DEMO_SEEDS", "0").split())
def test_the_demo_gains_twenty_points_on_two_hundred_questions_without_any_server(seed, tmp_path):
    place = Sandbox(tmp_path, threads=None)
    done = place.grpo(
        PROJECT / "deployments" / "demo.yaml", f"training.seed={seed}", f"data.samples.seed={seed}", timeout=3600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = place.mlflow_runs("grpo-demo")
    assert run.data.metrics["eval/n"] >= 200
    assert run.data.metrics["eval/delta"] >= 0.20
    assert run.data.metrics["eval/p_value"] < 0.001
    assert run.data.tags["outcome"] == "promoted"
    # Of RAM alone: how long a step takes depends on what else the machine does.
    assert 0.75 < run.data.metrics["measured/memory_gib"] / run.data.metrics["estimate/memory_gib"] < 1.25
    assert "Accuracy, strict" in done.stdout + done.stderr  # the table, for the eye
    assert (place.runs / run.data.tags["flow_run_id"] / "curve.png").exists()
