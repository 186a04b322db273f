"""The first stage: questions from the hub, from files or from templates, in stable columns, divided once and for all.

Whether a question is held out depends on its own text alone, so it stays where it is when rows are added, removed or
put in another order.
"""

import hashlib
import logging
import math
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rewards.number import extract_hash_answer
from tasks.config import DataSettings, SampleSettings
from tasks.data_files import BATCH, FORMATS, check_table, first_line, format_of, read_file
from tasks.dataset import OWN_COLUMNS, SPLITS, SplitWriter, file_digest, read_manifest, write_manifest
from tasks.errors import UserError
from tasks.run import digest, require_disk, source_digest, stored
from tasks.samples import make_problems
from tasks.spool import Spool


@dataclass(frozen=True)
class Source:
    """Where rows come from.

    `key` changes whenever the rows may have changed. `load` gives the rows of "train" and "test", batch by batch, or of
    "train" alone where test has still to be taken out of it. A source may be longer than the memory.
    """

    words: str
    key: Any
    load: Callable[[], dict[str, Iterable[pa.Table]]]
    revision: str | None = None


def ingest(data: DataSettings) -> dict[str, Any]:
    """Bring the data into the store, unless it is there already, and give its manifest: what `tasks.dataset` says, and

    - source, revision: in words, and the hub's commit or null
    - source_rows: rows of train and test before anything was taken out of train
    - dropped: training rows beyond `data.max_samples`

    Raises UserError for a source that is missing or damaged, and ConnectionError if the hub cannot be reached.
    """
    source = _source(data)
    settings = data.model_dump(mode="json", exclude={"expected_rows"})
    names = ("ingest", "data_files", "dataset", "samples", "spool")
    code = source_digest(*(f"tasks/{name}.py" for name in names), "rewards/number.py")
    key = digest({"source": source.key, "settings": settings, "code": code})
    folder = stored("data", key, lambda folder: _write(folder, data, source))
    return read_manifest(folder)


def normalised(question: str | None) -> str:
    """The question without regard to case and white space; questions that agree in this are held out together."""
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


def _make(settings: SampleSettings, data: DataSettings) -> dict[str, Iterable[pa.Table]]:
    tables = {split: pa.Table.from_pylist(problems) for split, problems in make_problems(settings).items()}
    for table in tables.values():
        check_table(table, "data.samples", _text_columns(data))
    return {split: [table] for split, table in tables.items()}


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
        key={split: [file_digest(file) for file in shards] for split, shards in files.items()},
        load=lambda: {
            split: chain.from_iterable(read_file(shard, _text_columns(data)) for shard in shards)
            for split, shards in files.items()
        },
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
    for match in found:
        if not (folder / match[0]).is_file():
            raise UserError(f"{folder / match[0]} is no file (a folder, or a link to nothing); put the data file there")
    if len({(match["shard"] is None, match["shards"], match["format"]) for match in found}) > 1:
        several = ", ".join(match.string for match in found[:10])
        raise UserError(f"{folder} has several files for the split {split!r}: {several}; leave only those that count")
    shards = int(found[0]["shards"] or len(found))
    if shards != len(found):
        raise UserError(f"{folder} has only {len(found)} of {shards} files of the split {split!r}; fetch the others")
    return [folder / match.string for match in found]


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


def _load_from_hub(builder: Any, data: DataSettings) -> dict[str, Iterable[pa.Table]]:
    with _hub_in_reach(data):
        builder.download_and_prepare()
    names = {"train": data.train_split, "test": data.test_split}
    for split, name in names.items():
        if name not in builder.info.splits:
            raise UserError(
                f"{data.name} has no split {name!r}, only {', '.join(builder.info.splits)}; "
                f"set data.{split}_split to one of them"
            )
    return {split: _hub_batches(builder.as_dataset(split=name), name, data) for split, name in names.items()}


def _hub_batches(dataset: Any, name: str, data: DataSettings) -> Iterator[pa.Table]:
    where = f"{data.name}, split {name!r}"
    first_row = 1
    for table in dataset.with_format("arrow").iter(BATCH):  # the dataset itself is mapped from disk
        check_table(table, where, _text_columns(data), first_row)
        first_row += table.num_rows
        yield table


@contextmanager
def _hub_in_reach(data: DataSettings) -> Iterator[None]:
    """Turn every kind of network trouble, which may heal, into a ConnectionError that says what else helps."""
    # The stage tries again itself; these are its retries within each, a line a second.
    logging.getLogger("huggingface_hub.utils._http").setLevel(logging.ERROR)
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
    spools = {}
    for split, batches in source.load().items():
        spools[split] = _spooled(folder / "spool" / split, batches, source)
    _require_rows(spools, data, source)
    is_test = _membership(spools["train"], data, data.test_share, "test") if "test" not in spools else None
    is_validation = _membership(spools["train"], data, data.validation_share, "validation", without=is_test)

    require_disk(folder, sum(spool.gib for spool in spools.values()) / 2, "the ingested data")
    limits = {"train": data.max_samples}
    splits = {split: SplitWriter(folder / f"{split}.parquet", limits.get(split)) for split in SPLITS}
    source_rows = {"train": 0, "test": 0}
    for origin, spool in spools.items():
        first_row = 1
        for batch in spool.read():
            table = _columns(batch, data, first_row)
            first_row += table.num_rows
            test = np.full(table.num_rows, origin == "test") | _chosen(table, is_test)
            validation = ~test & _chosen(table, is_validation)
            chosen = {"test": test, "validation": validation, "train": ~(test | validation)}
            for split, mask in chosen.items():
                if split == origin or (origin == "train" and (split == "validation" or is_test)):
                    splits[split].add(table.filter(pa.array(mask)))
            source_rows["test"] += int(test.sum())
            source_rows["train"] += int((~test).sum())
    shutil.rmtree(folder / "spool")
    more = {
        "source": source.words,
        "revision": source.revision,
        "source_rows": source_rows,
        "dropped": splits["train"].left_out,
    }
    write_manifest(folder, splits, more)


def _spooled(folder: Path, batches: Iterable[pa.Table], source: Source) -> Spool:
    spool = Spool(folder)
    for table in batches:
        require_disk(folder, 0.1, "the ingested data")
        try:
            spool.add(table)
        except pa.ArrowException as error:
            raise UserError(
                f"{source.words}: the rows of {folder.name!r} do not all hold the same kinds of columns "
                f"({first_line(error)}); mend or remove a column"
            ) from None
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), spool.schema).close()
    except pa.ArrowException as error:
        raise UserError(
            f"{source.words}: a column of {folder.name!r} cannot be kept as Parquet ({first_line(error)}); mend or "
            "remove it"
        ) from None
    return spool


def _require_rows(spools: dict[str, Spool], data: DataSettings, source: Source) -> None:
    one_file = "test" not in spools
    names = {"train": data.train_split, "test": data.test_split}
    for split, spool in spools.items():
        where = source.words if one_file else f"the split {names[split]!r} of {source.words}"
        needed = 3 if one_file else 2 if split == "train" else 1  # each split to be made of it gets one
        if spool.rows == 0:
            raise UserError(f"{where} holds no rows; add some, or choose another split or source")
        if spool.rows < needed:
            raise UserError(f"{where} has too few rows to divide, {spool.rows} of {needed}; add some")


def _columns(table: pa.Table, data: DataSettings, first_row: int) -> pa.Table:
    """Our columns, then the source's others; one of theirs that is named as ours gets the ending `_original`."""
    columns = _own_columns(table, data, first_row)
    for name in table.column_names:
        if name not in _text_columns(data):
            new_name = name
            while new_name in columns.column_names:
                new_name += "_original"
            columns = columns.append_column(new_name, table[name])
    if data.gold != "none" and "ground_truth" not in columns.column_names:
        # The gold under the name by which boxed_accuracy, like TRL's examples, asks for it.
        columns = columns.append_column("ground_truth", columns["answer"])
    return columns


def _own_columns(table: pa.Table, data: DataSettings, first_row: int) -> pa.Table:
    questions = table[data.question_column].to_pylist()
    answers = table[data.answer_column].to_pylist() if data.answer_column is not None else [None] * len(questions)
    columns = {
        "id": [hashlib.sha256((question or "").encode()).hexdigest()[:16] for question in questions],
        "question": questions,
        "answer": [_gold(answer, data) for answer in answers],
        "rationale": [(answer or "").partition("####")[0].strip() if data.gold == "hash" else "" for answer in answers],
        "raw_answer": answers,
        "source_row": list(range(first_row, first_row + len(questions))),
    }
    return pa.Table.from_pydict(columns, OWN_COLUMNS)


def _gold(answer: str | None, data: DataSettings) -> str | None:
    if answer is None or data.gold == "none":
        return None
    if data.gold == "plain":
        return answer.strip()
    try:
        return extract_hash_answer(answer)
    except ValueError:
        return None  # the data gate names all such rows at once


@dataclass(frozen=True)
class Membership:
    """Which questions are held out for a purpose: those that draw less than `below`, by their hash."""

    purpose: str
    below: float

    def __contains__(self, question: str | None) -> bool:
        return _draw(question, self.purpose) < self.below


def _membership(
    spool: Spool, data: DataSettings, share: float, purpose: str, without: Membership | None = None
) -> Membership:
    """Hold out about `share` of the rows, but neither none nor all; those of `without` are not asked."""
    lowest, highest = 1.0, 0.0
    for batch in spool.read([data.question_column]):
        for question in batch[data.question_column].to_pylist():
            if without is None or question not in without:
                draw = _draw(question, purpose)
                lowest, highest = min(lowest, draw), max(highest, draw)
    if lowest >= highest:
        raise UserError(f"all rows ask the same question, so none can be held out for {purpose}; add others")
    if lowest >= share:
        return Membership(purpose, math.nextafter(lowest, 1.0))
    return Membership(purpose, min(share, highest))


def _chosen(table: pa.Table, membership: Membership | None) -> Any:
    """A mask of the rows of `table` that are held out."""
    if membership is None:
        return np.zeros(table.num_rows, dtype=bool)
    return np.array([question in membership for question in table["question"].to_pylist()], dtype=bool)


def _draw(question: str | None, purpose: str) -> float:
    # Without the purpose, what is left after test was taken out would never draw below the share of test.
    hashed = hashlib.sha256(f"{purpose}:{normalised(question)}".encode()).digest()
    return int.from_bytes(hashed[:8]) / 2**64


def _text_columns(data: DataSettings) -> list[str]:
    columns = [data.question_column] if data.answer_column is None else [data.question_column, data.answer_column]
    return list(dict.fromkeys(columns))
