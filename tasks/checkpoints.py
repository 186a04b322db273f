"""The checkpoint that training goes on from: the newest that was written to its end and can be read."""

import re
import time
from collections.abc import Callable
from pathlib import Path

from tasks.torn import first_torn


def newest_whole_checkpoint(folder: Path, on_line: Callable[[str], None]) -> Path | None:
    """The newest whole checkpoint in `folder`; damaged ones that are newer are set aside under another name."""
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=_step, reverse=True):
        fault = fault_of(checkpoint)
        if fault is None:
            on_line(f"going on from {checkpoint.name}")
            return checkpoint
        on_line(f"WARNING {checkpoint.name} is left out, since {fault}")
        checkpoint.rename(folder / f"torn-{checkpoint.name}-{time.time_ns()}")
    return None


def checkpoint_before(checkpoint: Path) -> Path | None:
    """The newest whole one that is older than `checkpoint`."""
    older = [one for one in checkpoint.parent.glob("checkpoint-*") if _step(one) < _step(checkpoint)]
    return next((one for one in sorted(older, key=_step, reverse=True) if fault_of(one) is None), None)


def fault_of(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, by the frame of each of its files, without reading all of them."""
    if not (checkpoint / "trainer_state.json").is_file():  # which is written last
        return "it was not written to its end"
    torn = first_torn(path for path in checkpoint.rglob("*") if path.is_file())
    return f"its {torn.name} cannot be read" if torn else None


def _step(checkpoint: Path) -> int:
    digits = re.fullmatch(r"checkpoint-(\d+)", checkpoint.name)
    return int(digits[1]) if digits else -1
