"""Stage before all others: whatever would stop the run later and can be known now."""

from collections.abc import Callable
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
TIME_LIMIT = 3600  # seconds; every byte of a model in a folder is read once, for its digest
JOBS = ("preflight", "prompt_lengths")  # of its worker; stages by the same names give them


class PreflightWorker:
    """The child that knows torch, TRL and the model: for `preflight`, and for `prompt_lengths` when there are data.

    It is started when it is first asked, and again where it has died meanwhile. To be closed.
    """

    def __init__(self, run: Run, on_line: Callable[[str], None]) -> None:
        self._run, self._on_line = run, on_line
        self._worker: Worker | None = None

    def ask(self, stage: str, job: dict[str, Any], time_limit: float | None = None) -> dict[str, Any]:
        """The result of the job of `stage`, one of `JOBS`. Raises as `Worker.answer` does."""
        if self._worker is None or self._worker.ended:
            self.close()
            self._worker = Worker(
                "tasks.preflight_worker",
                self._run.folder / "preflight",
                log=self._run.log_file(stage),
                on_line=self._on_line,
                jobs=JOBS,
                environment=QUIET,
            )
        self._worker.give(job, stage)
        return self._worker.answer(time_limit)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None


def preflight(run: Run, config: Config, worker: PreflightWorker, trains: bool) -> dict[str, Any]:
    """Check disk, named files and MLflow, then, by the worker, device and model, and TRL's and peft's own opinion.

    Gives `{"model": {"path", "identity", "revision", "dtype"}, "engine", "gpus", "disk_gib", "positions"}`, where
    `positions` is the most tokens that the model has room for, or null; for a flow that `trains`, also `"architecture"`
    and `"machine"` as `tasks.estimate` has them. Raises UserError.
    """
    require_disk(run.folder, LEAST_GIB, "a run")
    check_files(config)
    check_reachable(tracking_uri(config.registry))
    # The data gate, which comes next, takes longer to import Great Expectations than to use it.
    Thread(target=import_module, args=("tasks.expectation_run",), daemon=True).start()
    job = {"config": config.dump(), "trains": trains, "scratch": str(run.folder / "preflight")}
    found = worker.ask("preflight", job, time_limit=TIME_LIMIT)
    made = ", with its checkpoints and the merged model," if trains else ""
    require_disk(run.folder, found["disk_gib"], f"this run{made}")
    return found
