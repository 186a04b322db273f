"""Fetching a registered version from MLflow, so that it can be scored like any other model."""

from dataclasses import dataclass
from pathlib import Path

from mlflow.artifacts import download_artifacts
from mlflow.exceptions import MlflowException

from tasks.config import RegistrySettings
from tasks.errors import UserError, first_line
from tasks.run import digest, stored
from tasks.tracking import check_reachable, open_client, tracking_uri


@dataclass(frozen=True)
class FetchedVersion:
    """A registered version on this machine."""

    uri: str
    """`models:/NAME/VERSION`: what an alias means may change."""
    folder: str
    """Where its merged weights lie."""


def fetch_version(uri: str, registry: RegistrySettings) -> FetchedVersion:
    """The version that `models:/NAME@ALIAS` or `models:/NAME/VERSION` means, fetched once.

    Raises UserError if there is no such version, or if it was registered without merged weights.
    """
    tracking = tracking_uri(registry)
    check_reachable(tracking)
    client = open_client(tracking)
    name, at, alias = uri.removeprefix("models:/").partition("@")
    number = ""
    if not at:
        name, _, number = name.partition("/")
        if not number.isdecimal():
            raise UserError(
                f"{uri} names no version; write models:/{name or 'NAME'}/1 or models:/{name or 'NAME'}@champion"
            )
    try:
        version = client.get_model_version_by_alias(name, alias) if at else client.get_model_version(name, number)
        source = client.get_model_version_download_uri(name, version.version)
    except MlflowException as error:
        raise UserError(f"{uri} is not in the registry at {tracking} ({first_line(error, 300)})") from None

    def fetch(folder: Path) -> None:
        try:
            download_artifacts(f"{source}/model", dst_path=str(folder), tracking_uri=tracking)
        except (MlflowException, OSError) as error:
            raise UserError(
                f"{uri} holds no merged weights ({first_line(error, 300)}); register it with registry.merged=true"
            ) from None

    key = digest([tracking, name, str(version.version), version.run_id])
    return FetchedVersion(f"models:/{name}/{version.version}", str(stored("models", key, fetch) / "model"))
