"""Whatever dies, whenever: a finished stage is not done again, no step is lost or doubled, nothing is left running.

    make faults                         # twenty moments
    FAULT_MOMENTS=8 FAULT_SEED=3 …      # others

`make test-slow` takes five moments, by a seed that the commit gives.
"""

import hashlib
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from faults import DID_NOT_COME, Faults, Moment, draw_moments
from sandbox import PROJECT, Sandbox, Server, write_config

pytestmark = pytest.mark.slow

STEPS = 12
MOST_RUNS = 4


def seed() -> int:
    """FAULT_SEED, or one that the commit gives, so that each commit tries others."""
    if given := os.environ.get("FAULT_SEED"):
        return int(given)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=PROJECT, capture_output=True, text=True)
    return int(commit.stdout[:8] or "0", 16)


@pytest.fixture
def settings(tiny_settings: dict[str, Any], tiny_model: Path) -> dict[str, Any]:
    return tiny_settings | {
        "model": tiny_settings["model"] | {"name": str(tiny_model)},
        "training": tiny_settings["training"] | {"max_steps": STEPS, "save_steps": 3},
        "evaluation": tiny_settings["evaluation"] | {"every_steps": 6, "limit": 60},
    }


def test_a_run_that_is_killed_again_and_again_ends_as_if_nothing_had_happened(
    settings: dict[str, Any], tmp_path: Path, prefect_server: Server, mlflow_server: Server, capsys
):
    """One run is killed at all moments that it comes to; those of a stage that was over sooner are the next one's."""
    chosen, count = seed(), int(os.environ.get("FAULT_MOMENTS", "5"))
    moments = draw_moments(count, chosen)
    with capsys.disabled():
        print(f"\nseed {chosen}")
    for number in range(1, MOST_RUNS + 1):
        name = f"survivor-{number}"
        (tmp_path / name).mkdir()  # with a store of its own, lest stages are taken from there
        variables = {"PREFECT_API_URL": f"{prefect_server.uri}/api", "MLFLOW_TRACKING_URI": mlflow_server.uri}
        place = Sandbox(tmp_path / name, variables)
        registry = {"registry": {"name": name, "experiment": name}}
        faults = Faults(place, write_config(place.folder / "faults.yaml", settings | registry))
        code = faults.survive(moments)
        with capsys.disabled():
            print(f"run {number}: {faults.starts} starts, exit code {code}")
            for moment, what in faults.happened:
                print(f"  {what:12} {moment}")
        assert code == 0, (place.folder / f"attempt-{faults.starts}.log").read_text()[-3000:]
        assert faults.orphans == [] and faults.redone == []
        check_record(place, name)
        moments = [replace(one, after=one.after / 2) for one, what in faults.happened if what == DID_NOT_COME]
        if not moments:
            return
    raise AssertionError(f"{len(moments)} moments did not come in {MOST_RUNS} runs: {', '.join(map(str, moments))}")


def check_record(place: Sandbox, name: str) -> None:
    """One run, one version, and every number once."""
    [run] = place.mlflow_runs(name)
    assert (run.info.status, run.data.tags["outcome"]) == ("FINISHED", "promoted")
    [version] = place.mlflow.search_model_versions(f"name = '{name}'")
    assert version.run_id == run.info.run_id
    assert place.mlflow.get_model_version_by_alias(name, "champion").version == version.version
    history = place.mlflow.get_metric_history(run.info.run_id, "train/reward")
    assert [point.step for point in sorted(history, key=lambda point: point.step)] == list(range(1, STEPS + 1))
    for metric in ("baseline/accuracy", "eval/accuracy", "eval/delta"):
        assert len(place.mlflow.get_metric_history(run.info.run_id, metric)) == 1
    assert len(place.mlflow.search_logged_models(experiment_ids=[run.info.experiment_id])) == 1
    answers = place.load_version(f"models:/{name}@champion")
    assert answers["mlflow"] == answers["transformers"] != ""


@pytest.mark.parametrize("num_iterations", [1, 2])
def test_training_that_was_killed_and_asked_to_end_gives_the_same_weights_bit_for_bit(
    num_iterations: int, settings: dict[str, Any], tmp_path: Path, prefect_server: Server
):
    """SIGKILL loses what came after the last checkpoint, SIGTERM saves one first, between two generations."""
    settings["training"] |= {"num_iterations": num_iterations, "save_steps": 4}
    settings["evaluation"] |= {"every_steps": None, "limit": 8, "validation_limit": 8}
    interruptions = [
        Moment("train", "job", sign="the first steps done"),
        Moment("train", "flow", sign="more than half of the steps done", number=signal.SIGTERM),
    ]
    weights = {}
    for name, moments in (("uninterrupted", []), ("interrupted", interruptions)):
        folder = tmp_path / name
        folder.mkdir()
        place = Sandbox(folder, {"PREFECT_API_URL": f"{prefect_server.uri}/api"})
        faults = Faults(place, write_config(folder / "exact.yaml", settings), ("--until", "train"))
        assert faults.survive(moments) == 0
        assert [what for _, what in faults.happened] == ["killed"] * len(moments)
        assert faults.orphans == [] and faults.redone == [] and faults.run is not None
        weights[name] = hashlib.sha256((faults.run / "train" / "chosen" / "adapter_model.safetensors").read_bytes())
        logs = "".join(log.read_text() for log in sorted((faults.run / "logs").glob("train-*.log")))
        assert ("asked to end: saved checkpoint-" in logs) == bool(moments)
    assert weights["interrupted"].hexdigest() == weights["uninterrupted"].hexdigest()


def test_training_whose_last_step_is_saved_is_not_trained_for_one_more(settings: dict[str, Any], sandbox: Sandbox):
    """As after a kill between the last checkpoint and the stage's result."""
    settings["evaluation"] |= {"every_steps": None, "limit": 8, "validation_limit": 8}
    faults = Faults(sandbox, write_config(sandbox.folder / "last.yaml", settings), ("--until", "train"))
    assert faults.survive([]) == 0 and faults.run is not None
    weights = faults.run / "train" / "chosen" / "adapter_model.safetensors"
    before = weights.read_bytes()
    weights.unlink()
    (faults.run / "results" / "train.json").unlink()
    done = sandbox.run("-m", "flows.resume", faults.run.name)
    assert done.returncode == 0, done.stderr
    assert f"going on from checkpoint-{STEPS}" in done.stderr and f"step {STEPS + 1}/" not in done.stderr
    assert weights.read_bytes() == before


def test_a_run_that_is_going_on_is_not_gone_on_with(settings: dict[str, Any], sandbox: Sandbox):
    config = write_config(sandbox.folder / "busy.yaml", settings)
    process = sandbox.start("-m", "flows.grpo", str(config), log=sandbox.folder / "busy.log")
    try:
        while not list(sandbox.runs.glob("*/run.json")):
            assert process.poll() is None
            time.sleep(0.05)
        [run] = sandbox.runs.glob("*/run.json")
        done = sandbox.run("-m", "flows.resume", run.parent.name)
        assert done.returncode == 2
        assert f"error: the run {run.parent.name} is going on in the process {process.pid};" in done.stderr
    finally:
        process.kill()
        process.wait()


def test_an_unknown_run_is_refused_with_the_newest(sandbox: Sandbox):
    done = sandbox.run("-m", "flows.resume", "nobody")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: there is no run nobody in {sandbox.runs}; correct the id")
