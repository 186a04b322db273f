"""Which run a flow is: its Prefect flow run, or the one that `flows.resume` goes on with."""

from contextvars import ContextVar

from prefect.runtime import flow_run

RESUMED: ContextVar[str | None] = ContextVar("RESUMED", default=None)


def run_id() -> str:
    """The name of the run's folder, and of its MLflow run."""
    return RESUMED.get() or str(flow_run.id)
