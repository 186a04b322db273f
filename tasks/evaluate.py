"""Stage: what a model answers, greedily, to questions it was not trained on; before and after, by one protocol."""

import os
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from rewards.registry import is_registered
from tasks.config import Config
from tasks.cpu import waiting
from tasks.devices import only, visible_devices
from tasks.engine import choose_engine, vllm_version
from tasks.errors import UserError
from tasks.memory import Relief, smaller_evaluation
from tasks.run import Run, digest, read_json, source_digest, stored, write_json
from tasks.summary import sampled_summary, summary
from tasks.supervise import Part, run_jobs


def merged_folder(folder: Path) -> Path:
    """Where an evaluation in `folder` leaves the merged model, as it was evaluated and will be registered."""
    return folder / "merged"


def evaluate(
    run: Run,
    config: Config,
    *,
    stage: str,
    rows: Path,
    model: str,
    adapter: Path | None,
    folder: Path,
    on_line: Callable[[str], None],
) -> dict[str, Any]:
    """Score `model` (with `adapter` on top, if any) on the Parquet file `rows`; give the summary.

    The summary holds `accuracy`, `accuracy_flexible` and `reward` with their standard errors, the same of the sampled
    completions, if there are any, as `sampled/NAME`, the reward that says what is right, if one does, as `correct_by`,
    and the Parquet files in `folder`: `results` with a row for each question and `samples`, if there are any, with one
    for each sample. Where memory runs out, less is done at a time. Raises UserError or WorkerFailed as `run_jobs` does.
    """
    shares = min(config.evaluation_processes, _questions(rows, config))
    merged = str(merged_folder(folder)) if adapter and config.registry.merged else None
    on_cpu = config.training.on_cpu
    results, samples = ([folder / f"{name}.{share}" for share in range(shares)] for name in ("results", "samples"))

    def work(settings: Config) -> dict[str, Any]:
        jobs = [
            {
                "config": settings.dump(),
                "rows": str(rows),
                "limit": settings.evaluation.limit,
                "share": [share, shares],
                "model": model,
                "adapter": str(adapter) if adapter else None,
                "merged": merged,
                "results": str(results[share]),
                "samples": str(samples[share]),
            }
            for share in range(shares)
        ]
        gpus = [] if on_cpu else visible_devices(shares)
        parts = [
            Part(
                job,
                folder / f"share-{share}" if share else folder,
                run.log_file(f"{stage}.{share}" if share else stage),
                only(gpus[share : share + 1]) if gpus else {},
            )
            for share, job in enumerate(jobs)
        ]
        for file in (*results, *samples):  # of an attempt that was ended before
            file.unlink(missing_ok=True)
        found = run_jobs(
            "tasks.evaluate_worker",
            parts,
            on_line=on_line,
            environment=QUIET | (waiting(shares, on_line) if on_cpu else {}),
            time_limit=settings.evaluation.time_limit,
            limit_setting="evaluation.time_limit",
        )
        table = _together(results, folder / "results.parquet")
        scores: dict[str, Any] = summary(table)
        if settings.evaluation.samples:
            scores |= sampled_summary(_together(samples, folder / "samples.parquet"))
            scores["samples"] = str(folder / "samples.parquet")
        return scores | {
            "engine": found[0]["engine"],
            "seconds": max(one["seconds"] for one in found),
            "tokens": int(table["tokens"].sum()),
            "too_long": found[0]["too_long"],
            "correct_by": found[0]["correct_by"],
            "results": str(folder / "results.parquet"),
        }

    folder.mkdir(exist_ok=True)
    return Relief(folder / "memory.json", (smaller_evaluation,)).run(config, work, on_line)


def _questions(rows: Path, config: Config) -> int:
    """How many are asked."""
    count: int = pq.read_metadata(rows).num_rows
    return min(count, config.evaluation.limit or count)


def _together(shares: Sequence[Path], path: Path) -> pd.DataFrame:
    """The tables of all shares as one, written to `path` instead of them, in the order of the questions."""
    tables = [pd.read_parquet(share) for share in shares if share.exists()]  # one may have had no question
    # They took questions in turn, so the first of each come first; of a question there may be several completions.
    turns = pd.concat(
        [
            table.assign(turn=table["id"].ne(table["id"].shift()).cumsum(), share=share)
            for share, table in enumerate(tables)
        ]
    )
    table = turns.sort_values(["turn", "share"], kind="stable").drop(columns=["turn", "share"]).reset_index(drop=True)
    table.to_parquet(path)
    for share in shares:
        share.unlink(missing_ok=True)
    return table


# What decides on a baseline's answers and scores, beside the rewards; another one is not that of the store.
BASELINE_CODE = (
    "cpu", "engine", "evaluate_worker", "generate", "models", "prompts", "reward_scoring", "scoring", "summary",
)  # fmt: skip


def baseline(
    run: Run,
    config: Config,
    *,
    rows: Path,
    rows_digest: str,
    model: dict[str, str],
    on_line: Callable[[str], None],
) -> dict[str, Any]:
    """Score the start model once for all runs that share model, questions, prompt, rewards and protocol."""

    asked = False

    def make(folder: Path) -> None:
        nonlocal asked
        asked = True
        result = evaluate(
            run, config, stage="baseline", rows=rows, model=model["path"], adapter=None, folder=folder, on_line=on_line
        )
        write_json(folder / "summary.json", result)

    folder = stored("baselines", baseline_key(run, config, rows_digest, model), make)
    run.link("baseline", folder)
    if not asked:
        on_line("the same has been asked before: answers, scores and seconds are those in the store")
    scores = read_json(folder / "summary.json")
    # It was made under another name.
    return scores | {name: str(folder / f"{name}.parquet") for name in ("results", "samples") if name in scores}


def baseline_key(run: Run, config: Config, rows_digest: str, model: dict[str, str]) -> str:
    """The digest of all that a baseline's answers and scores depend on."""
    return digest(
        {
            "rows": rows_digest,
            "model": model["identity"],
            "dtype": model["dtype"],
            "cpu": config.training.on_cpu,
            "prompt": config.prompt.model_dump(mode="json"),
            "rewards": [reward.model_dump(mode="json") for reward in config.rewards.functions],
            "user code": user_code(config),
            # What a reward of the user's reads or calls cannot be told, so its scores belong to this run alone.
            "run": None if all(is_registered(reward.name) for reward in config.rewards.functions) else run.id,
            "evaluation": config.evaluation.model_dump(
                mode="json", exclude={"examples", "every_steps", "time_limit", "processes"}
            ),
            "max_new_tokens": config.max_new_tokens,
            "gold": config.data.gold,
            "code": source_digest(
                "rewards/*.py",
                *(f"tasks/{name}.py" for name in BASELINE_CODE),
            ),
            "engine": choose_engine(config)[0],  # what auto is here and now
            "vllm": vllm_version(),
            "transformers": version("transformers"),
        }
    )


def user_code(config: Config) -> list[list[str]]:
    """The source of rewards that are files of the user's, and of what lies beside them, which they may import: name and
    content of each file. A changed line is another reward. Raises UserError for a file that cannot be read."""
    folders = {reward.file.parent for reward in config.rewards.functions if reward.file}
    files = sorted(file for folder in folders for file in folder.glob("*.py") if file.is_file())
    try:
        return [[file.name, file.read_text(encoding="utf-8", errors="replace")] for file in files]
    except OSError as error:
        raise UserError(f"{error.filename}, beside a reward of yours, cannot be read ({error.strerror})") from None


# Libraries that would otherwise fill a log with what is no news.
QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "PYTHONWARNINGS": "ignore",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TORCH_LOGS": os.environ.get("TORCH_LOGS", "-torch._library.triton"),  # that there is no Triton on a CPU
    "TQDM_DISABLE": "1",  # the bars of loading and converting; `generate.progress_bar` shows itself all the same
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}
