"""The flow `evaluate`: score any model, or a registered version, by the pipeline's own protocol.

python -m flows.evaluate deployments/gsm8k.yaml --model models:/grpo-gsm8k@champion
prefect deployment run evaluate/gsm8k --param model=Qwen/Qwen2.5-1.5B-Instruct
"""

from contextlib import closing
from typing import Any

from prefect import State, flow, get_run_logger
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows.artifacts import keep_answers, say_scores
from flows.beginning import begin
from flows.hooks import end_record
from flows.shared_stages import ingest, preflight, prompt_lengths, score_untrained, validate
from flows.stages import REFUSED, Context, log_line, run_stages, stage
from flows.tags import run_tags
from tasks.config import RegistrySettings, load
from tasks.errors import UserError
from tasks.preflight import PreflightWorker
from tasks.report import score_text
from tasks.run import read_json, runs_root, write_json
from tasks.tracking import Tracker
from tasks.versions import FetchedVersion, fetch_version

# What a configuration says of its own model is not meant for another one; an override is.
OF_ANOTHER_MODEL = {"model.revision": None, "model.trust_remote_code": False}

MEANT = "version.json"  # in the run folder: which version an alias meant

score = stage("score", retries=2, delays=[5], gpu=True)(score_untrained)


@flow(name="evaluate", on_crashed=[end_record], on_cancellation=[end_record])
def evaluate(
    config: str | dict[str, Any] = "deployments/gsm8k.yaml",
    model: str | None = None,
    overrides: dict[str, Any] | None = None,
) -> State:
    """Score a model on the test questions of a configuration.

    Args:
        config: a YAML file of `tasks.config.Config`, or its content.
        model: a hub id, a folder, `gguf:PACKAGE/FILE`, or `models:/NAME@ALIAS` or `models:/NAME/VERSION` from MLflow;
            null takes the configuration's own.
        overrides: dotted settings on top.
    """
    version: FetchedVersion | None = None
    try:
        settings = load(config, overrides)
        if model is not None:
            if not model.strip():
                raise UserError("the model to score has no name; give one, or leave it out for the configuration's own")
            version = _version(model, settings.registry) if model.startswith("models:/") else None
            name = version.folder if version else model
            settings = load(config, OF_ANOTHER_MODEL | (overrides or {}) | {"model.name": name})
        context = begin(str(flow_run.id), settings, get_run_logger().warning)
        if version:
            try:
                write_json(context.run.folder / MEANT, {model: version.uri})
            except OSError as error:
                raise context.run.unwritable(error) from None
    except UserError as error:
        return Failed(name=REFUSED, message=str(error))
    name = version.uri if version else model or settings.model.name
    return run_stages(
        lambda: _run(context, name),
        "the run was ended; nothing of it is kept but what is in the store",
    )


def _version(model: str, registry: RegistrySettings) -> FetchedVersion:
    """The version that `model` means, and meant when this run began: an alias may have moved since."""
    path = runs_root() / str(flow_run.id) / MEANT
    meant: dict[str, str] = read_json(path) if path.exists() else {}
    return fetch_version(meant.get(model, model), registry)


def _run(context: Context, model: str) -> State:
    with closing(PreflightWorker(context.run, log_line)) as worker:
        found = preflight(context, worker, trains=False)
        context = context.pinned(found["model"])
        data = validate(context, ingest(context))["data"]
        prompt_lengths(context, data, found, worker, splits=["test"])
    with Tracker.open(
        context.config.registry,
        context.run,
        name=f"evaluate {model}",
        params=context.config.dump(),
        tags=run_tags(context.config, data) | {"model": model},
    ) as tracker:
        result = score(context, data, found["model"])
        tracker.evaluation("eval", result)
        tables = keep_answers(tracker, result, "evaluation")
        tracker.finish("FINISHED")
    say_scores(result)
    get_run_logger().info("every answer: %s; MLflow run: %s", ", ".join(map(str, tables)), tracker.link)
    return Completed(message=f"{model}: {score_text(result)}")


if __name__ == "__main__":
    import sys

    from flows.command_line import evaluate_main
    from flows.leaving import leave

    leave(evaluate_main(sys.argv[1:], evaluate))
