"""Stage before all others: whatever would stop the run later and can be known now."""

from collections.abc import Callable
from typing import Any

from tasks.config import Config
from tasks.evaluate import QUIET
from tasks.run import Run, require_disk
from tasks.supervise import run_job
from tasks.tracking import check_reachable, tracking_uri

# A small run's logs, results and adapter; a run that saves merged weights needs the model's size besides.
DISK_GIB = 2.0


def preflight(run: Run, config: Config, on_line: Callable[[str], None]) -> dict[str, Any]:
    """Check disk and MLflow, then, in a child, device, TRL's and peft's own opinion, and the model.

    Gives `{"model": {"path", "identity"}, "engine", "dtype", "gpus"}`. Raises UserError.
    """
    require_disk(run.folder, DISK_GIB, "a run")
    check_reachable(tracking_uri(config.registry))
    folder = run.folder / "preflight"
    return run_job(
        "tasks.preflight_worker",
        {"config": config.dump(), "scratch": str(folder)},
        folder,
        log=run.log_file("preflight"),
        on_line=on_line,
        environment=QUIET,
        time_limit=600,
    )
