"""The stages that more than one flow begins with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import get_run_logger

from flows.artifacts import show_gate
from flows.stages import Context, log_line, stage
from tasks import evaluate as evaluate_stage
from tasks.dataset import SPLITS
from tasks.ingest import ingest as ingest_data
from tasks.preflight import PreflightWorker
from tasks.preflight import preflight as preflight_checks
from tasks.prompt_lengths import prompt_lengths as measure_prompts
from tasks.validate import gate_table
from tasks.validate import validate as validate_data


@stage("preflight", retries=1, delays=[5])
def preflight(context: Context, worker: PreflightWorker, *, trains: bool) -> dict[str, Any]:
    return preflight_checks(context.run, context.config, worker, trains)


@stage("prompt_lengths", retries=1, delays=[5])
def prompt_lengths(
    context: Context,
    data: dict[str, Any],
    found: dict[str, Any],
    worker: PreflightWorker,
    splits: Sequence[str] = SPLITS,
) -> dict[str, Any]:
    return measure_prompts(context.config, data, found, worker, on_line=log_line, splits=splits)


@stage("ingest", retries=3, delays=[5, 30, 120])
def ingest(context: Context) -> dict[str, Any]:
    manifest = ingest_data(context.config.data)
    context.run.link("data", Path(manifest["folder"]))
    get_run_logger().info("data %s: %s", manifest["digest"][:12], manifest["counts"])
    return manifest


@stage("validate")
def validate(context: Context, data: dict[str, Any]) -> dict[str, Any]:
    config = context.config
    found = validate_data(context.run, data, config.data, config.validation, on_line=log_line)
    for note in found["notes"]:
        log_line(note)
    show_gate("validate", gate_table(found))
    return found


def score_untrained(context: Context, data: dict[str, Any], model: dict[str, str]) -> dict[str, Any]:
    """Score a model as it is on the test questions, or find its scores in the store; each flow names the stage."""
    return evaluate_stage.baseline(
        context.run,
        context.config,
        rows=Path(data["folder"]) / "test.parquet",
        rows_digest=data["sha256"]["test"],
        model=model,
        on_line=log_line,
    )
