"""The metrics of a run as a file: one JSON object a line, `{"step": 3, "time": 1700000000.0, "metrics": {…}}`.

Whoever measures only appends, so that nothing is lost while the MLflow server is away; `tasks.tracking` sends it on.
A resumed run does some steps again and appends them again: the first value of a step is the one that counts.
"""

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """One line. `time` is in seconds since the epoch; `end` is the byte in the file after the line."""

    step: int
    time: float
    metrics: dict[str, float]
    end: int


def append(path: Path, step: int, metrics: Mapping[str, float]) -> None:
    """Add one line to the file, and see that it is on the disk."""
    line = json.dumps({"step": step, "time": time.time(), "metrics": dict(metrics)}).encode() + b"\n"
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a killed process left half a line; it stays one, and does not spoil this one
                line = b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def read(path: Path, start: int = 0) -> Iterator[Entry]:
    """The whole lines from byte `start` on. What a killed process left half-written is skipped."""
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(start)
        lines = file.read().split(b"\n")[:-1]  # what follows the last line end is still being written
    end = start
    for line in lines:
        end += len(line) + 1
        try:
            values = json.loads(line)
        except ValueError:
            logger.warning("%s: skipped a half-written line before byte %d", path, end)
            continue
        yield Entry(values["step"], values["time"], values["metrics"], end)


def series(path: Path, name: str) -> list[tuple[int, float]]:
    """One metric as (step, value), by step; of a step done twice the first value."""
    values: dict[int, float] = {}
    for entry in read(path):
        if name in entry.metrics:
            values.setdefault(entry.step, entry.metrics[name])
    return sorted(values.items())
