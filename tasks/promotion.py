"""Which version of a registered model is the champion, and on what evidence.

The first version becomes champion whatever its scores: a name without a champion serves nobody, and the description
says so where it is no better than the model it started from. A later one must beat the champion on the same test
questions, significantly, and its own start model too; until then it is the challenger.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pandas as pd
from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts, list_artifacts

from tasks.report import verdict
from tasks.statistics import Comparison, compare

RESULTS = "evaluation/after.parquet"  # where a version keeps its answers to the test questions
CHAMPION: Final = "champion"
CHALLENGER: Final = "challenger"
PREVIOUS: Final = "previous"


@dataclass(frozen=True)
class Decision:
    """The alias that a version gets, and why. `champion` is the version that it was measured against, if any."""

    alias: Literal["champion", "challenger"]
    reason: str
    champion: str | None


def decide(
    client: MlflowClient,
    name: str,
    *,
    results: pd.DataFrame,
    gain: Comparison,
    judge: str,
    significance: float,
) -> Decision:
    """Whether a new version of the model `name` takes the place of its champion.

    `results` are the new version's per-question results, `gain` is how it compares with its own start model, and
    `judge` is the digest of the rewards that decide on its scores, kept by each version as its tag `judge`.
    """
    champion = champion_of(client, name)
    if champion is None:
        weak = "" if gain.delta > 0 else f" It is no better than the model it started from: {verdict(gain)}."
        return Decision(CHAMPION, f"{name} had no champion to compare with.{weak}", None)

    def stays(reason: str) -> Decision:
        return Decision(CHALLENGER, f"{reason}; version {champion} stays champion.", champion)

    if gain.delta <= 0:
        return stays(f"It is no better than the model it started from: {verdict(gain)}")
    theirs = _results(client, name, champion)
    if theirs is None:
        return stays(f"It cannot be compared, since version {champion} keeps no answers to test questions")
    if not _same_questions(theirs, results):
        return stays(f"It cannot be compared, since version {champion} was evaluated on other questions")
    theirs_by = client.get_model_version(name, champion).tags.get("judge")
    if theirs_by != judge:
        what = "does not say by which rewards it was judged" if theirs_by is None else "was judged by other rewards"
        return stays(f"It cannot be compared, since version {champion} {what}")
    found = compare(theirs, results)
    against = f"against version {champion}, {verdict(found)}"
    if found.better(significance):
        return Decision(CHAMPION, f"It is better: {against}.", champion)
    return stays(f"It is not better at p < {significance:g}: {against}")


def champion_of(client: MlflowClient, name: str) -> str | None:
    """The version that is the champion now."""
    version = client.get_registered_model(name).aliases.get(CHAMPION)
    return None if version is None else str(version)  # a number from a database, text from a server


def apply(client: MlflowClient, name: str, version: str, decision: Decision) -> None:
    """Set the aliases. The champion moves last, so whoever finds it moved knows that all is done."""
    if decision.alias == CHAMPION and decision.champion is not None:
        client.set_registered_model_alias(name, PREVIOUS, decision.champion)
    client.set_registered_model_alias(name, decision.alias, version)


def _results(client: MlflowClient, name: str, version: str) -> pd.DataFrame | None:
    """The per-question results that a version keeps; None for a version that was registered by other means."""
    where = client.get_model_version_download_uri(name, version)
    folder, _, file = RESULTS.rpartition("/")
    kept = list_artifacts(artifact_uri=f"{where}/{folder}", tracking_uri=client.tracking_uri)
    if file not in {Path(one.path).name for one in kept}:
        return None
    with tempfile.TemporaryDirectory() as temporary:
        path = download_artifacts(f"{where}/{RESULTS}", dst_path=temporary, tracking_uri=client.tracking_uri)
        return pd.read_parquet(path)


def _same_questions(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    """Whether both hold the same questions with the same golds, judged in the same way."""
    asked = [set(zip(table["id"], table["question"], table["answer"], strict=True)) for table in (one, other)]
    return asked[0] == asked[1] and ("correct" in one) == ("correct" in other)
