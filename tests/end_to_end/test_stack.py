"""`make up` and `make down`: exactly what was started is ended."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from deployed_runs import DeployedRun, ask, left_alive
from sandbox import PROJECT, Sandbox, free_port

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
DEPLOYMENTS = {"grpo/gsm8k", "grpo/pilot", "grpo/demo", "grpo/tldr", "evaluate/gsm8k"}


@pytest.fixture
def stack(tmp_path: Path) -> Iterator["Stack"]:
    stack = Stack(Sandbox(tmp_path))
    yield stack
    stack.make("down")


class Stack:
    """`make up` and `make down` on free ports."""

    def __init__(self, place: Sandbox) -> None:
        self.place = place
        self.prefect_port, self.mlflow_port = free_port(), free_port()

    def make(self, target: str) -> subprocess.CompletedProcess[str]:
        make = shutil.which("make")
        assert make
        command = [make, target, "--old-file=install", f"VENV={BIN.parent}"]
        command += [f"PREFECT_PORT={self.prefect_port}", f"MLFLOW_PORT={self.mlflow_port}"]
        environment = self.place.environment | {"COLUMNS": "60"}  # as a narrow terminal may set it
        return subprocess.run(
            command, cwd=PROJECT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
        )

    def processes(self) -> list[psutil.Process]:
        """honcho and all that it has started."""
        honcho = psutil.Process(int((self.place.runs / "stack.pid").read_text()))
        return [honcho, *honcho.children(recursive=True)]

    def answering(self) -> tuple[bool, bool]:
        addresses = (f"http://127.0.0.1:{self.prefect_port}/api/health", f"http://127.0.0.1:{self.mlflow_port}/health")
        return tuple(answers(address) for address in addresses)


def answers(address: str) -> bool:
    try:
        return httpx.get(address, timeout=10).status_code == 200
    except httpx.HTTPError:
        return False


def test_make_up_starts_all_and_make_down_ends_exactly_that(stack, prefect_server):
    up = stack.make("up")
    assert up.returncode == 0, up.stdout + up.stderr
    assert stack.answering() == (True, True)
    api = f"http://127.0.0.1:{stack.prefect_port}/api"
    deployments = ask(api, "POST", "deployments/filter", {})
    flows = {one["id"]: one["name"] for one in ask(api, "POST", "flows/filter", {})}
    assert {f"{flows[one['flow_id']]}/{one['name']}" for one in deployments} == DEPLOYMENTS
    assert [one["active"] for deployment in deployments for one in deployment["schedules"]] == [False]
    assert worker_is_online(api)
    started = stack.processes()

    again = stack.make("up")
    assert again.returncode == 0 and "running already" in again.stdout
    assert stack.processes()[0] == started[0]
    assert f"export PREFECT_API_URL={api}" in again.stdout
    ours, stack.mlflow_port = stack.mlflow_port, 1
    elsewhere = stack.make("up")
    assert elsewhere.returncode and f"running already, with PREFECT_PORT={stack.prefect_port} MLFLOW_PORT={ours};" in (
        elsewhere.stderr
    )
    stack.mlflow_port = ours

    down = stack.make("down")
    assert down.returncode == 0, down.stdout + down.stderr
    assert stack.answering() == (False, False)
    assert [process for process in started if process.is_running()] == []
    assert answers(f"{prefect_server.uri}/api/health")  # a server that is not the stack's goes on


def test_make_down_ends_a_run_in_order_and_it_goes_on_after_make_up(stack, overrides):
    assert stack.make("up").returncode == 0
    variables = {
        "PREFECT_API_URL": f"http://127.0.0.1:{stack.prefect_port}/api",
        "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{stack.mlflow_port}",
    }
    place = Sandbox(stack.place.folder, variables)
    run = DeployedRun(place, overrides | {"training.max_steps": 60, "training.save_steps": 4})
    run.wait_until(lambda: (run.folder / "train" / "checkpoint-4").exists())
    family = [run.process, *run.process.children(recursive=True)]
    assert stack.make("down").returncode == 0
    assert left_alive(family, within=5) == []
    # The servers are gone; their database is not.
    alone = Sandbox(stack.place.folder)
    [recorded] = alone.mlflow_runs()
    assert recorded.info.status == "KILLED"
    assert stack.make("up").returncode == 0
    done = place.run("-m", "flows.resume", run.id)
    assert done.returncode == 0, done.stderr
    assert "going on from checkpoint-" in done.stderr
    [recorded] = place.mlflow_runs()
    assert recorded.info.status == "FINISHED"


def test_make_down_leaves_a_stranger_alone_that_has_got_the_number_of_a_stack_long_gone(stack):
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    try:
        stack.place.runs.mkdir()
        (stack.place.runs / "stack.pid").write_text(f"{stranger.pid}\n")
        assert "not running" in stack.make("down").stdout
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_make_up_refuses_a_port_that_is_taken_and_starts_nothing(stack, prefect_server):
    stack.prefect_port = prefect_server.port
    up = stack.make("up")
    assert up.returncode != 0
    assert f"port {prefect_server.port} is taken" in up.stderr and "make up PREFECT_PORT=" in up.stderr
    assert not answers(f"http://127.0.0.1:{stack.mlflow_port}/health")


def worker_is_online(api: str) -> bool:
    """Whether a worker of the pool has been heard of, or is within a minute."""
    for _ in range(60):
        workers = ask(api, "POST", "work_pools/grpo/workers/filter", {})
        if [one["status"] for one in workers] == ["ONLINE"]:
            return True
        time.sleep(1)
    return False
