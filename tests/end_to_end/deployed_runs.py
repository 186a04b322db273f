"""Runs of the deployments, by the command line and the API of a real Prefect server."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import psutil
from sandbox import Sandbox, heed_interrupts


def ask(api: str, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """A request to a Prefect server, repeated as Prefect's own client does while SQLite is busy with another one."""
    deadline = time.monotonic() + 60
    while True:
        answer = httpx.request(method, f"{api}/{path}", json=body, timeout=30)
        if answer.status_code != 503 or time.monotonic() > deadline:
            answer.raise_for_status()
            return answer.json() if answer.content else None
        time.sleep(0.5)


def prefect(place: Sandbox, *arguments: str) -> subprocess.CompletedProcess[str]:
    return place.run("-m", "prefect", *arguments)


def newest_flow_run(place: Sandbox) -> dict[str, Any]:
    query = {"sort": "START_TIME_DESC", "limit": 1}
    [flow_run] = ask(place.variables["PREFECT_API_URL"], "POST", "flow_runs/filter", query)
    return flow_run


def run_deployment(
    place: Sandbox, overrides: dict[str, Any], name: str = "grpo/demo", **parameters: str
) -> tuple[int, dict[str, Any]]:
    """`prefect deployment run NAME --watch`; its exit code, and what the server knows of the flow run."""
    given = [f"overrides={json.dumps(overrides)}", *(f"{key}={value}" for key, value in parameters.items())]
    options = [text for parameter in given for text in ("--param", parameter)]
    done = prefect(place, "deployment", "run", name, "--watch", "--watch-timeout", "1500", *options)
    flow_run = newest_flow_run(place)
    (place.folder / f"{flow_run['name']}.txt").write_text(done.stdout + done.stderr)
    return done.returncode, flow_run


class DeployedRun:
    """A run of `grpo/demo` that a worker does meanwhile, or `delay` seconds later."""

    def __init__(self, place: Sandbox, overrides: dict[str, Any], delay: float = 0) -> None:
        self.place, self.api = place, place.variables["PREFECT_API_URL"]
        demo = {"deployments": {"name": {"any_": ["demo"]}}}
        [deployment] = ask(self.api, "POST", "deployments/filter", demo)
        due = datetime.now(UTC) + timedelta(seconds=delay)
        scheduled = {"type": "SCHEDULED", "state_details": {"scheduled_time": due.isoformat()}}
        wanted = {"parameters": {"overrides": overrides}, "state": scheduled}
        self.id: str = ask(self.api, "POST", f"deployments/{deployment['id']}/create_flow_run", wanted)["id"]
        self.folder = place.runs / self.id

    @property
    def process(self) -> psutil.Process:
        """The flow's process, which holds the run."""
        return psutil.Process(int((self.folder / "lock").read_text()))

    @property
    def state(self) -> str:
        return str(ask(self.api, "GET", f"flow_runs/{self.id}")["state_type"])

    def begun(self, stage: str) -> bool:
        """Whether a program that does the stage, or else its first line in the log, is there."""
        return any((self.folder / "logs").glob(f"{stage}-*.log"))

    def finished(self, stage: str) -> bool:
        return (self.folder / "results" / f"{stage}.json").exists()

    def set_state(self, type: str, force: bool = False) -> None:
        wanted = {"state": {"type": type, "name": type.capitalize()}, "force": force}
        assert ask(self.api, "POST", f"flow_runs/{self.id}/set_state", wanted)["status"] == "ACCEPT"

    def cancel(self) -> None:
        """What the button in the UI does."""
        self.set_state("CANCELLING")

    def retry(self) -> None:
        assert prefect(self.place, "flow-run", "retry", self.id).returncode == 0

    def wait_until(self, condition: Callable[[], bool], seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"it did not come about; the run is {self.state}"
            time.sleep(0.05)

    def ended(self) -> bool:
        return self.state in ("COMPLETED", "FAILED", "CANCELLED", "CRASHED")


def left_alive(family: list[psutil.Process], within: float) -> list[str]:
    """The commands of those that still run after so many seconds."""
    _, alive = psutil.wait_procs(family, timeout=within)
    return [str(one) for one in alive if one.status() != psutil.STATUS_ZOMBIE]


class Worker:
    """`prefect worker start`, from a folder of no importance."""

    def __init__(self, place: Sandbox) -> None:
        self.place = place
        self.start()

    def start(self) -> None:
        with (self.place.folder / "worker.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "prefect", "worker", "start", "--pool", "grpo", "--name", "tests"],
                cwd=self.place.folder,
                env=self.place.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=heed_interrupts,  # what it makes of SIGTERM
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)
