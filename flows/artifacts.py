"""What a run shows in the Prefect UI, and what it says at its end."""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact

from tasks.config import Config
from tasks.evaluate import merged_folder
from tasks.metrics import series
from tasks.outcome import Outcome
from tasks.report import before_after_table, before_after_text, interruptions, score_table, verdict, write_report
from tasks.run import Run
from tasks.tracking import Tracker


def show_gate(name: str, table: str) -> None:
    """The table of a gate, as an artifact of the task that ran it."""
    create_markdown_artifact(table, key=name.replace("_", "-"), description=f"What {name} found")


def keep_answers(tracker: Tracker, summary: Mapping[str, Any], folder: str) -> list[Path]:
    """Every answer of an evaluation, with its scores, in a folder of the MLflow run; the files here."""
    tables = [Path(summary[name]) for name in ("results", "samples") if name in summary]
    for table in tables:
        tracker.artifact(table, folder)
    return tables


def say_scores(summary: Mapping[str, Any]) -> None:
    """The scores of one evaluation, on the terminal."""
    for line in score_table(summary).splitlines():
        get_run_logger().info(line)


def publish(run: Run, config: Config, tracker: Tracker, outcome: Outcome, version: Mapping[str, Any] | None) -> None:
    """The report in the run folder, in MLflow and in Prefect, and the table on the terminal; `version` is what
    `register` gave, where the run did not stop before it."""
    links = {"MLflow run": tracker.link, "run folder": str(run.folder)}
    title, reason = "Stopped after evaluate, as asked", "Nothing is registered."
    if version:
        links["model version"] = tracker.version_link(version["name"], version["version"])
        title, reason = f"{version['name']} version {version['version']}: {version['outcome']}", version["reason"]
    elif (merged := merged_folder(run.folder / "evaluate")).is_dir():
        links["merged model"] = str(merged)
    if again := interruptions(run):
        tracker.tags({"begun_more_than_once": again})
    report = write_report(run, config, outcome, title=title, reason=reason, links=links)
    for path in (report, report.with_name("curve.png")):
        tracker.artifact(path, "report")
    where = "\n".join(f"- {words}: {link}" for words, link in links.items())
    create_markdown_artifact(
        f"# {title}\n\n{reason}\n\n{before_after_table(outcome.before, outcome.after, outcome.gain)}\n\n{where}\n",
        key="before-after",
        description=verdict(outcome.gain),
    )
    logger = get_run_logger()
    for line in before_after_text(outcome.before, outcome.after, outcome.gain).splitlines():
        logger.info(line)
    logger.info("%s. %s", title, reason)
    for words, link in (links | {"report": str(report)}).items():
        logger.info("%s: %s", words, link)


def measured(run: Run, trained: dict[str, Any]) -> dict[str, float]:
    """What training took of what was estimated before, as far as it is known; a step's time is the median, without
    the first one, which warms up."""
    steps = [seconds for _, seconds in series(run.folder / "train" / "metrics.jsonl", "train/step_time")]
    on_gpu = trained["peak_gpu_gib"]
    memory = {} if on_gpu is None else {"memory_gib": on_gpu or trained["peak_ram_gib"]}
    return memory | {"step_seconds": statistics.median(steps[1:] or steps)}


def against_estimate(took: dict[str, float], needs: dict[str, Any]) -> str:
    """What was measured of training, each with what was estimated."""
    words = {"memory_gib": "{:.1f} GiB", "step_seconds": "{:.1f} s a step"}
    return " and ".join(
        f"{words[name].format(value)} (estimated: {'unknown' if needs[name] is None else f'{needs[name]:.1f}'})"
        for name, value in took.items()
    )


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
