"""A runs folder for each test, with an MLflow database in it."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_database: Path) -> Path:
    """A runs folder of the test's own, with an empty MLflow database in it."""
    folder = tmp_path / "runs"
    folder.mkdir()
    shutil.copy(empty_database, folder / "mlflow.db")
    monkeypatch.setenv("GRPO_RUNS", str(folder))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return folder
