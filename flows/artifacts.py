"""What a run shows in the Prefect UI, and what it says at its end."""

from pathlib import Path
from typing import Any

import pandas as pd
from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact

from tasks.config import Config
from tasks.report import before_after_table, before_after_text, verdict, write_report
from tasks.run import Run
from tasks.statistics import Comparison, compare
from tasks.tracking import Tracker


def comparison(before: dict[str, Any], after: dict[str, Any]) -> Comparison:
    """The trained model against the start model, question by question."""
    return compare(pd.read_parquet(before["results"]), pd.read_parquet(after["results"]))


def show_gate(name: str, table: str) -> None:
    """The table of a gate, as an artifact of the task that ran it."""
    create_markdown_artifact(table, key=name.replace("_", "-"), description=f"What {name} found")


def publish(
    run: Run,
    config: Config,
    tracker: Tracker,
    *,
    data: dict[str, Any],
    trained: dict[str, Any],
    before: dict[str, Any],
    after: dict[str, Any],
    version: dict[str, Any],
) -> None:
    """The report in the run folder, in MLflow and in Prefect, and the table on the terminal."""
    found = comparison(before, after)
    links = {
        "MLflow run": tracker.link,
        "model version": tracker.version_link(version["name"], version["version"]),
        "run folder": str(run.folder),
    }
    report = write_report(
        run,
        config,
        data=data,
        trained=trained,
        before=before,
        after=after,
        comparison=found,
        version=version,
        links=links,
    )
    for path in (report, report.with_name("curve.png")):
        tracker.artifact(path, "report")
    where = "\n".join(f"- {words}: {link}" for words, link in links.items())
    create_markdown_artifact(
        f"# {version['name']} version {version['version']}: {version['outcome']}\n\n{version['reason']}\n\n"
        f"{before_after_table(before, after, found)}\n\n{where}\n",
        key="before-after",
        description=verdict(found),
    )
    logger = get_run_logger()
    for line in before_after_text(before, after, found).splitlines():
        logger.info(line)
    logger.info("%s version %s: %s. %s", version["name"], version["version"], version["outcome"], version["reason"])
    for words, link in (links | {"report": str(report)}).items():
        logger.info("%s: %s", words, link)


def completions_table(folder: Path, most: int = 400) -> pd.DataFrame:
    """Sampled completions with their rewards and advantages, spread over the steps, at most `most` rows."""
    files = sorted(folder.glob("completions_*.parquet"))
    if not files:
        return pd.DataFrame()
    every = max(1, -(-len(files) * 4 // most))
    tables = [pd.read_parquet(file).head(4) for file in files[::every]]
    table = pd.concat(tables, ignore_index=True)
    for column in ("prompt", "completion"):
        table[column] = [_last_text(value) for value in table[column]]
    return table


def _last_text(value: Any) -> str:
    return value if isinstance(value, str) else str(value[-1]["content"])
