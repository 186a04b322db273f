"""The flow `grpo`: from questions to a registered model, every stage checked before the next one costs anything.

python -m flows.grpo deployments/gsm8k.yaml training.learning_rate=1e-5 --until evaluate
prefect deployment run grpo/gsm8k --param 'overrides={"training.learning_rate": 1e-5}'
"""

from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
from prefect import State, flow, get_run_logger
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows.artifacts import (
    against_estimate,
    completions_table,
    keep_answers,
    measured,
    publish,
    say_scores,
    show_gate,
)
from flows.beginning import begin
from flows.hooks import end_record
from flows.run_id import run_id
from flows.shared_stages import ingest, preflight, prompt_lengths, score_untrained, validate
from flows.stages import REFUSED, Context, log_line, run_stages, stage
from flows.tags import run_tags
from tasks import check_rewards as check_rewards_stage
from tasks import evaluate as evaluate_stage
from tasks import register as register_stage
from tasks import train as train_stage
from tasks.config import STAGES, Stage, load
from tasks.errors import UserError
from tasks.estimate import Architecture, Machine, judge
from tasks.estimate import estimate as estimate_needs
from tasks.outcome import Outcome
from tasks.preflight import PreflightWorker
from tasks.prune import prune_checkpoints
from tasks.tracking import Tracker
from tasks.validate import gate_numbers

GATES = ("ingest", "validate", "check_rewards")


@stage("check_rewards")
def check_rewards(context: Context, data: dict[str, Any]) -> dict[str, Any]:
    found = check_rewards_stage.check_rewards(context.run, context.config, data, on_line=log_line)
    show_gate("check_rewards", found["markdown"])
    return found


@stage("estimate")
def estimate(context: Context, found: dict[str, Any], lengths: dict[str, Any]) -> dict[str, Any]:
    machine = Machine(**found["machine"])
    longest = min(lengths["train"]["max"], context.config.prompt.max_tokens or lengths["train"]["max"])
    needs = estimate_needs(context.config, Architecture(**found["architecture"]), machine, longest)
    warning = judge(context.config, needs, machine)
    log_line(f"WARNING {warning}" if warning else f"training needs {needs}")
    return {"memory_gib": needs.memory_gib, "step_seconds": needs.step_seconds}


@stage("record_gates", retries=3, delays=[5, 30, 60])
def record_gates(
    context: Context, tracker: Tracker, validated: dict[str, Any], checked: dict[str, Any]
) -> dict[str, Any]:
    """What the gates found, in MLflow."""
    tracker.table(pd.DataFrame(validated["expectations"]), "data_gate.json")
    tracker.table(pd.DataFrame(checked["table"]), "reward_gate.json")
    tracker.artifact(Path(validated["report"]) / "summary.json", "data_gate")
    numbers = {f"gate/{name}": value for name, value in gate_numbers(validated).items()}
    numbers |= {f"gate/exploit/{name.replace(' ', '_')}": share for name, share in checked["exploit_shares"].items()}
    tracker.metrics(numbers)
    return numbers


baseline = stage("baseline", retries=2, delays=[5], gpu=True)(score_untrained)


@stage("train", retries=2, delays=[10], gpu=True)
def train(context: Context, tracker: Tracker, data: dict[str, Any], model: dict[str, str]) -> dict[str, Any]:
    trained = train_stage.train(
        context.run, context.config, tracker, data=Path(data["folder"]), model=model, on_line=log_line
    )
    tracker.table(completions_table(context.run.folder / "train" / "completions"), "completions.json")
    if trained["memory_changes"]:
        tracker.tags({"memory_changes": "; ".join(trained["memory_changes"])})
    return trained


@stage("evaluate", retries=2, delays=[5], gpu=True)
def evaluate(context: Context, data: dict[str, Any], trained: dict[str, Any]) -> dict[str, Any]:
    return evaluate_stage.evaluate(
        context.run,
        context.config,
        stage="evaluate",
        rows=Path(data["folder"]) / "test.parquet",
        model=trained["model"] or trained["base"],
        adapter=Path(trained["adapter"]) if trained["adapter"] else None,
        folder=context.run.folder / "evaluate",
        on_line=log_line,
    )


@stage("register", retries=3, delays=[5, 30])
def register(context: Context, tracker: Tracker, outcome: Outcome) -> dict[str, Any]:
    return register_stage.register(context.run, context.config, tracker, outcome, on_line=log_line)


@flow(name="grpo", on_crashed=[end_record], on_cancellation=[end_record])
def grpo(
    config: str | dict[str, Any] = "deployments/gsm8k.yaml",
    overrides: dict[str, Any] | None = None,
    until: Stage = "register",
) -> State:
    """Train a model with GRPO on a configuration, and register it if the evidence is there.

    Args:
        config: a YAML file of `tasks.config.Config`, or its content.
        overrides: dotted settings on top, for example {"training.learning_rate": 1e-5}.
        until: the last stage to run.
    """
    try:
        settings = load(config, overrides)
        context = begin(run_id(), settings, get_run_logger().warning, until)
    except UserError as error:
        return Failed(name=REFUSED, message=str(error))
    get_run_logger().info("run folder: %s", context.run.folder)
    return run_stages(
        lambda: _run(context, until), f"the run was ended; go on with it: python -m flows.resume {context.run.id}"
    )


def _run(context: Context, until: Stage) -> State:
    """The gates, and what comes after them."""
    if context.run.result("register") is not None:  # which a run that is done and gone on with does not take back
        until = "register"
    if until in GATES:  # they need no model, and run on any machine
        _pass_gates(context, until)
        return _stopped(context, until)
    with closing(PreflightWorker(context.run, log_line)) as worker:
        found = preflight(context, worker, trains=True)
        context = context.pinned(found["model"])
        data, validated, checked = _pass_gates(context)
        lengths = prompt_lengths(context, data, found, worker)
    needs = estimate(context, found, lengths)
    # Only what has passed the gates appears in MLflow.
    settings = context.config
    with Tracker.open(
        settings.registry, context.run, name=flow_run.name, params=settings.dump(), tags=run_tags(settings, data)
    ) as tracker:
        record_gates(context, tracker, validated, checked)
        tracker.metrics({f"estimate/{name}": value for name, value in needs.items() if value is not None})
        return _train_and_judge(context, tracker, until, data, found["model"], needs)


def _pass_gates(
    context: Context, last: Stage = "check_rewards"
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The data to go on with, and what the two gates found, as far as the stage `last`."""
    data, validated, checked = ingest(context), {}, {}
    if last != "ingest":
        validated = validate(context, data)
        data = validated["data"]
    if last == "check_rewards":
        checked = check_rewards(context, data)
    return data, validated, checked


def _train_and_judge(
    context: Context, tracker: Tracker, until: Stage, data: dict[str, Any], model: dict[str, str], needs: dict[str, Any]
) -> State:
    """From the model as it is to a version in the registry."""
    before = baseline(context, data, model)
    tracker.evaluation("baseline", before)
    keep_answers(tracker, before, "baseline")
    if until == "baseline":
        say_scores(before)
        return _stopped(context, until, tracker)
    trained = train(context, tracker, data, model)
    took = measured(context.run, trained)
    tracker.metrics({f"measured/{name}": value for name, value in took.items()})
    get_run_logger().info("training took %s", against_estimate(took, needs))
    if until == "train":
        return _stopped(context, until, tracker)
    after = evaluate(context, data, trained)
    tracker.evaluation("eval", after, step=trained["steps"])
    keep_answers(tracker, after, "evaluation")
    outcome = Outcome(data, trained, before, after)
    tracker.comparison(outcome.gain, step=trained["steps"])
    if until == "evaluate":
        publish(context.run, context.config, tracker, outcome, None)
        return _stopped(context, until, tracker)
    version = register(context, tracker, outcome)
    publish(context.run, context.config, tracker, outcome, version)
    if not context.config.training.keep_checkpoints:
        prune_checkpoints(context.run)
    tracker.finish("FINISHED", version["outcome"])
    return Completed(message=f"{version['name']} version {version['version']}: {version['outcome']}")


def _stopped(context: Context, until: Stage, tracker: Tracker | None = None) -> State:
    if tracker:
        tracker.finish("FINISHED", "stopped")
        get_run_logger().info("MLflow run: %s", tracker.link)
    further = f"python -m flows.resume {context.run.id} --until register"
    return Completed(message=f"stopped after {until}, as asked; to go on: {further}")


if __name__ == "__main__":
    import sys

    from flows.command_line import grpo_main
    from flows.leaving import leave

    leave(grpo_main(sys.argv[1:], grpo, STAGES))
