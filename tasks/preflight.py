"""Stage before all others: whatever would stop the run later and can be known now."""

from collections.abc import Callable
from typing import Any

from tasks.config import Config
from tasks.evaluate import QUIET
from tasks.named_files import check_files
from tasks.run import Run, require_disk
from tasks.supervise import run_job
from tasks.tracking import check_reachable, tracking_uri

LEAST_GIB = 0.5  # of disk, to begin at all


def preflight(run: Run, config: Config, on_line: Callable[[str], None]) -> dict[str, Any]:
    """Check disk, named files and MLflow, then, in a child, device, TRL's and peft's own opinion, and the model.

    Gives `{"model": {"path", "identity"}, "engine", "dtype", "gpus", "disk_gib", "architecture", "machine"}`, the last
    two as `tasks.estimate` has them. Raises UserError.
    """
    require_disk(run.folder, LEAST_GIB, "a run")
    check_files(config)
    check_reachable(tracking_uri(config.registry))
    folder = run.folder / "preflight"
    found = run_job(
        "tasks.preflight_worker",
        {"config": config.dump(), "scratch": str(folder)},
        folder,
        log=run.log_file("preflight"),
        on_line=on_line,
        environment=QUIET,
        time_limit=600,
    )
    require_disk(run.folder, found["disk_gib"], "this run, with its checkpoints and the merged model,")
    return found
