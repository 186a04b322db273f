"""What stops a training between two steps."""

from types import SimpleNamespace

import pytest

from tasks import training_callbacks
from tasks.errors import UserError
from tasks.training_callbacks import DiskBudget


@pytest.mark.parametrize(("free", "stops"), [(3 << 20, True), (5 << 20, False)])
def test_a_checkpoint_that_the_disk_could_not_hold_is_not_begun(tmp_path, monkeypatch, free, stops):
    for step in (4, 12):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "optimizer.pt").write_bytes(b"x" * (step << 18))  # 1 and 3 MiB
    monkeypatch.setattr(training_callbacks.shutil, "disk_usage", lambda _: SimpleNamespace(free=2 * free - (1 << 20)))
    step = SimpleNamespace(global_step=16), SimpleNamespace(should_save=True)
    arguments = SimpleNamespace(save_total_limit=3)
    if not stops:
        DiskBudget(tmp_path).on_step_end(arguments, *step)
        return
    with pytest.raises(UserError, match="stopped at step 16: only 0.00 GiB are free .* python -m flows.resume"):
        DiskBudget(tmp_path).on_step_end(arguments, *step)
    DiskBudget(tmp_path).on_step_end(arguments, step[0], SimpleNamespace(should_save=False))


def test_the_first_checkpoint_is_always_begun(tmp_path):
    DiskBudget(tmp_path).on_step_end(
        SimpleNamespace(save_total_limit=3), SimpleNamespace(global_step=1), SimpleNamespace(should_save=True)
    )
