"""A trainer that has not enough memory for its batch ends well with a smaller one, and says so everywhere."""

from typing import Any

import pandas as pd
import pytest
from sandbox import Sandbox, write_config

from tasks.metrics import series

pytestmark = pytest.mark.slow

STEPS = 2
BATCH = 512

# A reward that, when the trainer first calls it, lets the process have MIB more than it has by then: a real limit, by
# which the step's forward and backward pass fails in torch's own allocator.
LIMITED = """
import resource
import sys
from pathlib import Path

MIB = {mib}


def limited(completions, **_):
    if "train_worker" in sys.argv[0] and resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY:
        [line] = [one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmData")]
        most = int(line.split()[1]) * 1024 + MIB * 2**20
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    return [0.001 * len(message[0]["content"]) for message in completions]
"""


@pytest.fixture
def settings(sandbox: Sandbox, tiny_settings: dict[str, Any], tiny_model) -> dict[str, Any]:
    training = {"max_steps": STEPS, "save_steps": 1, "per_device_train_batch_size": BATCH, "num_generations": 8}
    return tiny_settings | {
        "model": tiny_settings["model"] | {"name": str(tiny_model)},
        "rewards": {"gold_template": None, "functions": [{"name": "limited.py:limited"}, {"name": "correctness"}]},
        "training": tiny_settings["training"] | training,
        "evaluation": {"engine": "transformers", "limit": 16, "validation_limit": 16, "batch_size": 16},
        "registry": {"name": "relieved", "experiment": "relieved"},
    }


def test_a_trainer_that_runs_out_of_memory_goes_on_with_the_same_effective_batch(sandbox: Sandbox, settings):
    (sandbox.folder / "limited.py").write_text(LIMITED.format(mib=900))
    done = sandbox.grpo(write_config(sandbox.folder / "memory.yaml", settings))
    assert done.returncode == 0, done.stderr[-3000:]
    [run] = sandbox.mlflow_runs("relieved")
    folder = sandbox.runs / run.data.tags["flow_run_id"]
    first = f"training.per_device_train_batch_size {BATCH} → {BATCH // 2}, training.gradient_accumulation_steps 1 → 2"
    assert run.data.tags["memory_changes"].startswith(first)
    assert "WARNING | Task run 'train-" in done.stderr and "memory ran out" in done.stderr
    assert first in (folder / "report.md").read_text()
    assert [step for step, _ in series(folder / "train" / "metrics.jsonl", "train/reward")] == list(range(1, STEPS + 1))
    # As many completions in each step as were asked for, whatever the batch of the device.
    for step in range(1, STEPS + 1):
        assert len(pd.read_parquet(folder / "train" / "completions" / f"completions_{step:05}.parquet")) == BATCH
    [version] = sandbox.mlflow.search_model_versions("name = 'relieved'")
    assert first in version.description


def test_where_nothing_smaller_is_left_a_sentence_says_what_was_tried(sandbox: Sandbox, settings):
    (sandbox.folder / "limited.py").write_text(LIMITED.format(mib=0))
    settings["training"] |= {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    done = sandbox.grpo(write_config(sandbox.folder / "memory.yaml", settings), "--until", "train")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: train: memory ran out (")
    assert "training.per_device_train_batch_size 2 → 1, training.gradient_accumulation_steps 4 → 8" in last
    assert "Take a smaller model or a shorter training.max_completion_length" in last
    [run] = sandbox.mlflow_runs("relieved")
    assert run.info.status == "FAILED"
