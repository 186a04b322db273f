"""The folder of a dataset: train.parquet, validation.parquet, test.parquet, and manifest.json with the digests of all.

`ingest` writes one, `validate` another where it leaves rows out; every later stage reads one.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.errors import UserError
from tasks.run import digest, read_json, write_json

SPLITS = ("train", "validation", "test")
ROW_GROUP = 10_000  # rows that are read and written at one time

OWN_COLUMNS = pa.schema(
    [
        ("id", pa.string()),  # the same for the same question, everywhere
        ("question", pa.string()),
        ("answer", pa.string()),  # the gold; null where there is none, or where it cannot be read
        ("rationale", pa.string()),  # the worked solution without the gold
        ("raw_answer", pa.string()),  # the source's answer column as it was
        ("source_row", pa.int64()),  # the row in the source's split, from 1; messages name it
    ]
)

# TRL makes these itself and repeats all others of the dataset for the rewards.
TRL_COLUMNS = ("prompt", "prompts", "completion", "completions", "completion_ids")


class Rows(Sequence[dict[str, Any]]):
    """The rows of a Parquet file as dictionaries, of which only one row group at a time is in memory."""

    def __init__(self, path: Path) -> None:
        self._file = pq.ParquetFile(path)
        groups = range(self._file.num_row_groups)
        self._starts = [0, *accumulate(self._file.metadata.row_group(group).num_rows for group in groups)]
        self._group = -1
        self._rows: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        group = bisect_right(self._starts, place) - 1
        if group != self._group:
            self._group, self._rows = group, self._file.read_row_group(group).to_pylist()
        return self._rows[place - self._starts[group]]


class SplitWriter:
    """One split as it is written: a Parquet file, with the number and the digest of its rows.

    `limit`, if given, is the number of rows to take; those beyond it are counted in `left_out`.
    """

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self.path = path
        self.limit = limit
        self.rows = self.left_out = 0
        self._content = hashlib.sha256()
        self._waiting: list[pa.Table] = []
        self._writer: pq.ParquetWriter | None = None

    def add(self, table: pa.Table) -> None:
        """Append rows. All tables have the same columns; one without rows gives them too."""
        taken = table if self.limit is None else table.slice(0, max(0, self.limit - self.rows))
        self.left_out += table.num_rows - taken.num_rows
        self.rows += taken.num_rows
        for row in taken.drop_columns("source_row").to_pylist():
            self._content.update(json.dumps(row, sort_keys=True, ensure_ascii=False, default=str).encode() + b"\n")
        self._waiting.append(taken)
        if sum(waiting.num_rows for waiting in self._waiting) >= ROW_GROUP:
            self._write()

    def close(self) -> str:
        """End the file; gives the sha256 of its rows in their order, whatever the order of columns and their width."""
        self._write()
        assert self._writer is not None
        self._writer.close()
        return self._content.hexdigest()

    def _write(self) -> None:
        table = pa.concat_tables(self._waiting)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self.path, table.schema)
        if table.num_rows:
            self._writer.write_table(table, row_group_size=ROW_GROUP)
        self._waiting = [table.slice(0, 0)]


def write_manifest(folder: Path, writers: dict[str, SplitWriter], more: dict[str, Any]) -> None:
    """End the files of `writers`, one per split, and write the manifest of `folder`, with `more` in it.

    - digest: sha256 of the content, that is of all rows and their division; sha256: the same for each split
    - counts: rows of each split
    - files: sha256 of each file in the folder
    """
    sha256 = {split: writer.close() for split, writer in writers.items()}
    manifest = {
        "digest": digest(sha256),
        "sha256": sha256,
        "counts": {split: writer.rows for split, writer in writers.items()},
        "files": {path.name: file_digest(path) for path in sorted(folder.glob("*.parquet"))},
    }
    write_json(folder / "manifest.json", more | manifest)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of `folder`, with `folder` in it. Raises UserError if a file is not what was written there."""
    manifest: dict[str, Any] = read_json(folder / "manifest.json")
    for name, expected in manifest["files"].items():
        if not (folder / name).is_file() or file_digest(folder / name) != expected:
            raise UserError(f"{folder / name} is not what was once written there; remove the folder and start again")
    return manifest | {"folder": str(folder)}


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
