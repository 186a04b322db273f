"""The tags by which an MLflow run says what it was made from."""

from typing import Any

from tasks.config import Config
from tasks.run import code_version, digest


def run_tags(config: Config, data: dict[str, Any]) -> dict[str, str]:
    """Digests of data and configuration, and the version of the code."""
    return {"data_digest": data["digest"], "config_digest": digest(config.dump()), "code_version": code_version()}
