"""The ingested rows as a database on disk: DuckDB sorts, joins and counts them with a fixed share of memory, so that a
million rows fit as well as a thousand."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

MEMORY = "400MB"
THREADS = 2


@contextmanager
def rows_database(folder: Path, scratch: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """The Parquet files in `folder` as the views `train` (with the validation rows) and `test`.

    `scratch` gets working files, which the caller removes.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        "memory_limit": MEMORY,
        "threads": THREADS,
        "temp_directory": str(scratch / "spilled"),
        "preserve_insertion_order": False,
        "python_enable_replacements": False,  # no name in a query is a Python variable
    }
    with duckdb.connect(str(scratch / "rows.duckdb"), config=config) as database:
        database.execute("SET enable_progress_bar = false")  # it would go to standard output
        for view, files in (("train", ("train", "validation")), ("test", ("test",))):
            paths = ", ".join(_quoted(str(folder / f"{file}.parquet")) for file in files)
            database.execute(f"CREATE VIEW {view} AS SELECT * FROM read_parquet([{paths}], union_by_name = true)")
        yield database


def batches(database: duckdb.DuckDBPyConnection, query: str, rows: int) -> Iterator[pa.Table]:
    """The result of `query`, at most `rows` rows at a time; at least one table, if only for its columns."""
    reader = database.sql(query).to_arrow_reader(rows)
    empty = True
    for batch in reader:
        if batch.num_rows:
            empty = False
            yield pa.Table.from_batches([batch])
    if empty:
        yield reader.schema.empty_table()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
