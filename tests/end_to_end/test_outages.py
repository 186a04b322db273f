"""Servers that are away for a minute, and a worker that is killed, in the middle of a training: it ends complete."""

import time
from typing import Any

import pytest
from deployed_runs import DeployedRun, Worker
from faults import steps_done
from sandbox import Sandbox, Server

pytestmark = pytest.mark.slow

STEPS = 250  # more than a minute's


@pytest.fixture
def given(overrides: dict[str, Any]) -> dict[str, Any]:
    changes = {"training.max_steps": STEPS, "training.save_steps": 50}
    return overrides | changes | {"evaluation": overrides["evaluation"] | {"every_steps": None}}


def is_complete(place: Sandbox, name: str, run: DeployedRun) -> None:
    [recorded] = place.mlflow_runs(name)
    assert (recorded.info.status, recorded.data.tags["flow_run_id"]) == ("FINISHED", run.id)
    history = place.mlflow.get_metric_history(recorded.info.run_id, "train/reward")
    assert sorted(point.step for point in history) == list(range(1, STEPS + 1))
    assert len(place.mlflow.search_model_versions(f"name = '{name}'")) == 1


@pytest.mark.parametrize("away", ["mlflow", "prefect"])
def test_a_server_that_is_away_for_a_minute_in_mid_training_costs_nothing(
    away: str, place: Sandbox, worker: Worker, given: dict[str, Any], prefect_server: Server, mlflow_server: Server
):
    name = f"without-{away}"
    server = mlflow_server if away == "mlflow" else prefect_server
    run = DeployedRun(place, given | {"registry.name": name, "registry.experiment": name})
    run.wait_until(lambda: steps_done(run.folder) >= 5)
    process = run.process
    server.kill()
    time.sleep(60)
    assert not run.finished("train") and process.is_running()
    reached = steps_done(run.folder)
    server.start()
    run.wait_until(run.ended)
    assert run.state == "COMPLETED" and 5 < reached < STEPS
    is_complete(place, name, run)
    assert len(list((run.folder / "logs").glob("train-*.log"))) == 1


def test_a_run_whose_worker_is_killed_ends_complete(place: Sandbox, worker: Worker, given: dict[str, Any]):
    name = "without-worker"
    run = DeployedRun(place, given | {"registry.name": name, "registry.experiment": name})
    run.wait_until(lambda: steps_done(run.folder) >= 5)
    worker.kill()
    time.sleep(5)
    worker.start()
    run.wait_until(lambda: run.state == "COMPLETED")
    is_complete(place, name, run)
