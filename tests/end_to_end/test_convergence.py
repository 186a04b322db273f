"""A tiny model learns to add, through the real flow, and it does not where it must not.

The three runs differ in one setting only and are judged by the same check.
"""

from pathlib import Path
from typing import Any

import pytest
from promised_names import METRICS, REWARDS, TAGS
from sandbox import Sandbox, Server, write_config

pytestmark = pytest.mark.slow


def has_learned(run: Any) -> bool:
    """The check: test accuracy is more than 20 points higher than before, by McNemar's exact test at p < 0.001."""
    return run.data.metrics["eval/delta"] > 0.2 and run.data.metrics["eval/p_value"] < 0.001


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, prefect_server: Server) -> Sandbox:
    return Sandbox(tmp_path_factory.mktemp("convergence"), {"PREFECT_API_URL": f"{prefect_server.uri}/api"})


@pytest.fixture(scope="module")
def config(place: Sandbox, tiny_settings: dict[str, Any], tiny_model: Path) -> Path:
    settings = tiny_settings | {
        "model": tiny_settings["model"] | {"name": str(tiny_model)},
        "training": tiny_settings["training"] | {"beta": 0.001},  # above 0, so that train/kl is logged
        "rewards": {"functions": [{"name": name} for name in REWARDS]},
    }
    return write_config(place.folder / "tiny.yaml", settings)


@pytest.fixture(scope="module")
def trained(place: Sandbox, config: Path) -> Any:
    """The MLflow run of the one run that goes well."""
    done = place.grpo(config)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tiny version 1: promoted" in done.stdout
    [run] = place.mlflow_runs("tiny")
    return run


def test_accuracy_on_questions_held_out_rises_significantly(trained):
    assert has_learned(trained)
    assert trained.data.metrics["eval/n"] >= 200


def test_the_mlflow_run_holds_every_promised_name(place, trained):
    assert [name for name in (*METRICS, "train/kl") if name not in trained.data.metrics] == []
    assert [name for name in TAGS if name not in trained.data.tags] == []
    assert trained.info.status == "FINISHED"
    assert trained.data.tags["outcome"] == "promoted"
    assert trained.data.params["training.learning_rate"] == "0.005"
    assert trained.data.params["rewards.functions.0.name"] == "correctness"
    assert trained.data.params["evaluation.correct_by"] == "null"  # a default: the configuration is the resolved one
    rewards = place.mlflow.get_metric_history(trained.info.run_id, "train/reward")
    assert [point.step for point in sorted(rewards, key=lambda point: point.step)] == list(range(1, 61))
    assert {entry.path for entry in place.mlflow.list_artifacts(trained.info.run_id)} >= {"completions.json", "report"}


def test_the_registered_version_loads_by_mlflow_and_by_transformers_and_answers_as_trained(place, trained):
    [version] = place.mlflow.search_model_versions("name = 'tiny'")
    assert version.run_id == trained.info.run_id
    answers = place.load_version("models:/tiny@champion")
    assert answers["mlflow"] == answers["transformers"]
    assert answers["mlflow"].startswith("<reasoning>\n") and answers["mlflow"].endswith("</answer>")


def test_the_run_folder_holds_a_report_with_a_curve(place, trained):
    folder = place.runs / trained.data.tags["flow_run_id"]
    report = (folder / "report.md").read_text(encoding="utf-8")
    assert "Accuracy, strict" in report and "curve.png" in report
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_with_the_sign_of_the_reward_flipped_the_check_fails(place, config):
    rewards = "[{name: correctness, weight: -1}, {name: int}, {name: soft_format}]"
    flipped = (f"rewards.functions={rewards}", "registry.experiment=flipped", "--until", "evaluate")
    refused = place.grpo(config, *flipped)
    assert refused.returncode == 1 and "being right does not pay" in refused.stderr
    done = place.grpo(config, *flipped, "rewards.gold_template=null")  # without a gold the gate cannot see it
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = place.mlflow_runs("flipped")
    gradients = place.mlflow.get_metric_history(run.info.run_id, "train/grad_norm")
    assert max(point.value for point in gradients) > 0  # it was trained, only not to add
    assert not has_learned(run)


def test_with_learning_rate_zero_the_check_fails_and_nothing_is_registered(place, config):
    overrides = ("training.learning_rate=0", "registry.experiment=still", "registry.name=still")
    done = place.grpo(config, *overrides)
    assert done.returncode == 1
    assert "training has not changed the model" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stdout + done.stderr
    [run] = place.mlflow_runs("still")
    assert not has_learned(run)
    assert run.data.metrics["eval/delta"] == 0 and run.data.metrics["eval/p_value"] == 1
    assert (run.info.status, run.data.tags["outcome"]) == ("FAILED", "unchanged")
    assert place.mlflow.search_model_versions("name = 'still'") == []
