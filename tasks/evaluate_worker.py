"""Worker: greedy answers of one model to one split, scored. Started by `tasks.evaluate`."""

import time
from pathlib import Path
from typing import Any

import pandas as pd

from tasks.config import Config
from tasks.errors import UserError
from tasks.generate import make_engine
from tasks.models import load_tokenizer
from tasks.prompts import build_prompt, encode
from tasks.scoring import Scorer, summary
from tasks.worker import run_worker


def evaluate(job: dict[str, Any]) -> dict[str, Any]:
    """Score the model of `job` on the Parquet file `job["rows"]`; results go to `job["results"]`."""
    config = Config.model_validate(job["config"])
    rows = pd.read_parquet(job["rows"])
    if job["limit"]:
        rows = rows.head(job["limit"])
    tokenizer = load_tokenizer(job["model"], config.model, config.prompt)
    prompts = [build_prompt(question, config.prompt) for question in rows["question"]]
    ids = encode(prompts, tokenizer, config.prompt)
    asked = len(rows)
    kept = [place for place, prompt in enumerate(ids) if len(prompt) <= (config.prompt.max_tokens or len(prompt))]
    if not kept:
        raise UserError("every prompt is longer than prompt.max_tokens; raise it, or shorten the system prompt")
    rows = rows.iloc[kept].reset_index(drop=True)
    prompts, ids = [prompts[place] for place in kept], [ids[place] for place in kept]
    longest = max(map(len, ids)) + config.max_new_tokens
    adapter = Path(job["adapter"]) if job["adapter"] else None
    scorer = Scorer.of(config)
    engine = make_engine(config, job["model"], adapter, tokenizer, longest)
    started = time.monotonic()
    completions = engine.generate(ids, config.max_new_tokens)
    seconds = time.monotonic() - started
    table = scorer.score(rows, prompts, completions)
    table.to_parquet(job["results"])
    tokens = int(table["tokens"].sum())
    print(f"{len(rows)} completions, {tokens} tokens in {seconds:.1f} s ({tokens / seconds:.0f} tokens/s)", flush=True)
    return summary(table) | {
        "engine": engine.name,
        "seconds": round(seconds, 2),
        "tokens": tokens,
        "too_long": asked - len(rows),
        "results": job["results"],
    }


if __name__ == "__main__":
    run_worker(evaluate)
