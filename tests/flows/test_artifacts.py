"""What a flow says of a finished training, beside what was estimated of it."""

from pathlib import Path

import pytest

from flows.artifacts import against_estimate, measured
from tasks import metrics
from tasks.run import Run


@pytest.mark.parametrize(
    ("gpu", "memory"),
    [(0.0, {"memory_gib": 3.0}), (20.0, {"memory_gib": 20.0}), (None, {})],
    ids=["on a CPU", "on a GPU", "on a GPU whose vLLM sleeps"],
)
def test_memory_is_that_of_the_device_and_left_out_where_it_is_not_known(
    gpu: float | None, memory: dict, tmp_path: Path
):
    (tmp_path / "train").mkdir()
    for step, seconds in enumerate((9.0, 2.0, 4.0), 1):
        metrics.append(tmp_path / "train" / "metrics.jsonl", step, {"train/step_time": seconds})
    found = measured(Run("one", tmp_path), {"peak_gpu_gib": gpu, "peak_ram_gib": 3.0})
    assert found == memory | {"step_seconds": 3.0}  # without the first one, which warms up


def test_what_training_took_stands_beside_what_was_estimated():
    needs = {"memory_gib": 5.04, "step_seconds": None}
    assert against_estimate({"memory_gib": 6.16, "step_seconds": 7.0}, needs) == (
        "6.2 GiB (estimated: 5.0) and 7.0 s a step (estimated: unknown)"
    )
