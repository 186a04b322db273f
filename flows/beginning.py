"""How a flow begins: its run's folder, held for this process, and the configuration that is the run's."""

from collections.abc import Callable

from flows.stages import Context
from tasks.config import Config, load
from tasks.errors import UserError
from tasks.evaluate import user_code
from tasks.run import Run, digest, read_json, write_json

JUDGED_BY_REWARDS = ("check_rewards", "baseline", "evaluate")


def begin(run_id: str, settings: Config, warn: Callable[[str], None], until: str | None = None) -> Context:
    """The run `run_id`, with `settings`, and `until` for `flows.resume`, kept in its folder.

    An attempt that goes on with stages that are finished keeps the first one's settings; where the user's reward has
    been changed, as one must be that failed, what was judged by it is judged again. Raises UserError where the folder
    cannot be written to.
    """
    run = Run.open(run_id)
    try:
        run.claim(on_wait=warn)
        kept = _kept(run, settings, warn)
        if until:
            _heed_changed_rewards(run, kept, warn)
            write_json(run.folder / "run.json", {"until": until, "user_code": digest(user_code(kept))})
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


def _heed_changed_rewards(run: Run, config: Config, warn: Callable[[str], None]) -> None:
    record = run.folder / "run.json"
    if not record.is_file() or run.result("register") is not None:
        return
    if read_json(record)["user_code"] != digest(user_code(config)) and (again := run.forget(*JUDGED_BY_REWARDS)):
        warn(
            f"a file of your rewards has been changed since this run began: {', '.join(again)} "
            f"{'is' if len(again) == 1 else 'are'} done again, and training goes on with the rewards as they are now"
        )
