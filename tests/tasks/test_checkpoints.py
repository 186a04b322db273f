"""A checkpoint that cannot be read is passed over for the one before it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tasks.checkpoints import checkpoint_before, newest_whole_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in (3, 6, 12):
        checkpoint = tmp_path / f"checkpoint-{step}"
        checkpoint.mkdir()
        save_file({"a": torch.ones(100)}, checkpoint / "adapter_model.safetensors")
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
            torch.save({"a": torch.ones(100)}, checkpoint / name)
        for name in ("adapter_config.json", "trainer_state.json"):
            (checkpoint / name).write_text('{"global_step": 1, "log_history": []}')
    return tmp_path


def test_it_is_the_one_of_the_highest_step(folder):
    said: list[str] = []
    assert newest_whole_checkpoint(folder, said.append) == folder / "checkpoint-12"
    assert said == ["going on from checkpoint-12"]
    assert newest_whole_checkpoint(folder / "nowhere", said.append) is None


def test_the_one_before_is_the_newest_older_one_that_is_whole(folder):
    assert checkpoint_before(folder / "checkpoint-12") == folder / "checkpoint-6"
    (folder / "checkpoint-6" / "trainer_state.json").unlink()
    assert checkpoint_before(folder / "checkpoint-12") == folder / "checkpoint-3"
    assert checkpoint_before(folder / "checkpoint-3") is None


@pytest.mark.parametrize(
    "file",
    ["adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"],
)
@pytest.mark.parametrize("size", [0, 20, -20])
def test_one_with_a_file_cut_short_is_set_aside(folder, file, size):
    path = folder / "checkpoint-12" / file
    content = path.read_bytes()
    path.write_bytes(content[:size])
    said: list[str] = []
    assert newest_whole_checkpoint(folder, said.append) == folder / "checkpoint-6"
    assert said == [f"WARNING checkpoint-12 is left out, since its {file} cannot be read", "going on from checkpoint-6"]
    assert [path.name[:18] for path in folder.glob("torn-*")] == ["torn-checkpoint-12"]


def test_one_that_was_not_written_to_its_end_is_set_aside(folder):
    for step in (3, 6, 12):
        (folder / f"checkpoint-{step}" / "trainer_state.json").unlink()
    said: list[str] = []
    assert newest_whole_checkpoint(folder, said.append) is None
    assert said[0] == "WARNING checkpoint-12 is left out, since it was not written to its end" and len(said) == 3
