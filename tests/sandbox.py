"""Real servers on free ports, and the project's command lines as processes that see only temporary folders.

Every process is ended by its own id.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml
from mlflow import MlflowClient

PROJECT = Path(__file__).resolve().parent.parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def heed_interrupts() -> None:
    """For a child before it begins: SIGINT, which a shell lets its background ignore, means what it means in front."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Server:
    """A server as a child process, on a free port, which can be stopped and started again."""

    def __init__(self, folder: Path, arguments: Sequence[str], health: str, environment: dict[str, str]) -> None:
        self.folder, self.arguments, self.health, self.environment = folder, arguments, health, environment
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", *self.arguments, "--host", "127.0.0.1", "--port", str(self.port)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | self.environment
            )
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(self.uri + self.health, timeout=2).close()
                return
            except OSError:
                assert self.process.poll() is None and time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.2)

    def kill(self) -> None:
        """End it and what it started as a failing machine would."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        for one in [self.process, *family]:
            one.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass
class Sandbox:
    """The project's command lines as processes that see only temporary folders, and what they left there."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    threads: int | None = 1  # of torch: more do nothing for the tiny model but wait for each other; None takes all

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def environment(self) -> dict[str, str]:
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_", "GRPO_"))
        }
        return inherited | {
            "GRPO_RUNS": str(self.runs),
            "PREFECT_HOME": str(self.folder / "prefect"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "HF_HUB_OFFLINE": "1",
            **({"OMP_NUM_THREADS": str(self.threads)} if self.threads else {}),
            **self.variables,
        }

    def run(self, *command: str, inside: Sequence[str] = (), timeout: float = 1800) -> subprocess.CompletedProcess[str]:
        """`python *command` in the sandbox, with its output and exit code; `inside` is a command that starts it."""
        return subprocess.run(
            [*inside, sys.executable, *command],
            cwd=PROJECT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def start(self, *command: str, log: Path, new_session: bool = False) -> subprocess.Popen[bytes]:
        """`python *command` in the sandbox, going on beside the test; its output goes to `log`."""
        with log.open("wb") as file:
            return subprocess.Popen(
                [sys.executable, *command],
                cwd=PROJECT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=new_session,
                preexec_fn=heed_interrupts,
            )

    def grpo(self, config: Path, *arguments: str, timeout: float = 1800) -> subprocess.CompletedProcess[str]:
        """`python -m flows.grpo CONFIG …`."""
        return self.run("-m", "flows.grpo", str(config), *arguments, timeout=timeout)

    def load_version(self, uri: str) -> dict[str, str]:
        """What a registered version answers through mlflow and through transformers, in a process of its own."""
        elsewhere = Sandbox(self.folder, self.variables | {"MLFLOW_TRACKING_URI": self.tracking_uri}, self.threads)
        done = elsewhere.run("tests/load_version.py", uri)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    @property
    def tracking_uri(self) -> str:
        return self.variables.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.runs / 'mlflow.db'}"

    @property
    def mlflow(self) -> MlflowClient:
        return MlflowClient(self.tracking_uri, self.tracking_uri)

    def mlflow_runs(self, experiment: str | None = None) -> list[Any]:
        """All MLflow runs, or those of one experiment, the newest first."""
        if self.tracking_uri.startswith("sqlite") and not (self.runs / "mlflow.db").exists():
            return []
        experiments = [
            one.experiment_id
            for one in self.mlflow.search_experiments()
            if experiment is None or one.name == experiment
        ]
        return list(self.mlflow.search_runs(experiments)) if experiments else []


def write_config(path: Path, values: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return path
