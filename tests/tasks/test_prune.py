"""What is given back, and what stays."""

import os
import time

import pytest

from tasks.prune import main, prune_checkpoints
from tasks.run import Run, stored


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_RUNS", str(tmp_path))
    return tmp_path


def make(folder):
    (folder / "rows.parquet").write_bytes(b"x" * 2**20)


def test_what_was_not_used_for_long_is_removed_and_what_was_used_since_stays(runs, capsys):
    old, used = stored("data", "old", make), stored("data", "used", make)
    month_ago = time.time() - 40 * 86400
    for folder in (old, used):
        os.utime(folder, (month_ago, month_ago))
    assert stored("data", "used", make) == used
    assert main(["30"]) == 0
    assert not old.exists() and used.exists()
    assert "1.0 MiB given back, unused for 30 days" in capsys.readouterr().out


def test_a_registered_run_keeps_what_was_chosen_and_loses_its_checkpoints(runs):
    run = Run.open("a")
    for name in ("checkpoint-10", "torn-checkpoint-20-1", "chosen"):
        (run.folder / "train" / name).mkdir(parents=True)
    prune_checkpoints(run)
    assert [path.name for path in (run.folder / "train").iterdir()] == ["chosen"]
