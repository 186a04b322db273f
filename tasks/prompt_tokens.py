"""The prompts of every split in tokens. Needs torch, so only `tasks.preflight_worker` imports it."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tasks.config import Config
from tasks.dataset import SPLITS, Rows
from tasks.models import load_tokenizer
from tasks.prompts import build_prompt, encode

BATCH = 1000
NAMED = 5  # rows above the limit that are named


def count_tokens(job: dict[str, Any]) -> dict[str, Any]:
    """Of each split: prompts, min, median, mean, max, too_long, and the first rows above the limit with their size."""
    config = Config.model_validate(job["config"])
    tokenizer = load_tokenizer(job["model"], config.model, config.prompt)
    limit = config.prompt.max_tokens
    found = {}
    for split in SPLITS:
        lengths: list[int] = []
        first: list[tuple[int, int]] = []
        rows = iter(Rows(Path(job["data"]) / f"{split}.parquet"))
        while batch := list(islice(rows, BATCH)):
            prompts = [build_prompt(row["question"], config.prompt) for row in batch]
            new = [len(ids) for ids in encode(prompts, tokenizer, config.prompt)]
            if limit is not None:
                over = [(row["source_row"], size) for row, size in zip(batch, new, strict=True) if size > limit]
                first += over[: NAMED - len(first)]
            lengths += new
        sizes = np.array(lengths)
        found[split] = {
            "prompts": len(sizes),
            "min": int(sizes.min()),
            "median": float(np.median(sizes)),
            "mean": round(float(sizes.mean()), 1),
            "max": int(sizes.max()),
            "too_long": int((sizes > limit).sum()) if limit is not None else 0,
            "first": first,
        }
    return found
