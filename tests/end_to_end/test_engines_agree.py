"""vLLM and transformers give the same answers to the same questions, with the same weights in float32."""

import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rewards.number import parse_number
from tasks.config import load
from tasks.evaluate import evaluate
from tasks.ingest import ingest
from tasks.models import resolve_model
from tasks.run import Run

pytestmark = [pytest.mark.slow, pytest.mark.alone]

QUESTIONS = 128
SHOTS = [
    {
        "question": "A baker has 12 rolls and sells 5 of them. How many rolls are left?",
        "answer": "12 - 5 = 7. The answer is 7.",
    },
    {
        "question": "Pens cost 3 dollars each. How much do 6 pens cost?",
        "answer": "6 * 3 = 18. The answer is 18.",
    },
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pd.DataFrame]:
    """Of each engine, by question; on the real GSM8K where GSM8K_DIR is set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_RUNS", str(tmp_path_factory.mktemp("runs")))
        real = os.environ.get("GSM8K_DIR")
        source: dict[str, Any] = {"data.path": real} if real else {"data.samples": {"test": QUESTIONS, "steps": 2}}
        found = {}
        for engine in ("vllm", "transformers"):
            config = load(
                "deployments/demo.yaml",
                source
                | {
                    "prompt": {"system": "Solve the problem.", "examples": SHOTS},
                    "model.dtype": "float32",
                    "evaluation.engine": engine,
                    "evaluation.limit": QUESTIONS,
                    "evaluation.max_new_tokens": 48,
                    "evaluation.batch_size": 32,
                },
            )
            run = Run.open(engine)
            rows = Path(ingest(config.data)["folder"]) / "test.parquet"
            model = resolve_model(config.model)["path"]
            folder = run.folder / "evaluate"
            lines: list[str] = []
            done = evaluate(
                run, config, stage=engine, rows=rows, model=model, adapter=None, folder=folder, on_line=lines.append
            )
            assert done["engine"] == engine
            found[engine] = pd.read_parquet(done["results"]).set_index("id")
        return found


def test_the_last_numbers_agree(answers):
    vllm, transformers = answers["vllm"], answers["transformers"]
    assert len(vllm) == QUESTIONS and vllm.index.equals(transformers.index)
    assert vllm["flexible"].notna().mean() >= 0.8
    pairs = pd.DataFrame({"vllm": vllm["flexible"], "transformers": transformers["flexible"]})
    agree = [_value(one) == _value(other) for one, other in pairs.itertuples(index=False)]
    # What differs has parted at a token whose two best candidates are as good as equal: the engines add up in another
    # order, which in float32 moves a logit by some 1e-5.
    assert sum(agree) >= 0.98 * QUESTIONS, pairs[[not one for one in agree]]


def _value(number: Any) -> Any:
    return None if number is None or pd.isna(number) else parse_number(number)
