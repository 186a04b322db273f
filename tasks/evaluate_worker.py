"""Worker: one model's answers to one split, or to its share of it, scored. Started by `tasks.evaluate`."""

import time
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import pandas as pd

from tasks.config import Config
from tasks.errors import UserError
from tasks.generate import Completion, Engine, Sampling, make_engine
from tasks.merging import write_merged
from tasks.models import load_tokenizer
from tasks.prompts import build_prompt, encode, fitting
from tasks.scoring import Scorer
from tasks.whole import is_whole
from tasks.worker import run_worker


def evaluate(job: dict[str, Any]) -> dict[str, Any]:
    """Let the model of `job` answer its share of the Parquet file `job["rows"]`.

    The scored greedy completions go to `job["results"]`, the sampled ones, where `evaluation.samples` asks for some, to
    `job["samples"]`.
    """
    config = Config.model_validate(job["config"])
    rows = pd.read_parquet(job["rows"])
    if job["limit"]:
        rows = rows.head(job["limit"])
    tokenizer = load_tokenizer(job["model"], config.model, config.prompt)
    prompts = [build_prompt(question, config.prompt) for question in rows["question"]]
    ids = encode(prompts, tokenizer, config.prompt)
    share, shares = job["share"]
    within = fitting(ids, config.prompt)
    if not within:
        raise UserError(
            f"every prompt is longer than prompt.max_tokens ({config.prompt.max_tokens}); raise it, or shorten the "
            "system prompt"
        )
    too_long = len(ids) - len(within)
    kept = within[share::shares]
    if not kept:  # more shares than questions
        return {"engine": "none", "seconds": 0.0, "too_long": too_long, "correct_by": None}
    longest = max(len(ids[place]) for place in within) + config.max_new_tokens
    rows = rows.iloc[kept].reset_index(drop=True)
    prompts, ids = [prompts[place] for place in kept], [ids[place] for place in kept]
    adapter = Path(job["adapter"]) if job["adapter"] else None
    scorer = Scorer.of(config)
    if adapter and job["merged"]:
        merged = Path(job["merged"])
        if share == 0:
            write_merged(job["model"], config.model, adapter, tokenizer, merged)
        while not is_whole(merged):  # the first share is at it; should it fail, all are ended
            time.sleep(0.2)
        # By a path that is the same in every run: vLLM knows what it has compiled by the path of the model.
        with chdir(merged.parent):
            engine = make_engine(config, merged.name, None, tokenizer, longest)
    else:
        engine = make_engine(config, job["model"], adapter, tokenizer, longest)
    whose = f"share {share + 1} of {shares}: " if shares > 1 else ""
    completions, seconds = _timed(engine, ids, Sampling(config.max_new_tokens), whose)
    table = scorer.score(rows, prompts, [one for [one] in completions])
    table.to_parquet(job["results"])
    if n := config.evaluation.samples:
        how = Sampling(config.max_new_tokens, n, config.evaluation.temperature, config.evaluation.top_p)
        sampled, _ = _timed(engine, ids, how, whose)
        repeated = rows.loc[rows.index.repeat(n)].reset_index(drop=True)
        again = [prompt for prompt in prompts for _ in range(n)]
        scorer.score(repeated, again, [one for group in sampled for one in group]).to_parquet(job["samples"])
    correct_by = None if scorer.correct_by is None else scorer.names[scorer.correct_by]
    return {"engine": engine.name, "seconds": seconds, "too_long": too_long, "correct_by": correct_by}


def _timed(
    engine: Engine, ids: Sequence[list[int]], sampling: Sampling, whose: str
) -> tuple[list[list[Completion]], float]:
    """The completions, and the seconds that they took."""
    print(
        f"{whose}{len(ids)} questions{f', {sampling.n} times each' if sampling.n > 1 else ''}, "
        f"up to {sampling.max_new_tokens} tokens an answer",
        flush=True,
    )
    started = time.monotonic()
    completions = engine.generate(ids, sampling)
    seconds = time.monotonic() - started
    tokens = sum(one.tokens for group in completions for one in group)
    count = len(ids) * sampling.n
    print(
        f"{whose}{count} completions, {tokens} tokens in {seconds:.1f} s ({tokens / seconds:.0f} tokens/s)", flush=True
    )
    return completions, round(seconds, 2)


if __name__ == "__main__":
    run_worker(evaluate)
