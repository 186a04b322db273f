"""Rows on their way from a source to a table: batches on disk, whose columns may differ, read back with one schema.

So no more than a batch is ever in memory, however long the source is.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa


class Spool:
    """Batches of rows in the files of `folder`, in the order in which they were added."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.rows = 0
        self.batches = 0
        self.schema: pa.Schema = pa.schema([])

    def add(self, table: pa.Table) -> None:
        """Append rows. Raises `pa.ArrowException` where a column has a type that does not fit the rows before."""
        self.schema = pa.unify_schemas([self.schema, table.schema], promote_options="permissive")
        with pa.ipc.new_file(self._path(self.batches), table.schema) as writer:
            writer.write_table(table)
        self.batches += 1
        self.rows += table.num_rows

    def read(self, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """The batches with all columns of all batches, null where a batch had none, or with `columns` alone."""
        empty = self.schema.empty_table()
        for number in range(self.batches):
            with pa.OSFile(str(self._path(number))) as file:
                batch = pa.ipc.open_file(file).read_all()
            whole = pa.concat_tables([empty, batch], promote_options="permissive")
            yield whole.select(columns) if columns is not None else whole

    @property
    def gib(self) -> float:
        return sum(path.stat().st_size for path in self.folder.iterdir()) / 2**30

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08}.arrow"
