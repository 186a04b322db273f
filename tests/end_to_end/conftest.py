"""What the tests with a real worker share: the deployments as they ship, served by one worker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deployed_runs import Worker
from sandbox import Sandbox, Server


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory, prefect_server: Server, mlflow_server: Server) -> Sandbox:
    variables = {
        "PREFECT_API_URL": f"{prefect_server.uri}/api",
        "MLFLOW_TRACKING_URI": mlflow_server.uri,
        "PREFECT_WORKER_QUERY_SECONDS": "2",
    }
    return Sandbox(tmp_path_factory.mktemp("deployment"), variables)


@pytest.fixture(scope="session")
def worker(place: Sandbox) -> Iterator[Worker]:
    """The deployments as they ship, in a process pool that a worker serves."""
    for command in (
        ("deployments/register.py",),
        ("-m", "prefect", "--no-prompt", "deploy", "--prefect-file", "deployments/prefect.yaml", "--all"),
    ):
        done = place.run(*command)
        assert done.returncode == 0, done.stdout + done.stderr
    worker = Worker(place)
    yield worker
    worker.stop()


@pytest.fixture(scope="session")
def overrides(tiny_model: Path, tiny_problems: Path, tiny_settings: dict[str, Any]) -> dict[str, Any]:
    """What makes the demo train the tiny model for four steps."""
    training = tiny_settings["training"] | {"max_steps": 4, "save_steps": 2}
    return {
        "data.path": str(tiny_problems),
        "validation": tiny_settings["validation"],
        "prompt": {},
        "model": tiny_settings["model"] | {"name": str(tiny_model)},
        "evaluation": {"engine": "transformers", "every_steps": 2, "validation_limit": 8, "limit": 60},
        **{f"training.{name}": value for name, value in training.items()},
    }
