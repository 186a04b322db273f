"""A machine is lost, and both servers are away, in the middle of a training: it ends complete."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from deployed_runs import DeployedRun, Worker, ask, left_alive
from faults import steps_done
from sandbox import Sandbox, Server

pytestmark = pytest.mark.slow

STEPS = 400  # some two minutes of them


@pytest.fixture
def given(overrides: dict[str, Any]) -> dict[str, Any]:
    return overrides | {"evaluation": overrides["evaluation"] | {"every_steps": None}}


def is_complete(place: Sandbox, name: str, run: DeployedRun, steps: int) -> None:
    [recorded] = place.mlflow_runs(name)
    assert (recorded.info.status, recorded.data.tags["flow_run_id"]) == ("FINISHED", run.id)
    history = place.mlflow.get_metric_history(recorded.info.run_id, "train/reward")
    assert sorted(point.step for point in history) == list(range(1, steps + 1))
    assert len(place.mlflow.search_model_versions(f"name = '{name}'")) == 1


@contextmanager
def impatient(place: Sandbox) -> Iterator[None]:
    """The automation for silent runs as it ships, but for a silence of 45 seconds."""
    api = place.variables["PREFECT_API_URL"]
    known = ask(api, "POST", "automations/filter", {})
    [shipped] = [one for one in known if one["name"] == "grpo-crash-silent-runs"]
    values = {name: value for name, value in shipped.items() if name not in ("id", "created", "updated")}
    sooner = values | {"trigger": values["trigger"] | {"within": 45}}
    ask(api, "PUT", f"automations/{shipped['id']}", sooner)
    yield
    ask(api, "PUT", f"automations/{shipped['id']}", values)


def test_registering_again_lets_the_server_keep_what_it_has_seen_of_silent_runs(place: Sandbox, worker: Worker):
    """By Prefect's own way an update of an automation forgets it; each `make up` would be one."""

    def triggers() -> dict[str, str]:
        known = ask(place.variables["PREFECT_API_URL"], "POST", "automations/filter", {})
        return {one["name"]: one["trigger"]["id"] for one in known}

    before = triggers()
    assert place.run("deployments/register.py").returncode == 0
    assert before == triggers() and "grpo-crash-silent-runs" in before


def test_a_run_that_has_lost_its_machine_and_then_both_servers_for_a_minute_ends_complete(
    place: Sandbox, worker: Worker, given: dict[str, Any], prefect_server: Server, mlflow_server: Server
):
    """Worker and flow are gone at one stroke, so nobody is left to report it: by its silence the run is found out, and
    another worker goes on with it by itself. Without the servers it just goes on."""
    name = "alone"
    changes = {"training.max_steps": STEPS, "training.save_steps": 50}
    with impatient(place):
        run = DeployedRun(place, given | changes | {"registry.name": name, "registry.experiment": name})
        run.wait_until(lambda: steps_done(run.folder) >= 5)
        process = run.process
        worker.kill()
        process.kill()
        worker.start()
        assert run.state == "RUNNING"
        run.wait_until(lambda: (run.folder / "logs" / "train-2.log").exists())
    reached = steps_done(run.folder)
    run.wait_until(lambda: steps_done(run.folder) > reached + 5)
    process = run.process
    servers = (mlflow_server, prefect_server)
    for server in servers:
        server.kill()
    time.sleep(60)
    assert process.is_running() and reached < steps_done(run.folder) < STEPS
    for server in servers:
        server.start()
    run.wait_until(run.ended)
    assert run.state == "COMPLETED"
    is_complete(place, name, run, STEPS)
    assert len(list((run.folder / "logs").glob("train-*.log"))) == 2


def test_a_run_can_be_cancelled_after_the_server_was_away(
    place: Sandbox, worker: Worker, given: dict[str, Any], prefect_server: Server
):
    """Prefect's runner has given up listening by then, so that the run looks for itself."""
    name = "late"
    changes = {"training.max_steps": STEPS, "training.save_steps": 50}
    run = DeployedRun(place, given | changes | {"registry.name": name, "registry.experiment": name})
    run.wait_until(lambda: steps_done(run.folder) >= 1)
    prefect_server.kill()
    time.sleep(50)
    prefect_server.start()
    family = [run.process, *run.process.children(recursive=True)]
    run.cancel()
    assert left_alive(family, within=35) == []
    run.wait_until(lambda: run.state == "CANCELLED", 60)
    [recorded] = place.mlflow_runs(name)
    assert (recorded.info.status, recorded.data.tags["outcome"]) == ("KILLED", "cancelled")
