"""How a flow begins: its run's folder, held for this process, and what the run keeps to whenever it is gone on with."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.stages import Context
from tasks.config import Config, load, read_yaml
from tasks.errors import UserError
from tasks.evaluate import user_code
from tasks.model_folder import folder_digest
from tasks.run import Run, digest, read_json, write_json
from tasks.tracking import forget_metrics, tracking_uri, without_password

JUDGED_BY_REWARDS = ("check_rewards", "baseline", "evaluate")


def begin(run_id: str, settings: Config, warn: Callable[[str], None], until: str | None = None) -> Context:
    """The run `run_id`, with `settings`, and `until` for `flows.resume`, kept in its folder.

    An attempt that goes on with stages that are finished keeps the first one's settings; where the user's reward has
    been changed, as one must be that failed, what was judged by it is judged again. Raises UserError where the folder
    cannot be written to, or where the run would be recorded in another MLflow or go on with another model.
    """
    run = Run.open(run_id)
    run.claim(on_wait=warn)
    try:
        kept = _kept(run, settings, warn)
    except OSError as error:
        raise run.unwritable(error) from None
    if until is None:
        return Context(run, kept)
    record = {
        "until": until,
        "mlflow": without_password(tracking_uri(kept.registry)),
        "user_code": digest(user_code(kept)),
        "config": digest(read_yaml(run.folder / "config.yaml")),
    }
    _go_on(run, kept, record, warn)
    try:
        write_json(run.folder / "run.json", record)
    except OSError as error:
        raise run.unwritable(error) from None
    return Context(run, kept)


def _kept(run: Run, settings: Config, warn: Callable[[str], None]) -> Config:
    path = run.folder / "config.yaml"
    if not (path.is_file() and _has_results(run)):
        settings.write(path)
        return settings
    kept = load(path)
    if kept.dump() != settings.dump():
        # What is finished was done by the one, and a model half by each would be nobody's.
        warn(
            f"the configuration has been changed since this run began; it goes on with its own, {path}. "
            "For the changed one begin a new run"
        )
    return kept


def _has_results(run: Run) -> bool:
    """Whether a stage was finished by an earlier attempt."""
    return any((run.folder / "results").glob("[!.]*.json"))


def _go_on(run: Run, config: Config, now: dict[str, Any], warn: Callable[[str], None]) -> None:
    """Compare what the run depends on with what it was when it began."""
    path = run.folder / "run.json"
    try:
        before: dict[str, Any] = read_json(path) if path.is_file() else now
        began = {name: before[name] for name in now}
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is damaged, so the run {run.id} cannot be gone on with; begin a new one") from None
    if _has_results(run) and began["config"] != now["config"]:
        config_file = run.folder / "config.yaml"
        raise UserError(
            f"{config_file} is not as it was when the run {run.id} began, and its finished stages were done by what it "
            f"said; undo the edit, or begin a new run with it: python -m flows.grpo {config_file}"
        )
    found = run.result("preflight")  # before that was passed, nothing has been recorded or made
    if found and began["mlflow"] != now["mlflow"]:
        raise UserError(
            f"the run {run.id} is recorded in {began['mlflow']}, but MLFLOW_TRACKING_URI or registry.tracking_uri now "
            f"means {now['mlflow']}; set MLFLOW_TRACKING_URI={began['mlflow']}"
        )
    if run.result("register") is not None:
        return
    if found and os.path.isabs(found["model"]["path"]):
        _require_the_same(run, config.model.name, found["model"])
    if began["user_code"] != now["user_code"] and (again := run.forget(*JUDGED_BY_REWARDS)):
        (run.folder / "train" / "chosen.json").unlink(missing_ok=True)  # the best so far, by scores of the old ones
        forget_metrics(run, "baseline/", "eval/")
        warn(
            f"a file of your rewards has been changed since this run began: {', '.join(again)} "
            f"{'is' if len(again) == 1 else 'are'} done again, and training goes on with the rewards as they are now"
        )


def _require_the_same(run: Run, name: str, model: dict[str, str]) -> None:
    folder = Path(model["path"])
    if not folder.is_dir():
        raise UserError(f"model.name: the model of the run {run.id} is not in {folder} any more; put it back")
    if Path(name) == folder and folder_digest(folder) != model["identity"]:  # one that was converted has another name
        raise UserError(
            f"model.name: the model in {folder} is another one than when the run {run.id} began; put that one back, or "
            "begin a new run"
        )
