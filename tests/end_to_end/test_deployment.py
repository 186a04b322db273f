"""The deployments, on a real Prefect server, with a real worker and a real MLflow server."""

import json
import re
import time
from typing import Any

import pandas as pd
import pytest
from deployed_runs import DeployedRun, left_alive, prefect, run_deployment
from sandbox import Sandbox

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def deployed(place: Sandbox, worker: None, overrides: dict[str, Any]) -> dict[str, Any]:
    """The flow run of the deployment as it ships, but for the tiny model."""
    code, flow_run = run_deployment(place, overrides | {"registry.name": "deployed", "registry.experiment": "deployed"})
    assert code == 0, flow_run["state"]
    return flow_run


def test_prefect_deployment_run_goes_from_the_data_to_a_registered_version(place, deployed):
    flow_run = deployed
    assert flow_run["state"]["message"] == "deployed version 1: promoted"
    [run] = place.mlflow_runs("deployed")
    assert run.data.tags["flow_run_id"] == flow_run["id"]
    assert (run.info.status, run.data.tags["outcome"]) == ("FINISHED", "promoted")
    assert run.data.params["training.max_steps"] == "4"
    assert run.data.metrics["gate/dropped_train"] == 0 and "gate/exploit/empty" in run.data.metrics
    assert {"data_gate.json", "reward_gate.json"} <= {one.path for one in place.mlflow.list_artifacts(run.info.run_id)}
    assert (place.runs / flow_run["id"] / "report.md").exists()
    answers = place.load_version("models:/deployed@champion")
    assert answers["mlflow"] == answers["transformers"] != ""


def test_the_evaluate_deployment_gives_a_registered_version_the_scores_of_the_run_that_made_it(
    place, deployed, overrides
):
    changes = overrides | {"registry.experiment": "evaluated", "data.expected_rows": None}
    code, flow_run = run_deployment(place, changes, "evaluate/gsm8k", model="models:/deployed@champion")
    assert code == 0, flow_run["state"]
    [trained], [scored] = place.mlflow_runs("deployed"), place.mlflow_runs("evaluated")
    for name in ("eval/accuracy", "eval/accuracy_flexible", "eval/n"):
        assert scored.data.metrics[name] == trained.data.metrics[name]
    assert scored.info.status == "FINISHED" and scored.data.tags["model"] == "models:/deployed/1"
    assert scored.data.tags["data_digest"] == trained.data.tags["data_digest"]
    results = json.loads((place.runs / flow_run["id"] / "results" / "score.json").read_text())["results"]
    after = pd.read_parquet(place.runs / deployed["id"] / "evaluate" / "results.parquet")
    assert pd.read_parquet(results)["completion"].tolist() == after["completion"].tolist()


def test_one_dotted_override_changes_one_value(place, worker, overrides):
    experiment = {"registry.name": "overridden", "registry.experiment": "overridden"}
    code, flow_run = run_deployment(place, overrides | experiment | {"training.learning_rate": 0.001953125})
    assert code == 0, flow_run["state"]
    [run] = place.mlflow_runs("overridden")
    assert run.data.params["training.learning_rate"] == "0.001953125"
    [version] = place.mlflow.search_model_versions("name = 'overridden'")
    assert version.run_id == run.info.run_id


def test_a_bad_override_is_refused_with_a_sentence_and_nothing_is_recorded(place, worker, overrides):
    experiment = {"registry.name": "refused", "registry.experiment": "refused"}
    code, flow_run = run_deployment(place, overrides | experiment | {"training.learnin_rate": 1e-3})
    assert code != 0
    assert flow_run["state"]["type"] == "FAILED"
    message = flow_run["state"]["message"]
    assert "training.learnin_rate" in message and "did you mean training.learning_rate" in message
    assert "\n" not in message and "Traceback" not in message
    logs = prefect(place, "flow-run", "logs", flow_run["id"]).stdout
    assert message in logs.replace("\n", "") and "Traceback" not in logs and "FailedRun" not in logs
    assert re.search(r"\| ERROR +\| Flow run \S+ - Finished in state Refused", logs)
    assert place.mlflow_runs("refused") == []
    assert not (place.runs / flow_run["id"]).exists()


def test_a_cancelled_and_then_crashed_flow_run_is_retried_by_prefect_where_it_stopped(place, worker, overrides):
    """Cancelled in training, retried; its process killed in the evaluation, retried by the automation; and it is one
    run in the end."""
    experiment = {"registry.name": "retried", "registry.experiment": "retried", "training.max_steps": 40}
    run = DeployedRun(place, overrides | experiment | {"training.save_steps": 4, "evaluation.every_steps": None})

    run.wait_until(lambda: (run.folder / "train" / "checkpoint-4").exists())
    family = run.process.children(recursive=True)
    run.cancel()
    cancelled = time.monotonic()
    run.wait_until(lambda: run.state == "CANCELLED")
    assert left_alive(family, within=30) == []
    assert time.monotonic() - cancelled < 45  # the worker asks every few seconds for what is to be cancelled
    [recorded] = place.mlflow_runs("retried")
    assert (recorded.info.status, recorded.data.tags["outcome"]) == ("KILLED", "cancelled")
    reached = max(point.step for point in place.mlflow.get_metric_history(recorded.info.run_id, "train/reward"))
    assert reached < 40
    ingested = (run.folder / "results" / "ingest.json").stat().st_mtime_ns

    run.retry()
    run.wait_until(lambda: run.finished("train"))
    run.process.kill()
    run.wait_until(lambda: run.state == "COMPLETED")
    [recorded] = place.mlflow_runs("retried")
    assert (recorded.info.status, recorded.data.tags["outcome"]) == ("FINISHED", "promoted")
    steps = sorted(point.step for point in place.mlflow.get_metric_history(recorded.info.run_id, "train/reward"))
    assert steps == list(range(1, 41))
    assert (run.folder / "results" / "ingest.json").stat().st_mtime_ns == ingested
    assert len(place.mlflow.search_model_versions("name = 'retried'")) == 1
