"""What is done when a run has ended and its own process could not do it."""

from typing import Any

from prefect import State
from prefect.client.schemas.objects import FlowRun

from tasks.config import load
from tasks.errors import UserError
from tasks.run import Run, runs_root
from tasks.tracking import close_abandoned


def end_record(flow: Any, flow_run: FlowRun, state: State) -> None:
    """MLflow shall not say that a run is going on whose process was killed. A later attempt opens it again.

    Prefect's worker calls this once it has found the flow's process dead, or has cancelled it.
    """
    folder = runs_root() / str(flow_run.id)
    if not (folder / "config.yaml").is_file():
        return  # it was refused, or died, before there was anything to record
    run = Run.open(str(flow_run.id))
    try:
        run.claim()
    except UserError:
        return  # another attempt is going on with it
    try:
        close_abandoned(load(folder / "config.yaml").registry, run, "cancelled" if state.is_cancelling() else "crashed")
    finally:
        run.release()
