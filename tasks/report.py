"""What a person reads at the end of a run: the scores before and after, the curve, a few answers, where to look.

Questions and completions come from a dataset and a model. They appear only inside fenced blocks, as plain text, so
nothing in them is rendered, run, or taken for an instruction of a terminal.
"""

import io
import math
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pandas as pd

from tasks.config import Config
from tasks.markdown import code, fence
from tasks.metrics import series
from tasks.outcome import Outcome
from tasks.run import Run
from tasks.statistics import Comparison

Summary = Mapping[str, Any]

LABELS = {"accuracy": "Accuracy, strict", "accuracy_flexible": "Accuracy, flexible", "reward": "Mean reward"}
_BLOCKS = "▁▂▃▄▅▆▇█"
_LONGEST = 1200  # characters of a question or a completion that are shown


def sparkline(values: Sequence[float]) -> str:
    """The values as a line of small bars, scaled between the lowest and the highest; a gap where one is not finite."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    # Values that are all equal lie at the bottom.
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * scale)] if math.isfinite(value) else " " for value in values)


def table_rows(before: Summary, after: Summary) -> list[tuple[str, str, str, str]]:
    """Measure, before, after and change, for each measure that both summaries hold."""
    rows = []
    for key, label in {**LABELS, **_sampled_labels(after)}.items():
        if key in before and key in after:
            change = after[key] - before[key]
            shown = f"{change:+.3f}" if key.endswith("reward") else f"{100 * change:+.1f} points"
            rows.append((label, _with_error(before, key), _with_error(after, key), shown))
    return rows


def _sampled_labels(summary: Summary) -> dict[str, str]:
    """A label for each measure of sampled completions that the summary holds."""
    measures = [key for key in summary if key.startswith("sampled/") and not key.endswith("_stderr")]
    words = {key: key.removeprefix("sampled/").replace("_flexible", ", flexible").replace("_", " ") for key in measures}
    return {key: f"{words[key].capitalize()}, sampled" for key in measures}


def score_text(summary: Summary) -> str:
    """The scores of an evaluation's greedy answers on one line."""
    labels = {"accuracy": "accuracy", "accuracy_flexible": "flexible accuracy", "reward": "mean reward"}
    return ", ".join(f"{label} {_with_error(summary, key)}" for key, label in labels.items() if key in summary)


def score_table(summary: Summary) -> str:
    """All scores of one evaluation, for a terminal."""
    labels = {**LABELS, **_sampled_labels(summary)}
    return _terminal_table(
        ("", "score"), [(label, _with_error(summary, key)) for key, label in labels.items() if key in summary]
    )


def verdict(comparison: Comparison) -> str:
    """The comparison in one sentence."""
    change = f"{100 * comparison.delta:+.1f} points" if "McNemar" in comparison.test else f"{comparison.delta:+.3f}"
    return (
        f"{change} on {comparison.n} questions: {comparison.gained} better, {comparison.lost} worse "
        f"({comparison.test}, p {p_text(comparison.p_value)})"
    )


def p_text(p_value: float) -> str:
    """`= 0.031`, or `< 0.0001` for what is smaller."""
    return "< 0.0001" if p_value < 0.0001 else f"= {p_value:.2g}"


def interruptions(run: Run) -> str:
    """The stages that were begun more than once, with how often; empty where none was."""
    return ", ".join(f"{stage} ({count} times)" for stage, count in run.attempts().items() if count > 1)


def memory_note(trained: Mapping[str, Any]) -> str:
    """A sentence on what the trainer had to do with for want of memory, with a space before it; else nothing."""
    changes = trained["memory_changes"]
    return f" Memory ran out, so it was trained with {', then '.join(changes)}." if changes else ""


def before_after_table(before: Summary, after: Summary, comparison: Comparison) -> str:
    """The scores before and after training as a Markdown table, with standard errors, and the test of the change."""
    lines = ["| | before | after | change |", "|---|---:|---:|---:|"]
    lines += [f"| {' | '.join(row)} |" for row in table_rows(before, after)]
    return "\n".join([*lines, "", f"{verdict(comparison)}."])


def before_after_text(before: Summary, after: Summary, comparison: Comparison) -> str:
    """The same for a terminal."""
    table = _terminal_table(("", "before", "after", "change"), table_rows(before, after))
    return f"{table}\n  {verdict(comparison)}"


def _terminal_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left")
    for row in rows:
        table.add_row(*row)
    console = Console(file=io.StringIO(), width=110)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().strip("\n").splitlines())


def examples(before: Path, after: Path, k: int) -> str:
    """`k` questions with the gold and both answers, as fenced blocks, from two Parquet files of results.

    They are taken in turn from those that got better, those that got worse, and those that stayed as they were, so
    both kinds of change show as soon as there are any; always the same ones.
    """
    old = pd.read_parquet(before).set_index("id").sort_index()
    new = pd.read_parquet(after).set_index("id").sort_index()
    measure = "correct" if "correct" in old and "correct" in new else "reward"
    change = new[measure].astype(float) - old[measure].astype(float)
    groups = (change.index[change > 0], change.index[change < 0], change.index[change == 0])
    in_turn = [id for id in chain.from_iterable(zip_longest(*groups)) if id is not None]
    return "\n\n".join(fence(_example(old.loc[id], new.loc[id])) for id in in_turn[:k])


def curve(metrics: Path, path: Path, *, before: Summary, after: Summary, step: int) -> None:
    """Draw reward and accuracy by step into the PNG `path`.

    `metrics` is the trainer's metrics file. The start model's score on test is a dashed line, the trained model's a
    star at `step`, the step whose weights were chosen; both stand in the panel of what the task is judged by.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    judged_by = "accuracy" if "accuracy" in after else "reward"
    panels = ["reward", "accuracy"] if judged_by == "accuracy" else ["reward"]
    figure, axes = plt.subplots(
        len(panels), 1, sharex=True, squeeze=False, figsize=(8, 3.2 * len(panels)), layout="constrained"
    )
    try:
        for axis, measure in zip(axes[:, 0], panels, strict=True):
            if measure == "reward":
                _draw_training(axis, series(metrics, "train/reward"))
            _draw_validation(axis, metrics, measure)
            if measure == judged_by:
                _draw_test(axis, before, after, measure, step)
            if measure == "accuracy":
                axis.yaxis.set_major_formatter(PercentFormatter(1.0))
                axis.set_ylim(bottom=0)
            axis.set_ylabel("accuracy (strict)" if measure == "accuracy" else "mean reward")
            axis.grid(alpha=0.25, linewidth=0.6)
            axis.spines[["top", "right"]].set_visible(False)
            axis.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.01, 0.5))
        figure.align_ylabels()
        axes[-1, 0].set_xlabel("training step")
        axes[-1, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.savefig(path, dpi=130)
    finally:
        plt.close(figure)


def write_report(
    run: Run, config: Config, outcome: Outcome, *, title: str, reason: str, links: Mapping[str, str]
) -> Path:
    """Write `report.md` and `curve.png` into the run folder; give the path of the report.

    `title` and `reason` say what became of the model, and `links` maps words to where to look.
    """
    data, trained, before, after = outcome.data, outcome.trained, outcome.before, outcome.after
    picture = run.folder / "curve.png"
    metrics = run.folder / "train" / "metrics.jsonl"
    curve(metrics, picture, before=before, after=after, step=trained["step"])
    rewards = [value for _, value in series(metrics, "train/reward")]
    again = interruptions(run)
    parts = [
        f"# {title}",
        reason,
        before_after_table(before, after, outcome.gain),
        f"![Reward and accuracy by step]({picture.name})",
        f"Training reward by step: {sparkline(_thinned(rewards, 60))}" if rewards else "",
        "## What was trained",
        "\n".join(
            [
                f"- start model: {code(config.model.name)}",
                f"- data: {code(data['source'])}, digest {code(data['digest'][:12])}, "
                + ", ".join(f"{count} {split}" for split, count in data["counts"].items()),
                f"- steps: {trained['steps']}; the weights of step {trained['step']} were kept.{memory_note(trained)}",
                f"- answers: {_engines(before, after)}",
                f"- reward: {', '.join(f'{code(one.name)} × {one.weight:g}' for one in config.rewards.functions)}",
                *([f"- begun more than once: {again}; each attempt has its log in logs/"] if again else []),
            ]
        ),
        "## Answers before and after" if config.evaluation.examples else "",
        examples(Path(before["results"]), Path(after["results"]), config.evaluation.examples),
        "## Where to look",
        "\n".join(f"- {words}: {where}" for words, where in links.items()),
    ]
    path = run.folder / "report.md"
    path.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")
    return path


def _engines(before: Summary, after: Summary) -> str:
    if before["engine"] == after["engine"]:
        return f"written by {after['engine']}, before and after"
    return f"written by {before['engine']} before and by {after['engine']} after, which differ in rounding"


def _with_error(summary: Summary, key: str) -> str:
    value, error = summary[key], summary[f"{key}_stderr"]
    return f"{value:.3f} ± {error:.3f}" if key.endswith("reward") else f"{100 * value:.1f} % ± {100 * error:.1f}"


def _example(old: pd.Series, new: pd.Series) -> str:
    lines = [f"Question: {_cut(old['question'])}"]
    if "correct" in old:
        lines.append(f"Gold: {old['answer']}")
    for when, row in (("Before", old), ("After", new)):
        judged = ("right" if row["correct"] else "wrong") if "correct" in row else f"reward {row['reward']:.3f}"
        end = "" if row["finished"] else ", cut off"
        lines += ["", f"{when} ({judged}, {row['tokens']} tokens{end}):", _cut(row["completion"])]
    return "\n".join(lines)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _thinned(values: Sequence[float], most: int) -> list[float]:
    """At most `most` means of neighbouring values."""
    width = math.ceil(len(values) / most)
    groups = [values[start : start + width] for start in range(0, len(values), width)]
    return [sum(group) / len(group) for group in groups]


def _draw_training(axis: Any, points: Sequence[tuple[int, float]]) -> None:
    if not points:
        return
    values = pd.Series(dict(points))
    window = max(1, len(values) // 20)
    if window > 1:
        axis.plot(values.index, values, color="tab:blue", alpha=0.25, linewidth=1, label="training batch")
    smooth = values.rolling(window, min_periods=1).mean()
    label = f"mean of {window} batches" if window > 1 else "training batch"
    marker = "." if len(values) < 10 else ""
    axis.plot(smooth.index, smooth, color="tab:blue", linewidth=1.8, marker=marker, label=label)


def _draw_validation(axis: Any, metrics: Path, measure: str) -> None:
    points = dict(series(metrics, f"validation/{measure}"))
    errors = dict(series(metrics, f"validation/{measure}_stderr"))
    if points:
        steps = list(points)
        axis.errorbar(
            steps,
            [points[step] for step in steps],
            yerr=[errors.get(step, 0.0) for step in steps],
            color="tab:orange",
            marker="o",
            markersize=4,
            linewidth=1.2,
            elinewidth=0.8,
            capsize=2,
            label="validation (greedy)",
        )


def _draw_test(axis: Any, before: Summary, after: Summary, measure: str, step: int) -> None:
    axis.axhline(before[measure], color="0.45", linestyle="--", linewidth=1.2, label="test, before training")
    axis.errorbar(
        [step],
        [after[measure]],
        yerr=[after[f"{measure}_stderr"]],
        color="tab:red",
        marker="*",
        markersize=14,
        markeredgecolor="white",
        capsize=3,
        linestyle="none",
        zorder=5,
        label="test, after training",
    )
