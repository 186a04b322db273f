"""What tests of several folders share: servers, the tiny model with its problems, and a sandbox for command lines."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from sandbox import Sandbox, Server


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with MLflow's tables, which take seconds to make."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Iterator[Server]:
    """A real `mlflow server`."""
    folder = tmp_path_factory.mktemp("mlflow-server")
    shutil.copy(empty_database, folder / "mlflow.db")
    arguments = ["mlflow", "server", "--workers", "1", "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
    arguments += ["--artifacts-destination", str(folder / "artifacts")]
    server = Server(folder, arguments, "/health", {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"})
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real `prefect server`, with a home of its own."""
    folder = tmp_path_factory.mktemp("prefect-server")
    environment = {
        "PREFECT_HOME": str(folder / "home"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    }
    server = Server(folder, ["prefect", "server", "start"], "/api/health", environment)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pre-trained tiny model, as a model folder."""
    import tiny_model as tiny  # and with it torch, which takes seconds

    return tiny.build(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def untrained_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model before its pre-training: it writes noise, but is there at once."""
    import tiny_model as tiny

    return tiny.build(tmp_path_factory.mktemp("untrained") / "model", steps=0)


@pytest.fixture(scope="session")
def tiny_problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the tiny model's problems, train.jsonl and test.jsonl."""
    import tiny_model as tiny

    return tiny.write_problems(tmp_path_factory.mktemp("problems") / "sums")


@pytest.fixture
def sandbox(tmp_path: Path, prefect_server: Server) -> Sandbox:
    """A sandbox of the test's own, with the session's Prefect server and a SQLite MLflow."""
    return Sandbox(tmp_path, {"PREFECT_API_URL": f"{prefect_server.uri}/api"})


@pytest.fixture(scope="session")
def tiny_settings(tiny_problems: Path) -> dict[str, Any]:
    """A configuration in which the tiny model learns to add within seconds; `model.name` is still to be set."""
    return {
        "data": {"path": str(tiny_problems)},
        "validation": {"max_shared_ngrams": None},  # the questions are made from three templates
        "model": {"name": "", "dtype": "float32"},
        "training": {
            "use_cpu": True,
            "use_vllm": False,
            "lora": {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"},
            "learning_rate": 5.0e-3,
            "lr_scheduler_type": "constant",
            "max_steps": 60,
            "num_generations": 8,
            "per_device_train_batch_size": 64,
            "max_completion_length": 40,
            "temperature": 1.0,
            "beta": 0.0,
            "max_grad_norm": 0.5,
            "save_steps": 20,
        },
        "evaluation": {"engine": "transformers", "every_steps": 20, "validation_limit": 24, "batch_size": 64},
        "registry": {"name": "tiny", "experiment": "tiny"},
    }
