"""`python -m flows.resume RUN_ID`: go on with a run in this process, whatever ended it and whatever Prefect says of it.

What is finished is not done again, training goes on from the newest whole checkpoint, and it is the same MLflow run. If
the Prefect server knows the run, it is the same flow run there too.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import State
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import OrchestrationResult, SetStateStatus
from prefect.exceptions import ObjectNotFound
from prefect.flow_engine import run_flow
from prefect.states import Pending, Scheduled

from flows.command_line import check_prefect, run_to_end
from flows.grpo import grpo
from flows.leaving import leave
from flows.run_id import RESUMED
from tasks.config import STAGES
from tasks.errors import UserError
from tasks.run import Run, read_json, runs_root


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.resume", description="Go on with a run of the flow grpo.")
    parser.add_argument(
        "run", help="the flow run's id: the name of its folder in runs/, which a run prints as it begins"
    )
    parser.add_argument("--until", choices=STAGES, help="the last stage to run; by default as it last was")
    given = parser.parse_args(arguments)
    try:
        run_id = _name(given.run)
        parameters = parameters_of(run_id) | ({"until": given.until} if given.until else {})
        Run.open(run_id).claim()
        check_prefect()
        known = _flow_run(run_id, given.until)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return run_to_end(lambda: resume(run_id, parameters, known))


def _name(given: str) -> str:
    """The run's id, of which a path to its folder is another form. Raises UserError for anything else."""
    name = Path(given).name
    if given.rstrip("/") != name and Path(given).resolve().parent != runs_root().resolve():
        raise UserError(f"{given} is no run in {runs_root()}; give its id, which is the name of its folder there")
    return name


def parameters_of(run_id: str) -> dict[str, Any]:
    """The flow's parameters by what lies in the run folder. Raises UserError if there is no such run."""
    folder = runs_root() / run_id
    if not (folder / "run.json").is_file():
        known = sorted(runs_root().glob("*/run.json"), key=lambda path: path.stat().st_mtime)
        newest = f"; the newest is {known[-1].parent.name}" if known else ""
        raise UserError(f"there is no run {run_id} in {runs_root()}{newest}; correct the id, or set GRPO_RUNS")
    config = folder / "config.yaml"
    if not (config.is_file() and config.read_text(encoding="utf-8").strip()):
        raise UserError(f"the run {run_id} has lost its configuration, {config}; begin a new one")
    try:
        return {"config": str(config), "until": read_json(folder / "run.json")["until"]}
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"{folder / 'run.json'} is damaged, so it is not known how far the run {run_id} was to go; begin a new one"
        ) from None


def resume(run_id: str, parameters: dict[str, Any], known: FlowRun | None) -> State:
    """Run the flow again as the run `run_id`; `known` is what the Prefect server has of it."""
    if known is not None:
        state: State = run_flow(grpo, flow_run=known, parameters=parameters, return_type="state")  # type: ignore[assignment]
        return state
    token = RESUMED.set(run_id)
    try:
        return grpo(**parameters, return_state=True)
    finally:
        RESUMED.reset(token)


def _flow_run(run_id: str, until: str | None) -> FlowRun | None:
    """The flow run, made ready to run once more, if the server knows it; `until` as its parameter, if there is one, so
    that whatever else goes on with it goes as far.

    Raises UserError if another run has the slot of its deployment.
    """
    with get_client(sync_client=True) as client:
        try:
            client.set_flow_run_state(UUID(run_id), Scheduled(message="to be resumed"), force=True)
        except (ObjectNotFound, ValueError):
            return None
        # At once, lest a worker takes it up; and not by force, since this is where a deployment's run gets its slot.
        answer: OrchestrationResult[Any] = client.set_flow_run_state(
            UUID(run_id), Pending(message="resumed by flows.resume")
        )
        if answer.status != SetStateStatus.ACCEPT:
            raise UserError(
                f"the run {run_id} cannot go on now, since its deployment takes one run at a time; it is queued, and a "
                "worker goes on with it when the other one has ended (some minutes after its end, if that was a crash)"
            )
        known = client.read_flow_run(UUID(run_id))
        if until:
            client.update_flow_run(UUID(run_id), parameters=known.parameters | {"until": until})
        return known


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
