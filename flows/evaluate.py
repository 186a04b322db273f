"""The flow `evaluate`: score any model, or a registered version, by the pipeline's own protocol.

python -m flows.evaluate deployments/gsm8k.yaml --model models:/grpo-gsm8k@champion
prefect deployment run evaluate/gsm8k --param model=Qwen/Qwen2.5-1.5B-Instruct
"""

import signal
from pathlib import Path
from typing import Any

from prefect import State, flow, get_run_logger
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows.hooks import end_record
from flows.leaving import leave_within
from flows.shared_stages import ingest, preflight, score_untrained
from flows.stages import REFUSED, Context, StageFailed, stage
from flows.tags import run_tags
from tasks.config import load
from tasks.errors import UserError
from tasks.report import score_text
from tasks.run import Run
from tasks.tracking import Tracker
from tasks.versions import local_model

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
    tracker: Tracker | None = None
    try:
        settings = load(config, overrides)
        if model:
            name = local_model(model, settings.registry) if model.startswith("models:/") else model
            settings = load(config, (overrides or {}) | {"model.name": name})
        run = Run.open(str(flow_run.id))
        run.claim()
        settings.write(run.folder / "config.yaml")
        context = Context(run, settings)
        found = preflight(context)
        data = ingest(context)
        tracker = Tracker.open(
            settings.registry,
            run,
            name=f"evaluate {model or settings.model.name}",
            params=settings.dump(),
            tags=run_tags(settings, data) | {"model": model or settings.model.name},
        )
        result = score(context, data, found["model"])
        tracker.evaluation("eval", result)
        tracker.artifact(Path(result["results"]), "evaluation")
        tracker.finish("FINISHED")
    except (StageFailed, UserError) as failure:
        if tracker:
            tracker.give_up("FAILED", "failed")
        return Failed(name=REFUSED, message=str(failure))
    except Exception:
        if tracker:
            tracker.give_up("FAILED", "failed")
        raise
    except BaseException:  # a cancellation arrives as TerminationSignal, which is no Exception
        if tracker:
            tracker.give_up("KILLED", "cancelled")
        leave_within(10, 128 + signal.SIGTERM)
        raise
    get_run_logger().info("per-question results: %s", result["results"])
    return Completed(message=f"{model or settings.model.name}: {score_text(result)}")


if __name__ == "__main__":
    import sys

    from flows.command_line import evaluate_main
    from flows.leaving import leave

    leave(evaluate_main(sys.argv[1:], evaluate))
