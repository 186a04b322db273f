"""Reads one data file batch by batch, and refuses what is damaged with the row and the reason.

JSON Lines, a JSON array, and Parquet, each plain or gzip. A BOM, CRLF, blank lines and extra columns are harmless.
Every refusal is a UserError with one sentence that says what is wrong, where, and what to do.
"""

import codecs
import gzip
import json
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.errors import UserError

ByteFile = BufferedReader | gzip.GzipFile

FORMATS = ("jsonl", "json", "parquet")
ROW_LIMIT = 2**20  # bytes; a longer row is a damaged file rather than a question
OWN_PREFIX = "gate:"  # of the columns by which the data gate marks rows (tasks/validate.py)
BATCH = 10_000  # rows that are Python objects at one time

KINDS = {str: "text", int: "a number", float: "a number", bool: "true or false", list: "a list", dict: "an object"}


def read_file(path: Path, text_columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of `path`, in tables of at most BATCH rows with all their columns, which need not be the same.

    `text_columns` must be there and hold text or null. Raises UserError, on the way, for anything else than a whole and
    well-formed file. A file may hold no rows; of a JSON array, unlike the other forms, all are in memory at once.
    """
    format, gzipped = format_of(path)
    if path.stat().st_size == 0:
        raise UserError(f"{path} is empty; copy it again, or remove it")
    try:
        with gzip.open(path) if gzipped else path.open("rb") as file:
            if format == "parquet":
                yield from _parquet_batches(path, file, gzipped, text_columns)
            else:
                array = format == "json" and _starts_an_array(file)
                rows = _array_elements(path, file) if array else _lines(path, file)
                yield from _json_batches(path, "row" if array else "line", rows, text_columns)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is not a whole gzip file ({first_line(error)}); copy or download it again") from None


def format_of(path: Path) -> tuple[str, bool]:
    """The format by the file's name, one of FORMATS, and whether it is compressed. Raises UserError for another."""
    name = path.name.lower()
    format = name.removesuffix(".gz").rpartition(".")[2]
    if format not in FORMATS:
        raise UserError(f"{path} is no data file by its name; it must end in .jsonl, .json or .parquet, plain or .gz")
    return format, name.endswith(".gz")


def check_table(table: pa.Table, where: Path | str, text_columns: Sequence[str], first_row: int = 1) -> None:
    """Raise UserError unless all `text_columns` are there and hold text (in any of Arrow's forms) or null.

    `first_row` is the number that a message gives to the first row.
    """
    _check_names(table.column_names, f"{where}")
    _require_columns(table.column_names, f"{where}", text_columns)
    for name in text_columns:
        type = table.schema.field(name).type
        text = type.value_type if pa.types.is_dictionary(type) else type
        if not (pa.types.is_string(text) or pa.types.is_large_string(text) or pa.types.is_string_view(text)):
            raise UserError(f"{where}: the column {name!r} holds {type} where text belongs; convert it to text")
    for number, texts in enumerate(table.select(list(text_columns)).to_pylist(), start=first_row):
        _check_texts(f"{where}, row {number}", texts)


def _check_names(names: Iterable[str], where: str) -> None:
    """Raise UserError for names by which nothing could be told apart later."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise UserError(f"{where}: there are two columns {name!r}; rename or remove one")
        if fault := _fault_of_name(name):
            raise UserError(f"{where}: the column {name!r} {fault}; rename it")
        seen.add(name)


def _fault_of_name(name: str) -> str | None:
    if name.casefold().startswith(OWN_PREFIX):  # DuckDB's names have no case
        return "has a name of the data gate's own"
    if not name.isascii() and any("\ud800" <= letter <= "\udfff" for letter in name):
        return "is no Unicode text (half of a surrogate pair)"
    return None


def _parquet_batches(path: Path, file: ByteFile, gzipped: bool, text_columns: Sequence[str]) -> Iterator[pa.Table]:
    with tempfile.TemporaryFile() as unpacked:
        if gzipped:
            # Parquet keeps its schema at the end, where a gzip stream cannot go without being unpacked anew.
            shutil.copyfileobj(file, unpacked)
            unpacked.seek(0)
        try:
            source = pq.ParquetFile(unpacked if gzipped else path)
            check_table(source.schema_arrow.empty_table(), path, text_columns)
            first_row = 1
            for batch in source.iter_batches(BATCH):
                batch.validate(full=True)
                table = pa.Table.from_batches([batch])
                check_table(table, path, text_columns, first_row)
                first_row += table.num_rows
                yield table
            if first_row == 1:
                yield source.schema_arrow.empty_table()
        except (pa.ArrowException, OSError) as error:
            raise UserError(
                f"{path} is not a whole Parquet file ({first_line(error)}); copy or download it again"
            ) from None


class _KeyTwice(ValueError):
    """An object of JSON that has a key twice; of its values all but the last would be lost without a word."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise _KeyTwice(f"an object has the key {key!r} twice")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_object)  # made once: that takes longer than to read a line


def _starts_an_array(file: ByteFile) -> bool:
    start = file.read(64).removeprefix(codecs.BOM_UTF8).lstrip()
    file.seek(0)
    return start.startswith(b"[")


def _array_elements(path: Path, file: ByteFile) -> Iterator[tuple[int, Any]]:
    raw = file.read().removeprefix(codecs.BOM_UTF8)
    try:
        return enumerate(_DECODER.decode(raw.decode("utf-8")), start=1)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line} {_what_is_wrong(error)}") from None
    except _KeyTwice as error:  # which does not know where
        raise UserError(f"{path} {_what_is_wrong(error)}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}, line {getattr(error, 'lineno', 1)} {_what_is_wrong(error)}") from None


def _lines(path: Path, file: ByteFile) -> Iterator[tuple[int, Any]]:
    """The JSON value of each line that is not blank, with the line's number from 1."""
    number = 0
    while raw := file.readline(ROW_LIMIT + 1):
        number += 1
        where = f"{path}, line {number}"
        if len(raw) > ROW_LIMIT:
            raise UserError(f"{where} is longer than {ROW_LIMIT // 2**20} MiB; shorten or remove it")
        if number == 1:
            raw = raw.removeprefix(codecs.BOM_UTF8)
        if raw.isspace() or not raw:
            continue
        if b"\0" in raw:
            raise UserError(f"{where} holds a NUL byte; the file is damaged or UTF-16: save it anew as UTF-8")
        try:
            yield number, _DECODER.decode(raw.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            if not raw.endswith((b"\n", b"}")) and not isinstance(error, _KeyTwice):
                raise UserError(f"{where}, the last, is cut short; copy the file again, or remove the line") from None
            raise UserError(f"{where} {_what_is_wrong(error)}") from None


def _json_batches(
    path: Path, unit: str, rows: Iterator[tuple[int, Any]], text_columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Tables of `rows`, pairs of a number (of a line or a row, as `unit` says) and a JSON value."""
    first_seen: dict[str, tuple[str, int]] = {}  # the kind of value in each column, and where it stood first
    empty = True
    while batch := list(islice(rows, BATCH)):
        empty = False
        for number, row in batch:
            _check_row(path, unit, number, row, text_columns, first_seen)
        names = dict.fromkeys(name for _, row in batch for name in row)
        for name in names:
            if fault := _fault_of_name(name):
                number = next(number for number, row in batch if name in row)
                raise UserError(f"{path}, {unit} {number}: the column {name!r} {fault}; rename it")
        yield pa.table({name: _array(path, unit, name, batch) for name in names})
    if empty:
        yield pa.table({name: pa.array([], pa.string()) for name in text_columns})


def _check_row(
    path: Path,
    unit: str,
    number: int,
    row: Any,
    text_columns: Sequence[str],
    first_seen: dict[str, tuple[str, int]],
) -> None:
    where = f"{path}, {unit} {number}"
    if not isinstance(row, dict):
        raise UserError(f'{where} is {KINDS.get(type(row), "null")}; it must be an object such as {{"question": …}}')
    _require_columns(row, where, text_columns)
    for name, value in row.items():
        if value is None:
            continue
        kind = KINDS[type(value)]
        if name in text_columns and kind != "text":
            shown = json.dumps(value, ensure_ascii=False)[:60]
            raise UserError(f"{where}: the column {name!r} holds {kind} where text belongs: {shown}; write it as text")
        seen, at = first_seen.setdefault(name, (kind, number))
        if kind != seen:
            raise UserError(
                f"{path}: the column {name!r} has mixed types, {seen} in {unit} {at} and {kind} in {unit} {number}; "
                "give it one type, or remove it"
            )
    _check_texts(where, {name: row[name] for name in text_columns})


def _check_texts(where: str, texts: dict[str, str | None]) -> None:
    size = 0
    for name, text in texts.items():
        if text is None:
            continue
        if "\0" in text:
            raise UserError(f"{where}: the column {name!r} holds a NUL byte; remove it")
        try:
            size += len(text.encode())
        except UnicodeEncodeError:
            raise UserError(f"{where}: the column {name!r} holds half of a surrogate pair; mend the text") from None
    if size > ROW_LIMIT:
        raise UserError(f"{where} is longer than {ROW_LIMIT // 2**20} MiB; shorten or remove it")


def _require_columns(present: Any, where: str, text_columns: Sequence[str]) -> None:
    for name in text_columns:
        if name not in present:
            near = get_close_matches(name, present, n=1)
            hint = f" (is {near[0]!r} meant?)" if near else ""
            raise UserError(
                f"{where} has no column {name!r}, only {', '.join(map(repr, present)) or 'an empty row'}{hint}; "
                "rename it, or set data.question_column or data.answer_column"
            )


def _array(path: Path, unit: str, name: str, batch: list[tuple[int, dict[str, Any]]]) -> pa.Array:
    try:
        return pa.array([row.get(name) for _, row in batch])
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
        raise UserError(
            f"{path}, {unit}s {batch[0][0]} to {batch[-1][0]}: the column {name!r} cannot be stored "
            f"({first_line(error)}); mend or remove it"
        ) from None


def _what_is_wrong(error: ValueError | RecursionError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"is not UTF-8 (it holds the byte 0x{error.object[error.start]:02x}); save the file anew as UTF-8"
    reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else first_line(error)
    return f"is not valid JSON ({reason}); mend or remove it"


def first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")[:200]
