"""How a flow begins: its run's folder, held for this process, and the configuration that is the run's."""

import json
from collections.abc import Callable
from pathlib import Path

from flows.stages import Context
from tasks.config import Config, load
from tasks.errors import UserError
from tasks.evaluate import user_code
from tasks.model_folder import folder_digest
from tasks.run import Run, digest, read_json, write_json
from tasks.tracking import tracking_uri, without_password

JUDGED_BY_REWARDS = ("check_rewards", "baseline", "evaluate")


def begin(run_id: str, settings: Config, warn: Callable[[str], None], until: str | None = None) -> Context:
    """The run `run_id`, with `settings`, and `until` for `flows.resume`, kept in its folder.

    An attempt that goes on with stages that are finished keeps the first one's settings; where the user's reward has
    been changed, as one must be that failed, what was judged by it is judged again. Raises UserError where the folder
    cannot be written to, or where the run would be recorded in another MLflow or go on with another model.
    """
    run = Run.open(run_id)
    try:
        run.claim(on_wait=warn)
        kept = _kept(run, settings, warn)
        if until:
            _go_on(run, kept, warn)
            where = without_password(tracking_uri(kept.registry))
            record = {"until": until, "user_code": digest(user_code(kept)), "mlflow": where}
            write_json(run.folder / "run.json", record)
    except (json.JSONDecodeError, KeyError, TypeError):
        raise UserError(f"{run.folder / 'run.json'} is damaged; remove it to go on, or begin a new run") from None
    except OSError as error:
        raise UserError(
            f"the run folder {run.folder} cannot be written to ({error.strerror}); "
            "free some of its disk, or set GRPO_RUNS to a folder that you may write to"
        ) from None
    return Context(run, kept)


def _kept(run: Run, settings: Config, warn: Callable[[str], None]) -> Config:
    path = run.folder / "config.yaml"
    if not (path.is_file() and any((run.folder / "results").iterdir())):
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


def _go_on(run: Run, config: Config, warn: Callable[[str], None]) -> None:
    """Compare what the run depends on, beside its configuration, with what it was when it began."""
    record = run.folder / "run.json"
    if not record.is_file() or run.result("register") is not None:
        return
    began = read_json(record)
    if (now := without_password(tracking_uri(config.registry))) != began["mlflow"]:
        raise UserError(
            f"the run {run.id} is recorded in {began['mlflow']}, but MLFLOW_TRACKING_URI or registry.tracking_uri now "
            f"means {now}; set it as it was"
        )
    found = run.result("preflight")
    folder = Path(config.model.name)
    if found and folder.is_dir() and folder_digest(folder) != found["model"]["identity"]:
        raise UserError(
            f"model.name: the model in {folder} is another one than when the run {run.id} began; put that one back, or "
            "begin a new run"
        )
    if began["user_code"] != digest(user_code(config)) and (again := run.forget(*JUDGED_BY_REWARDS)):
        warn(
            f"a file of your rewards has been changed since this run began: {', '.join(again)} "
            f"{'is' if len(again) == 1 else 'are'} done again, and training goes on with the rewards as they are now"
        )
