"""Give back disk: what nobody needs any more of finished runs, and what of the store has not been used for long.

python -m tasks.prune DAYS        # or make prune DAYS=30

Results, reports, metrics and chosen weights of a run are never removed.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tasks.run import Run, runs_root


def prune_checkpoints(run: Run) -> None:
    """Remove the checkpoints of a run that has been registered: no attempt will go on from them."""
    for path in [*(run.folder / "train").glob("checkpoint-*"), *(run.folder / "train").glob("torn-checkpoint-*")]:
        shutil.rmtree(path, ignore_errors=True)  # what stays costs disk and nothing else


def prune_store(days: float) -> Iterator[tuple[Path, int]]:
    """Remove what no run has asked the store for in so many days; each folder with its size in bytes.

    A run that wants it again makes it again.
    """
    oldest = time.time() - days * 86400
    for path in sorted((runs_root() / "store").glob("*/*")):
        if path.stat().st_mtime < oldest:
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            shutil.rmtree(path)
            yield path, size


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tasks.prune", description=__doc__.splitlines()[0])
    parser.add_argument("days", type=float, help="how long nothing may have been used to be removed")
    days = parser.parse_args(arguments).days
    removed = 0
    for path, size in prune_store(days):
        print(f"{size / 2**20:8.1f} MiB  {path}")
        removed += size
    print(f"{removed / 2**20:8.1f} MiB given back, unused for {days:g} days")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
