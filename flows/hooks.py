"""What is done when a run has ended and its own process could not do it.

python -m flows.hooks       # all runs of this machine whose processes are gone; `make up` and `make down` do so
"""

import sys
from typing import Any

from prefect import State
from prefect.client.schemas.objects import FlowRun

from tasks.config import RegistrySettings, load
from tasks.errors import UserError
from tasks.run import Run, runs_root
from tasks.tracking import close_abandoned, running_flow_runs, tracking_uri


def end_record(flow: Any, flow_run: FlowRun, state: State) -> None:
    """MLflow shall not say that a run is going on whose process was killed. A later attempt opens it again.

    Prefect's worker calls this once it has found the flow's process dead, or has cancelled it.
    """
    folder = runs_root() / str(flow_run.id)
    if not (folder / "config.yaml").is_file():
        return  # it was refused, or died, before there was anything to record
    uri = tracking_uri(load(folder / "config.yaml").registry)
    _end(uri, str(flow_run.id), "cancelled" if state.is_cancelling() else "crashed")


def end_records_of_the_dead() -> list[str]:
    """The same for all runs whose folders lie here; gives those that were ended."""
    uri = tracking_uri(RegistrySettings())
    here = [run_id for run_id in running_flow_runs(uri) if (runs_root() / run_id).is_dir()]
    return [run_id for run_id in here if _end(uri, run_id, "crashed")]


def _end(uri: str, run_id: str, outcome: str) -> bool:
    """Whether the run was nobody's any more, and so was ended."""
    run = Run.open(run_id)
    try:
        run.claim()
    except UserError:
        return False  # another attempt is going on with it
    try:
        close_abandoned(uri, run_id, outcome)
    finally:
        run.release()
    return True


if __name__ == "__main__":
    for ended in end_records_of_the_dead():
        print(f"the run {ended} was left by its process; MLflow shows it as killed now")
    sys.exit(0)
