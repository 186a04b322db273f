"""Stage before all others: whatever would stop the run later and can be known now."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from threading import Thread
from typing import Any

from tasks.config import Config
from tasks.evaluate import QUIET
from tasks.named_files import check_files
from tasks.run import Run, require_disk
from tasks.supervise import Worker
from tasks.tracking import check_reachable, tracking_uri

LEAST_GIB = 0.5  # of disk, to begin at all
JOBS = ("preflight", "prompt_lengths")  # of its worker; stages by the same names give them


@contextmanager
def preflight_worker(run: Run, on_line: Callable[[str], None], stages: Sequence[str] = JOBS) -> Iterator[Worker | None]:
    """The child that knows torch, TRL and the model: for `preflight`, and for `prompt_lengths` when there are data.

    None where an earlier attempt has finished all of `stages`, which are those that the flow has.
    """
    waiting = [stage for stage in stages if run.result(stage) is None]
    if not waiting:
        yield None
        return
    worker = Worker(
        "tasks.preflight_worker",
        run.folder / "preflight",
        # With a dot it does not count as an attempt at its stage, which may never come.
        log=run.log_file("preflight" if "preflight" in waiting else "preflight.prompts"),
        on_line=on_line,
        jobs=JOBS,
        environment=QUIET,
    )
    try:
        yield worker
    finally:
        worker.end()


def preflight(run: Run, config: Config, worker: Worker | None) -> dict[str, Any]:
    """Check disk, named files and MLflow, then, by the worker, device, TRL's and peft's own opinion, and the model.

    Gives `{"model": {"path", "identity", "revision"}, "engine", "dtype", "gpus", "disk_gib", "positions",
    "architecture", "machine"}`: `positions` is the most tokens that the model has room for, or null; the last two are
    as `tasks.estimate` has them. Raises UserError.
    """
    require_disk(run.folder, LEAST_GIB, "a run")
    check_files(config)
    check_reachable(tracking_uri(config.registry))
    assert worker
    worker.give({"config": config.dump(), "scratch": str(run.folder / "preflight")}, "preflight")
    # The data gate, which comes next, takes longer to import Great Expectations than to use it.
    Thread(target=import_module, args=("tasks.expectation_run",), daemon=True).start()
    found = worker.answer(time_limit=600)
    require_disk(run.folder, found["disk_gib"], "this run, with its checkpoints and the merged model,")
    return found
