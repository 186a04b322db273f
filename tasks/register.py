"""Stage: the trained model in MLflow's registry, once per run, with the alias that the evidence gives it.

A version's artifacts:

    MLmodel, requirements.txt …   loads by `mlflow.transformers` and `mlflow.pyfunc`
    model/                        the merged weights, tokenizer and card: loads by `transformers`
    peft/                         the adapter alone: loads by `peft`
    evaluation/                   answers to the test questions before and after training

Every step looks first for what an earlier attempt left, so a kill between any two leaves nothing twice.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.entities import LoggedModel, LoggedModelOutput
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.models import Model

from rewards.registry import is_registered
from tasks import promotion
from tasks.card import description, facts, model_card
from tasks.config import Config
from tasks.devices import only
from tasks.errors import UserError
from tasks.evaluate import QUIET, merged_folder, user_code
from tasks.outcome import Outcome
from tasks.run import Run, digest, one_at_a_time, runs_root
from tasks.supervise import run_job
from tasks.tracking import Tracker
from tasks.whole import is_whole, remove_whole


def register(
    run: Run,
    config: Config,
    tracker: Tracker,
    outcome: Outcome,
    *,
    on_line: Callable[[str], None],
) -> dict[str, Any]:
    """Log the trained model, register it as `registry.name`, and promote it if it is better than the champion.

    Gives `name`, `version`, `alias`, `outcome` ("promoted"
    or "challenger"), `reason`, `model_uri`, and `compared_with`, the champion's version or "".

    Raises UserError for weights that training has not changed (the run's tag `outcome` is "unchanged" then) or that
    are not finite, WorkerFailed if the worker died, MlflowException if the server is away for minutes.
    """
    results = pd.read_parquet(outcome.after["results"])
    known = facts(config, outcome)
    version = _own_version(tracker, config.registry.name)
    if version is None:
        model = _own_model(tracker)
        if model is None or model.status != "READY":
            folder = _build(run, config, tracker, outcome, model_card(config, known), results, on_line)
            for name, summary in (("before", outcome.before), ("after", outcome.after)):
                _copy(Path(summary["results"]), folder / "evaluation" / f"{name}.parquet")
            model = _upload(tracker, folder, step=outcome.trained["step"])
        version = _create_version(tracker, config, model, outcome)
    if "outcome" not in version.tags:
        version = _promote(tracker, config, version, results, outcome, known)
    tracker.tags({"outcome": version.tags["outcome"]})
    for folder in (run.folder / "register", merged_folder(run.folder / "evaluate")):
        remove_whole(folder)  # as large as the model, and uploaded
    tags = {key: version.tags[key] for key in ("outcome", "alias", "reason", "compared_with")}
    return {
        "name": version.name,
        "version": str(version.version),
        "model_uri": f"models:/{version.name}/{version.version}",
        **tags,
    }


def _build(
    run: Run,
    config: Config,
    tracker: Tracker,
    outcome: Outcome,
    card: str,
    results: pd.DataFrame,
    on_line: Callable[[str], None],
) -> Path:
    """The MLflow model as a folder, made by a worker that ends and gives its memory back."""
    folder = run.folder / "register"
    built = folder / "model"
    if is_whole(built):
        return built
    merged = merged_folder(run.folder / "evaluate")
    job = {
        "config": config.dump(),
        "trained": dict(outcome.trained),
        "merged": str(merged) if config.registry.merged else None,
        "card": card,
        "question": results["question"].iloc[0],
        "folder": str(built),
    }
    made = run_job(
        "tasks.register_worker",
        job,
        folder,
        log=run.log_file("register"),
        on_line=on_line,
        # MLflow would put the model on the first GPU, which may be smaller, or another run's for the moment.
        # Of a model that sees too transformers would list all those that do not.
        environment=QUIET | {"TRANSFORMERS_VERBOSITY": "critical"} | only([]),
    )
    remove_whole(merged)  # which is in the model now; the disk need not hold it a third time
    if made["unchanged"]:
        tracker.tags({"outcome": "unchanged"})
        raise UserError(made["unchanged"])
    return built


def _own_model(tracker: Tracker) -> LoggedModel | None:
    """What this run has logged as its model. MLflow may have made two of one request; the first counts."""
    found = tracker.client.search_logged_models(
        [tracker.experiment_id],
        f"tags.flow_run_id = '{tracker.run.id}'",
        order_by=[{"field_name": "creation_timestamp", "ascending": True}],
    )
    for doubled in found[1:]:
        tracker.client.delete_logged_model(doubled.model_id)
    return found[0] if found else None


def _upload(tracker: Tracker, folder: Path, step: int) -> LoggedModel:
    """Log the folder as the run's model; one that an earlier attempt left half uploaded is made whole."""
    client = tracker.client
    model = _own_model(tracker)
    if model is None:
        client.create_logged_model(tracker.experiment_id, "model", tracker.run_id, tags={"flow_run_id": tracker.run.id})
        model = _own_model(tracker)
        assert model is not None
    outputs = client.get_run(tracker.run_id).outputs
    if not outputs or model.model_id not in {one.model_id for one in outputs.model_outputs}:
        client.log_outputs(tracker.run_id, [LoggedModelOutput(model.model_id, step)])
    _claim(folder, model, tracker.run_id)
    client.log_model_artifacts(model.model_id, str(folder))
    return client.finalize_logged_model(model.model_id, "READY")


def _claim(folder: Path, model: LoggedModel, run_id: str) -> None:
    """Write into MLmodel which model of which run it is, as `Model.log` does, whose fluent parts we do without."""
    description = Model.load(folder / "MLmodel")
    description.run_id = run_id
    description.model_id = description.model_uuid = model.model_id
    description.artifact_path = model.artifact_location
    description.save(str(folder / "MLmodel"))


def _own_version(tracker: Tracker, name: str) -> ModelVersion | None:
    """The version that this run has registered. MLflow may have made two of one request; the first counts."""
    of_run = tracker.client.search_model_versions(f"run_id = '{tracker.run_id}'")
    own = [one for one in of_run if one.name == name and one.tags.get("flow_run_id") == tracker.run.id]
    own.sort(key=lambda one: int(one.version))
    for doubled in own[1:]:
        tracker.client.delete_model_version(name, doubled.version)
    return own[0] if own else None


def _create_version(tracker: Tracker, config: Config, model: LoggedModel, outcome: Outcome) -> ModelVersion:
    client, name = tracker.client, config.registry.name
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    client.create_model_version(
        name,
        # The location itself: for `models:/ID` MLflow would ask the global tracking server, which may be another.
        source=model.artifact_location,
        run_id=tracker.run_id,
        model_id=model.model_id,
        tags={
            "flow_run_id": tracker.run.id,
            "data_digest": outcome.data["digest"],
            "config_digest": digest(config.dump()),
            "judge": judge(config, outcome.after["correct_by"]),
        },
    )
    version = _own_version(tracker, name)
    assert version is not None
    return version


def _promote(
    tracker: Tracker, config: Config, version: ModelVersion, results: pd.DataFrame, outcome: Outcome, known: str
) -> ModelVersion:
    """Give the version its description, its alias, and at last its outcome, which says that all of it is done.

    Two runs that end at the same time decide one after the other, or both would take the place of the same champion.
    """
    client, name, number = tracker.client, version.name, version.version
    with one_at_a_time(runs_root() / f".promotion-{digest([client.tracking_uri, name])[:16]}.lock"):
        if promotion.champion_of(client, name) != str(number):
            decision = promotion.decide(
                client,
                name,
                results=results,
                gain=outcome.gain,
                judge=judge(config, outcome.after["correct_by"]),
                significance=config.registry.significance,
            )
            client.update_model_version(name, number, description(decision.reason, known))
            tags = {"reason": decision.reason, "alias": decision.alias, "compared_with": decision.champion or ""}
            for key, value in tags.items():
                client.set_model_version_tag(name, number, key, value)
            promotion.apply(client, name, number, decision)
    alias = client.get_model_version(name, number).tags["alias"]
    word = "promoted" if alias == promotion.CHAMPION else "challenger"
    client.set_model_version_tag(name, number, "outcome", word)
    return client.get_model_version(name, number)


def judge(config: Config, correct_by: str | None) -> str:
    """The digest of what decides on a version's scores: the reward whose full marks mean a right answer, or, where none
    does, the weighted sum of them all."""
    judges = [one for one in config.rewards.functions if correct_by in (None, one.label)]
    weightless = {"weight"} if correct_by else set()
    functions = [
        # A file is known by what is in it, not by where it lies.
        one.model_dump(mode="json", exclude=weightless) | ({"name": one.label} if one.file else {})
        for one in judges
    ]
    ours = all(is_registered(one.name) for one in judges)
    return digest({"rewards": functions, "user code": [] if ours else user_code(config)})


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    shutil.copyfile(source, target)
