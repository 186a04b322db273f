"""The folder of a dataset, written and read a group of rows at a time."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import dataset
from tasks.dataset import Rows, SplitWriter, read_manifest, write_manifest
from tasks.errors import UserError


def table(first, last):
    numbers = list(range(first, last))
    return pa.table({"id": [f"{n}" for n in numbers], "source_row": numbers})


@pytest.fixture
def small_groups(monkeypatch):
    monkeypatch.setattr(dataset, "ROW_GROUP", 4)


def test_rows_are_read_by_their_place_and_in_slices(tmp_path, small_groups):
    writer = SplitWriter(tmp_path / "train.parquet")
    for first in range(0, 10, 3):
        writer.add(table(first, min(first + 3, 10)))
    writer.close()
    assert pq.ParquetFile(writer.path).num_row_groups > 1
    rows = Rows(writer.path)
    assert len(rows) == 10
    assert [row["source_row"] for row in rows] == list(range(10))
    assert rows[-1] == {"id": "9", "source_row": 9} and rows[3:5] == [rows[3], rows[4]]
    with pytest.raises(IndexError):
        rows[10]


def test_no_rows_are_rows_too(tmp_path):
    writer = SplitWriter(tmp_path / "train.parquet")
    writer.add(table(0, 0))
    writer.close()
    assert list(Rows(writer.path)) == []


def test_the_digest_is_that_of_the_rows_and_not_of_how_they_came(tmp_path, small_groups):
    digests = []
    for number, steps in enumerate(([0, 10], [0, 1, 9, 10])):
        writer = SplitWriter(tmp_path / f"{number}.parquet")
        for first, last in zip(steps, steps[1:], strict=False):
            writer.add(table(first, last))
        digests.append(writer.close())
    assert digests[0] == digests[1]


def test_a_limit_leaves_the_rest_out_and_counts_it(tmp_path):
    writer = SplitWriter(tmp_path / "train.parquet", limit=5)
    for first in (0, 4, 8):
        writer.add(table(first, first + 4))
    writer.close()
    assert (writer.rows, writer.left_out) == (5, 7)
    assert [row["source_row"] for row in Rows(writer.path)] == [0, 1, 2, 3, 4]


def test_a_manifest_notices_a_file_that_was_changed(tmp_path):
    writer = SplitWriter(tmp_path / "train.parquet")
    writer.add(table(0, 3))
    write_manifest(tmp_path, {"train": writer}, {"source": "here"})
    manifest = read_manifest(tmp_path)
    assert manifest["counts"] == {"train": 3} and manifest["source"] == "here"
    writer.path.write_bytes(writer.path.read_bytes() + b" ")
    with pytest.raises(UserError, match="is not what was once written there"):
        read_manifest(tmp_path)
