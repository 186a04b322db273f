"""The data gate: Great Expectations on all rows that are trained on, chosen on or scored.

Nothing is trained on data that fails. Train and validation are one split here, as they are in the source, so that a
question in both is found like any other that stands twice.

    store/validated/<key>/
      summary.json, train.json, test.json   what was expected and what was found
      data_docs/index.html                  the same as Great Expectations shows it
      dropped.jsonl                         the rows that were left out, with the reasons (validation.on_bad_rows: drop)
      train.parquet … manifest.json         the rows that are left, where any was left out
"""

import json
import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.annotations import wrong_annotation
from tasks.config import DataSettings, ValidationSettings
from tasks.dataset import ROW_GROUP, SPLITS, SplitWriter, read_manifest, write_manifest
from tasks.errors import UserError
from tasks.markdown import cell
from tasks.run import Run, digest, read_json, source_digest, stored, write_json

CHUNK = 20_000  # rows that are checked at one time
MOST_LEAKS = 1000  # rows that give test questions away; where there are more, that is enough to stop
SHOWN_CHARACTERS = 40
SHOWN_FAILURES = 12  # lines; more would not fit on a screen


def validate(
    run: Run,
    data: dict[str, Any],
    settings: DataSettings,
    rules: ValidationSettings,
    on_line: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Check the ingested rows of the manifest `data`, unless that was done before, and give

    - expectations: a list of {split, expectation, success, unexpected, warning} with the number of rows that fail (null
      where an expectation is not about single rows), and whether its severity lets it pass all the same
    - statistics of each split: lengths in characters and the distribution of golds; overlap: what test shares with
      train
    - dropped: how many rows of each split were left out; notes: what a person should know, in sentences
    - data: the manifest to go on with
    - report: the folder of it all, which the run folder links to as `validation`

    Raises UserError with a line for each failed expectation, which names the first rows that fail.
    """
    names = ("annotations", "data_statistics", "dataset", "expectation_run", "expectations", "overlap")
    key = digest(
        {
            "data": data["files"],  # and not the digest of the content, which knows no row numbers
            "source_rows": data["source_rows"],
            "settings": [settings.model_dump(mode="json"), rules.model_dump(mode="json")],
            "code": source_digest(*(f"tasks/{name}.py" for name in (*names, "rows_database", "validate"))),
            "great_expectations": version("great-expectations"),
        }
    )
    report = run.folder / "validation"

    def make(folder: Path) -> None:
        gate = _Gate(data, settings, rules, folder, on_line)
        gate.check()
        if gate.failures:
            _remove(report)
            shutil.copytree(folder, report)
            raise UserError(gate.refusal(report))

    folder = stored("validated", key, make)
    _remove(report)
    run.link("validation", folder)
    summary: dict[str, Any] = read_json(folder / "summary.json")
    left = read_manifest(folder) if (folder / "manifest.json").exists() else data
    return summary | {"data": left, "report": str(folder)}


def gate_table(found: dict[str, Any]) -> str:
    """What `validate` gave, as a Markdown table with the notes and the place of the Data Docs below it."""
    lines = ["| split | expectation | result |", "| --- | --- | --- |"]
    for one in found["expectations"]:
        result = "holds" if one["success"] else _does_not_hold(one)
        lines.append(f"| {one['split']} | {cell(one['expectation'])} | {result} |")
    lines += ["", *(f"- {cell(note)}" for note in found["notes"])]
    lines.append(f"- all results: {found['report']}/data_docs/index.html")
    return "\n".join(lines) + "\n"


def _does_not_hold(one: dict[str, Any]) -> str:
    what = "does not hold" if one["unexpected"] is None else _do_not_fit(one["unexpected"])
    return f"{what} (a warning)" if one["warning"] else f"{what}, left out"


def gate_numbers(found: dict[str, Any]) -> dict[str, float]:
    """The figures of what `validate` gave that are worth comparing between runs."""
    overlap = {name: found["overlap"][name] for name in ("questions_sharing", "sharing_over_half", "largest_share")}
    dropped = {f"dropped_{split}": rows for split, rows in found["dropped"].items()}
    return {name: float(value or 0) for name, value in (overlap | dropped).items()}


def _remove(path: Path) -> None:
    """Remove a folder, or the link to one, that an earlier attempt may have left."""
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


@dataclass
class _Finding:
    """What is wrong with the rows of one split by one expectation: how many there are, and the first in words."""

    rows: int = 0
    shown: list[str] = field(default_factory=list)


class _Gate:
    """One look at all rows, batch by batch; what it finds goes to `folder`."""

    def __init__(
        self,
        data: dict[str, Any],
        settings: DataSettings,
        rules: ValidationSettings,
        folder: Path,
        on_line: Callable[[str], None],
    ) -> None:
        self.data, self.settings, self.rules, self.folder, self.on_line = data, settings, rules, folder, on_line
        self.limit = None if settings.samples else rules.max_shared_ngrams
        self.failures: list[str] = []
        self._warnings: list[str] = []
        self._expectations: list[dict[str, Any]] = []
        self._findings: dict[tuple[str, str], _Finding] = defaultdict(_Finding)
        self._reasons: dict[str, dict[int, list[str]]] = {"train": {}, "test": {}}
        self._suites: list[Any] = []

    def check(self) -> None:
        from tasks.data_statistics import overlap_statistics, split_statistics
        from tasks.expectation_run import write_docs  # takes seconds
        from tasks.overlap import find_overlap
        from tasks.rows_database import rows_database

        scratch = self.folder / "scratch"
        with rows_database(Path(self.data["folder"]), scratch) as database:
            stop = self.rules.on_bad_rows == "stop"
            most_leaks = MOST_LEAKS if stop else int(self.rules.max_dropped_share * self._rows("train"))
            find_overlap(database, self.limit, most_leaks)
            statistics = {split: split_statistics(database, split) for split in ("train", "test")}
            overlap = overlap_statistics(database, self.limit)
            for split in ("train", "test"):
                self._check_split(database, split)
        shutil.rmtree(scratch)
        for split in ("train", "test"):
            results = [result for suite in self._suites if suite.name.split()[0] == split for result in suite.results()]
            write_json(self.folder / f"{split}.json", results)
        write_docs(self._suites, self.folder / "data_docs")
        dropped = self._drop() if not self.failures else {}
        summary = {
            "expectations": self._expectations,
            "statistics": statistics,
            "overlap": overlap,
            "dropped": dropped,
            "notes": [*_notes(overlap, statistics, dropped, self.limit), *self._warnings],
        }
        write_json(self.folder / "summary.json", summary)

    def refusal(self, report: Path) -> str:
        """All that is wrong, in no more lines than fit on a screen."""
        from tasks.expectations import ONE_MARK_EACH

        more = len(self.failures) - SHOWN_FAILURES
        lines = self.failures[:SHOWN_FAILURES] + ([f"and {more} more expectations fail"] if more > 0 else [])
        if any("train gives away" in line for line in lines):
            lines.append("Where questions are made from templates, set validation.max_shared_ngrams=null")
        marks = {split: found.rows for (split, what), found in self._findings.items() if what == ONE_MARK_EACH}
        if any(self._rows(split) == rows for split, rows in marks.items()):
            lines.append("Where an answer is the gold alone, set data.gold=plain; where it holds none, data.gold=none")
        source = self.data["source"]
        if not any("not fit:" in line for line in lines):
            advice = f"Mend {source}, or correct what is expected of it"
        elif self.rules.on_bad_rows == "stop":
            advice = f"Mend or remove these rows of {source}, or set validation.on_bad_rows=drop"
        else:
            advice = f"Mend {source}, or raise validation.max_dropped_share"
        return "\n".join([*lines, f"{advice}; all results are in {report}"])

    def _check_split(self, database: Any, split: str) -> None:
        from tasks.expectations import (
            configured_expectations,
            is_about_columns,
            is_about_rows,
            own_expectations,
            row_count,
            told_apart,
        )

        columns = database.sql(f"SELECT * FROM {split}").columns
        configured = configured_expectations(split, self.rules, columns)
        by_row = [one for one in configured if is_about_rows(one)]
        schema = [one for one in configured if is_about_columns(one)]
        as_whole = [one for one in configured if one not in by_row and one not in schema]
        own = own_expectations(split, self.settings, self.rules, self.limit)
        expected: dict[Any, int] = self.settings.expected_rows or {}
        count = [row_count(expected[split])] if split in expected else []
        told_apart([*own, *count, *configured])
        self._check_rows(database, split, [*own, *by_row])
        if schema:
            self._check_columns(database, split, schema)
        if as_whole:
            self._check_whole(database, split, as_whole, columns)
        if count:
            self._check_count(split, count)

    def _check_rows(self, database: Any, split: str, expectations: list[Any]) -> None:
        """What holds or fails row by row, batch by batch."""
        from tasks.rows_database import batches

        # Only the gate sees these columns; no dataset has any by their names.
        flags = {"duplicate_of": f"duplicates_{split}"} | ({"leaks": "leaks"} if split == "train" else {})
        named = "".join(f', {table}.{flag} AS "gate:{flag}"' for flag, table in flags.items())
        joined = "".join(f" LEFT JOIN {table} USING (source_row)" for table in flags.values())
        query = f"SELECT rows.*{named} FROM {split} AS rows{joined} ORDER BY source_row"
        suite = self._suite(split, expectations)
        seen = 0
        for table in batches(database, query, CHUNK):
            frame = table.to_pandas().set_index("source_row")
            frame["gate:wrong_annotation"] = pd.Series(
                [wrong_annotation(answer if isinstance(answer, str) else None) for answer in frame["raw_answer"]],
                index=frame.index,
                dtype="str",
            )
            for expectation, rows in suite.check(frame):
                self._note(split, expectation, rows, frame)
            seen += len(frame)
            if seen % (5 * CHUNK) == 0:
                self.on_line(f"{split}: {seen:,} rows checked")
        self._conclude(split, suite)

    def _check_columns(self, database: Any, split: str, expectations: list[Any]) -> None:
        """What is about the columns, for which a single row is enough."""
        suite = self._suite(f"{split} columns", expectations)
        suite.check(database.sql(f"SELECT * FROM {split} LIMIT 1").df().set_index("source_row", drop=False))
        self._conclude(split, suite)

    def _check_whole(self, database: Any, split: str, expectations: list[Any], columns: list[str]) -> None:
        """What only all rows together can show, on no more columns than it asks for."""
        from tasks.expectations import columns_of

        names = dict.fromkeys(["source_row", *(name for one in expectations for name in columns_of(one))])
        if any(getattr(one, "row_condition", None) for one in expectations):
            names = dict.fromkeys(columns)  # the condition may be about any
        listed = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
        suite = self._suite(f"{split} as a whole", expectations)
        frame = database.sql(f"SELECT {listed} FROM {split} ORDER BY source_row").df().set_index("source_row")
        left_out = [row for row, reasons in self._reasons[split].items() if reasons]
        frame = frame[~frame.index.isin(left_out)]
        for expectation, rows in suite.check(frame):
            self._note(split, expectation, rows, frame)
        self._conclude(split, suite)

    def _check_count(self, split: str, expectations: list[Any]) -> None:
        """The number of the source's rows; the tables lack what data.max_samples left out."""
        suite = self._suite(f"{split} source", expectations)
        suite.check(pd.DataFrame(index=pd.RangeIndex(self.data["source_rows"][split], name="source_row")))
        self._conclude(split, suite)

    def _suite(self, name: str, expectations: list[Any]) -> Any:
        from tasks.expectation_run import Suite

        return Suite(name, expectations, self.rules.max_rows_named)

    def _note(self, split: str, expectation: dict[str, Any], rows: list[int], frame: pd.DataFrame) -> None:
        """Keep what a person reads of rows that fail, and, to leave them out, the rows with the reason."""
        finding = self._findings[split, expectation["description"]]
        before = finding.rows
        finding.rows += len(rows)
        for row in rows[: self.rules.max_rows_named - len(finding.shown)]:
            finding.shown.append(_shown(row, frame.loc[row], expectation["meta"]))
        if _only_warns(expectation):
            return
        if self.rules.on_bad_rows == "drop":
            # Of each expectation one row more than may be left out: with it the run stops, unless that expectation
            # holds after all, for most rows, and its reasons are taken back.
            most = int(self.rules.max_dropped_share * self._rows(split)) + 1
            for row in rows[: max(0, most - before)]:
                self._reasons[split].setdefault(row, []).append(expectation["description"])

    def _conclude(self, split: str, suite: Any) -> None:
        """Enter the results of all rows; what fails and cannot be left out by the row is a failure."""
        self._suites.append(suite)
        for result in suite.results():
            expectation, found = result["expectation_config"], result["result"]
            description = expectation["description"]
            self._expectations.append(
                {
                    "split": split,
                    "expectation": description,
                    "success": result["success"],
                    "unexpected": found.get("unexpected_count"),
                    "warning": _only_warns(expectation),
                }
            )
            finding = self._findings.get((split, description))
            if result["success"]:
                for reasons in self._reasons[split].values() if finding else ():
                    if description in reasons:  # most rows meet it, and that was enough
                        reasons.remove(description)
                continue
            # Where a batch could not be judged by the row, not all bad rows are known, and none is left out.
            by_row = finding is not None and finding.rows == found.get("unexpected_count")
            if finding is not None and by_row:
                sentence = _failure(split, description, finding)
            else:
                reason = f"found {found['observed_value']}" if "observed_value" in found else _raised(result)
                sentence = f"{split}: expected that {description}, but {reason}"
            if _only_warns(expectation):
                self._warnings.append(sentence)
            elif not by_row or self.rules.on_bad_rows == "stop":
                self.failures.append(sentence)

    def _rows(self, split: str) -> int:
        counts = self.data["counts"]
        return counts["test"] if split == "test" else counts["train"] + counts["validation"]

    def _drop(self) -> dict[str, int]:
        """Write what is left without the bad rows, if there are any, and how many of each split there were."""
        bad = {split: {row: why for row, why in found.items() if why} for split, found in self._reasons.items()}
        for split, found in bad.items():
            limit = self.rules.max_dropped_share
            if len(found) > limit * self._rows(split):
                self.failures.append(
                    f"{split}: {len(found)} or more of {self._rows(split)} rows would be left out, and "
                    f"validation.max_dropped_share allows {limit:.1%}"
                )
                self.failures += [
                    _failure(split, description, finding)
                    for (of_split, description), finding in self._findings.items()
                    if of_split == split
                ]
        if self.failures or not any(bad.values()):
            return dict.fromkeys(bad, 0)
        self._write_without(bad)
        return {split: len(found) for split, found in bad.items()}

    def _write_without(self, bad: dict[str, dict[int, list[str]]]) -> None:
        source = Path(self.data["folder"])
        writers = {}
        with (self.folder / "dropped.jsonl").open("w", encoding="utf-8") as dropped:
            for split in SPLITS:
                reasons = bad["test" if split == "test" else "train"]
                writer = writers[split] = SplitWriter(self.folder / f"{split}.parquet")
                for batch in pq.ParquetFile(source / f"{split}.parquet").iter_batches(ROW_GROUP):
                    table = pa.Table.from_batches([batch])
                    is_bad = [row in reasons for row in table["source_row"].to_pylist()]
                    writer.add(table.filter(pa.array([not one for one in is_bad])))
                    for row in table.filter(pa.array(is_bad)).to_pylist():
                        line = {"split": split, "reasons": reasons[row["source_row"]]} | row
                        dropped.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
                if writer.rows == 0:
                    self.failures.append(f"{split}: no row would be left without those that do not fit")
                    return
        more = {name: self.data[name] for name in ("source", "revision", "source_rows", "dropped")}
        write_manifest(self.folder, writers, more | {"validated_from": self.data["digest"]})


def _notes(
    overlap: dict[str, Any], statistics: dict[str, Any], dropped: dict[str, int], limit: float | None
) -> list[str]:
    notes = []
    if overlap["questions_sharing"]:
        notes.append(
            f"{overlap['questions_sharing']} of {statistics['test']['rows']} test questions share eight words in a row "
            f"with train, at most {overlap['largest_share']:.0%} of them (row {overlap['largest_share_row']}; "
            + ("no limit is set" if limit is None else f"the limit is {limit:.0%}")
            + ")"
        )
    for split, rows in dropped.items():
        if rows:
            notes.append(f"{_in_words(rows)} of {split} left out; validation/dropped.jsonl has them with the reasons")
    return notes


def _only_warns(expectation: dict[str, Any]) -> bool:
    """Whether its severity is less than Great Expectations' default, so that it stops no run."""
    return expectation.get("severity", "critical") != "critical"


def _in_words(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"


def _do_not_fit(rows: int) -> str:
    return f"{rows} row{' does' if rows == 1 else 's do'} not fit"


def _failure(split: str, description: str, finding: _Finding) -> str:
    """One line: the expectation, the split, how many rows fail, and the first of them."""
    more = f" and {finding.rows - len(finding.shown)} more" if finding.rows > len(finding.shown) else ""
    return f"{split}: expected that {description}, but {_do_not_fit(finding.rows)}: {', '.join(finding.shown)}{more}"


def _shown(number: int, row: Any, meta: dict[str, str]) -> str:
    told = f" ({meta['tells'].format(row)})" if "tells" in meta else ""
    return f"row {number}: {_shortened(row[meta['shows']], meta['shows'])}{told}"


def _shortened(value: Any, column: str) -> str:
    if not isinstance(value, str):
        is_null = pd.api.types.is_scalar(value) and pd.isna(value)  # of a list that would be asked of each item
        return "null" if is_null else f"{value}"[:SHOWN_CHARACTERS]
    if len(value) <= SHOWN_CHARACTERS:
        return repr(value)
    # What is wrong with an answer mostly stands at its end, where the gold is.
    return f"…{value[-SHOWN_CHARACTERS:]!r}" if column == "raw_answer" else f"{value[:SHOWN_CHARACTERS]!r}…"


def _raised(result: dict[str, Any]) -> str:
    """What Great Expectations says of an expectation that it could not evaluate."""
    info = result["exception_info"]
    messages = [info] if "exception_message" in info else list(info.values())
    return " ".join(str(messages[0]["exception_message"]).split())[:200]
