"""The first stage: questions from the hub, from files or from templates, in stable columns, divided once and for all.

    store/data/<key>/
      train.parquet, validation.parquet, test.parquet
      manifest.json   source, revision, counts, and digests of what is in the three

Whether a question is held out depends on its own text alone, so it stays where it is when rows are added, removed or
put in another order.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rewards.number import extract_hash_answer
from tasks.config import DataSettings, SampleSettings
from tasks.data_files import BATCH, FORMATS, check_table, first_line, format_of, read_file
from tasks.errors import UserError
from tasks.run import digest, read_json, require_disk, source_digest, stored, write_json
from tasks.samples import make_problems

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


@dataclass(frozen=True)
class Source:
    """Where rows come from.

    `key` changes whenever the rows may have changed. `load` gives the tables "train" and "test", or "train" alone
    where test has still to be taken out of it.
    """

    words: str
    key: Any
    load: Callable[[], dict[str, pa.Table]]
    revision: str | None = None


def ingest(data: DataSettings) -> dict[str, Any]:
    """Bring the data into the store, unless it is there already, and give its manifest.

    - folder: where the three Parquet files lie
    - digest: sha256 of the content, that is of all rows and their division; sha256: the same for each split
    - source, revision: in words, and the hub's commit or null
    - counts: rows of each split; source_rows: rows of train and test before anything was taken out of train
    - dropped: training rows beyond `data.max_samples`
    - files: sha256 of each file in the folder

    Raises UserError for a source that is missing or damaged, and ConnectionError if the hub cannot be reached.
    """
    source = _source(data)
    settings = data.model_dump(mode="json", exclude={"expected_rows"})
    code = source_digest("tasks/ingest.py", "tasks/data_files.py", "tasks/samples.py", "rewards/number.py")
    key = digest({"source": source.key, "settings": settings, "code": code})
    folder = stored("data", key, lambda folder: _write(folder, data, source))
    manifest = read_json(folder / "manifest.json")
    for name, expected in manifest["files"].items():
        if not (folder / name).is_file() or _file_digest(folder / name) != expected:
            raise UserError(f"{folder / name} is not what was once written there; remove the folder and start again")
    return manifest | {"folder": str(folder)}


def normalised(question: str | None) -> str:
    """The question without regard to case and white space; questions that agree in this count as one."""
    return " ".join((question or "").casefold().split())


def _source(data: DataSettings) -> Source:
    if data.path is not None:
        return _from_path(data.path, data)
    if data.samples is not None:
        return _from_samples(data)
    return _from_hub(data)


def _from_samples(data: DataSettings) -> Source:
    settings = data.samples
    assert settings is not None
    return Source(
        words=f"{settings.train} + {settings.test} word problems from templates, seed {settings.seed}",
        key="templates",
        load=lambda: _make(settings, data),
    )


def _make(settings: SampleSettings, data: DataSettings) -> dict[str, pa.Table]:
    tables = {split: pa.Table.from_pylist(problems) for split, problems in make_problems(settings).items()}
    for table in tables.values():
        check_table(table, "data.samples", _text_columns(data))
    return tables


def _from_path(path: Path, data: DataSettings) -> Source:
    if path.is_dir():
        files = {"train": _files_of(path, data.train_split), "test": _files_of(path, data.test_split)}
    elif path.is_file():
        format_of(path)
        files = {"train": [path]}
    else:
        raise UserError(f"data.path: there is no file or folder {path}; correct the path")
    return Source(
        words=f"the {'folder' if path.is_dir() else 'file'} {path}",
        key={split: [_file_digest(file) for file in shards] for split, shards in files.items()},
        load=lambda: {split: _read_shards(shards, data) for split, shards in files.items()},
    )


def _files_of(folder: Path, split: str) -> list[Path]:
    """The one file of `split`, or its shards in order, named as on the hub (`train-00000-of-00002.parquet`)."""
    pattern = re.compile(
        rf"{re.escape(split)}(?P<shard>[-_.]\d+(?:-of-(?P<shards>\d+))?)?\.(?P<format>(?:{'|'.join(FORMATS)})(?:\.gz)?)"
    )
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    found = [match for name in names if (match := pattern.fullmatch(name))]
    if not found:
        raise UserError(
            f"{folder} has no file for the split {split!r} (such as {split}.jsonl or {split}.parquet), only "
            f"{', '.join(names[:10]) or 'nothing at all'}; rename a file, or set data.train_split or data.test_split"
        )
    if len({(match["shard"] is None, match["shards"], match["format"]) for match in found}) > 1:
        several = ", ".join(match.string for match in found[:10])
        raise UserError(f"{folder} has several files for the split {split!r}: {several}; leave only those that count")
    shards = int(found[0]["shards"] or len(found))
    if shards != len(found):
        raise UserError(f"{folder} has only {len(found)} of {shards} files of the split {split!r}; fetch the others")
    return [folder / match.string for match in found]


def _read_shards(paths: list[Path], data: DataSettings) -> pa.Table:
    tables = [read_file(path, _text_columns(data)) for path in paths]
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise UserError(
            f"{paths[0]} and the other files of its split do not hold the same kinds of columns "
            f"({first_line(error)}); mend or remove a column"
        ) from None


def _from_hub(data: DataSettings) -> Source:
    from datasets import load_dataset_builder  # takes a second, and only this source needs it

    with _hub_in_reach(data):
        try:
            builder = load_dataset_builder(data.name, data.subset, revision=data.revision)
        except ConnectionError:
            raise
        except (FileNotFoundError, ValueError, RuntimeError) as error:
            raise UserError(
                f"data.name: {data.name!r} cannot be loaded from the hub ({first_line(error)}); correct data.name, "
                "data.subset or data.revision, or give local files with data.path"
            ) from None
        # Without the network `datasets` takes the newest that it has loaded before, whatever revision was asked for.
        if re.fullmatch("[0-9a-f]{40}", data.revision or "") and builder.hash != data.revision:
            raise ConnectionError(f"only the revision {builder.hash} is cached, not {data.revision}")
    return Source(
        words=f"{data.name}{f' ({data.subset})' if data.subset else ''} on the hub",
        key=builder.hash,
        load=lambda: _load_from_hub(builder, data),
        revision=builder.hash,
    )


def _load_from_hub(builder: Any, data: DataSettings) -> dict[str, pa.Table]:
    with _hub_in_reach(data):
        builder.download_and_prepare()
    tables = {}
    for split, name in (("train", data.train_split), ("test", data.test_split)):
        if name not in builder.info.splits:
            raise UserError(
                f"{data.name} has no split {name!r}, only {', '.join(builder.info.splits)}; "
                f"set data.{split}_split to one of them"
            )
        tables[split] = builder.as_dataset(split=name).with_format("arrow")[:]
        check_table(tables[split], f"{data.name}, split {name!r}", _text_columns(data))
    return tables


@contextmanager
def _hub_in_reach(data: DataSettings) -> Iterator[None]:
    """Turn every kind of network trouble, which may heal, into a ConnectionError that says what else helps."""
    from httpx import TransportError
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        yield
    except (ConnectionError, TransportError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise ConnectionError(
            f"the hub could not be reached for {data.name} ({first_line(error)}); try again, or give local files with "
            "data.path"
        ) from error


def _write(folder: Path, data: DataSettings, source: Source) -> None:
    tables = source.load()
    _require_rows(tables, data, source)
    tables = {split: _columns(table, data) for split, table in tables.items()}
    if "test" not in tables:
        tables["test"], tables["train"] = _hold_out(tables["train"], data.test_share, "test")
    validation, train = _hold_out(tables["train"], data.validation_share, "validation")
    splits = {"train": train.slice(0, data.max_samples), "validation": validation, "test": tables["test"]}

    require_disk(folder, sum(table.nbytes for table in splits.values()) / 2**30, "the ingested data")
    for split, table in splits.items():
        pq.write_table(table, folder / f"{split}.parquet")
    sha256 = {split: _content_digest(table) for split, table in splits.items()}
    manifest = {
        "digest": digest(sha256),
        "source": source.words,
        "revision": source.revision,
        "counts": {split: table.num_rows for split, table in splits.items()},
        "source_rows": {split: table.num_rows for split, table in tables.items()},
        "dropped": train.num_rows - splits["train"].num_rows,
        "sha256": sha256,
        "files": {path.name: _file_digest(path) for path in sorted(folder.glob("*.parquet"))},
    }
    write_json(folder / "manifest.json", manifest)


def _require_rows(tables: dict[str, pa.Table], data: DataSettings, source: Source) -> None:
    one_file = "test" not in tables
    names = {"train": data.train_split, "test": data.test_split}
    for split, table in tables.items():
        where = source.words if one_file else f"the split {names[split]!r} of {source.words}"
        needed = 3 if one_file else 2 if split == "train" else 1  # each split to be made of it gets one
        if table.num_rows == 0:
            raise UserError(f"{where} holds no rows; add some, or choose another split or source")
        if table.num_rows < needed:
            raise UserError(f"{where} has too few rows to divide, {table.num_rows} of {needed}; add some")


def _columns(table: pa.Table, data: DataSettings) -> pa.Table:
    """Our columns, then the source's others; one of theirs that is named as ours gets the ending `_original`."""
    batches, first_row = [], 1
    for batch in table.select(_text_columns(data)).to_batches(max_chunksize=BATCH):
        batches.append(_own_columns(batch, data, first_row))
        first_row += batch.num_rows
    columns = pa.Table.from_batches(batches, OWN_COLUMNS)
    for name in table.column_names:
        if name not in _text_columns(data):
            new_name = name
            while new_name in columns.column_names:
                new_name += "_original"
            columns = columns.append_column(new_name, table[name])
    return columns


def _own_columns(batch: pa.RecordBatch, data: DataSettings, first_row: int) -> pa.RecordBatch:
    questions = batch[data.question_column].to_pylist()
    answers = batch[data.answer_column].to_pylist() if data.answer_column is not None else [None] * len(questions)
    columns = {
        "id": [hashlib.sha256((question or "").encode()).hexdigest()[:16] for question in questions],
        "question": questions,
        "answer": [_gold(answer, data) for answer in answers],
        "rationale": [(answer or "").partition("####")[0].strip() if data.gold == "hash" else "" for answer in answers],
        "raw_answer": answers,
        "source_row": list(range(first_row, first_row + len(questions))),
    }
    return pa.RecordBatch.from_pydict(columns, OWN_COLUMNS)


def _gold(answer: str | None, data: DataSettings) -> str | None:
    if answer is None or data.gold == "none":
        return None
    if data.gold == "plain":
        return answer.strip()
    try:
        return extract_hash_answer(answer)
    except ValueError:
        return None  # the data gate names all such rows at once


def _hold_out(table: pa.Table, share: float, purpose: str) -> tuple[pa.Table, pa.Table]:
    """The rows held out for `purpose`, about `share` of all, and the rest; neither is empty.

    Each question draws a number between 0 and 1 by its hash, and is held out below `share`.
    """
    draws = np.concatenate(
        [
            [_draw(question, purpose) for question in batch["question"].to_pylist()]
            for batch in table.select(["question"]).to_batches(max_chunksize=BATCH)
        ]
    )
    held_out = draws < share
    if not held_out.any():
        held_out[draws.argmin()] = True
    if held_out.all():
        held_out[draws.argmax()] = False
    return table.filter(pa.array(held_out)), table.filter(pa.array(~held_out))


def _draw(question: str | None, purpose: str) -> float:
    # Without the purpose, what is left after test was taken out would never draw below the share of test.
    hashed = hashlib.sha256(f"{purpose}:{normalised(question)}".encode()).digest()
    return int.from_bytes(hashed[:8]) / 2**64


def _text_columns(data: DataSettings) -> list[str]:
    columns = [data.question_column] if data.answer_column is None else [data.question_column, data.answer_column]
    return list(dict.fromkeys(columns))


def _content_digest(table: pa.Table) -> str:
    """sha256 of the rows in their order, whatever the order of columns and the width of their numbers."""
    content = hashlib.sha256()
    for batch in table.drop_columns("source_row").to_batches(max_chunksize=BATCH):
        for row in batch.to_pylist():
            content.update(json.dumps(row, sort_keys=True, ensure_ascii=False, default=str).encode() + b"\n")
    return content.hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
