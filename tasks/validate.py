"""The data gate: Great Expectations on all rows that are trained on, chosen on or scored.

Nothing is trained on data that fails. Train and validation are one split here, as they are in the source, so that a
question in both is found like any other that stands twice.
"""

import logging
import os
from pathlib import Path
from typing import Any

import pandas as pd

from tasks.config import DataSettings, ValidationSettings
from tasks.errors import UserError
from tasks.ingest import OWN_COLUMNS, normalised
from tasks.run import read_json, write_json

SHOWN_CHARACTERS = 40
SHOWN_FAILURES = 12  # lines; more would not fit on a screen

# Both parts around the mark are free of it, so it stands there once.
ONE_MARK = r"\A(?:(?!####)[\s\S])*####(?:(?!####)[\s\S])*\Z"


def validate(folder: Path, data: DataSettings, settings: ValidationSettings, report: Path) -> dict[str, Any]:
    """Check the ingested rows in `folder`, and give what was expected and what the data looks like.

    The result holds "expectations", a list of {split, expectation, success, unexpected} with the number of rows that
    fail (null where an expectation is not about single rows), and "statistics" of each split: lengths in characters
    and the distribution of golds. Great Expectations' own results are written to `report`, a file per split.

    Raises UserError with a line for each failed expectation, which names the first rows that fail.
    """
    manifest = read_json(folder / "manifest.json")
    expectations, failures, statistics = [], [], {}
    expected_rows: dict[Any, int] = data.expected_rows or {}
    for split, frame in _frames(folder).items():
        results = _results(split, frame, _expectations(split, data, settings), settings)
        if split in expected_rows:
            # `frame` lacks what data.max_samples left out; the count is that of the source's rows.
            rows = pd.DataFrame(index=range(manifest["source_rows"][split]))
            results += _results(f"{split} source", rows, [_row_count(expected_rows[split])], settings)
        report.mkdir(parents=True, exist_ok=True)
        write_json(report / f"{split}.json", results)
        statistics[split] = _statistics(frame)
        for result in results:
            expectations.append(
                {
                    "split": split,
                    "expectation": result["expectation_config"]["description"],
                    "success": result["success"],
                    "unexpected": result["result"].get("unexpected_count"),
                }
            )
            if not result["success"]:
                failures.append(_failure(split, result, frame))
    summary = {"expectations": expectations, "statistics": statistics}
    write_json(report / "summary.json", summary)
    if failures:
        more = len(failures) - SHOWN_FAILURES
        lines = failures[:SHOWN_FAILURES] + ([f"and {more} more expectations fail"] if more > 0 else [])
        lines.append(f"Mend or remove these rows of {manifest['source']}; all results are in {report}")
        raise UserError("\n".join(lines))
    return summary


def _frames(folder: Path) -> dict[str, pd.DataFrame]:
    """The rows of train (with validation) and test, indexed by their number in the source, with what is compared."""
    parts = {split: pd.read_parquet(folder / f"{split}.parquet") for split in ("train", "validation", "test")}
    train = pd.concat([parts["train"], parts["validation"]]).set_index("source_row").sort_index()
    test = parts["test"].set_index("source_row")
    for frame in (train, test):
        frame["normalised_question"] = frame["question"].map(normalised, na_action="ignore")
    test["is_in_train"] = test["normalised_question"].isin(train["normalised_question"].dropna())
    return {"train": train, "test": test}


def _expectations(split: str, data: DataSettings, settings: ValidationSettings) -> list[Any]:
    """What must be true of each split. `meta` says which column is shown of a row that fails."""
    import great_expectations.expectations as gxe

    texts = [name for name in OWN_COLUMNS.names if name != "source_row"]
    expectations: list[Any] = [
        gxe.ExpectTableColumnsToMatchSet(
            column_set=texts, exact_match=False, description=f"the columns are {', '.join(texts)} and any others"
        )
    ]
    for name in texts:
        expectations.append(
            gxe.ExpectColumnValuesToBeOfType(column=name, type_="str", description=f"the column {name} holds text")
        )
    expectations += _text_expectations("question", "question", settings.question_characters)
    expectations.append(
        gxe.ExpectColumnValuesToBeUnique(
            column="normalised_question",
            description="every question is unique, whatever its case and white space",
            meta={"shows": "question"},
        )
    )
    if split == "test":
        expectations.append(
            gxe.ExpectColumnValuesToBeInSet(
                column="is_in_train",
                value_set=[False],
                description="no question is also in train, whatever its case and white space",
                meta={"shows": "question"},
            )
        )
    if data.answer_column is not None:
        expectations += _text_expectations("raw_answer", "answer", settings.answer_characters)
    if data.gold == "hash":
        expectations.append(
            gxe.ExpectColumnValuesToMatchRegex(
                column="raw_answer",
                regex=ONE_MARK,
                description="every answer has exactly one ####",
                meta={"shows": "raw_answer"},
            )
        )
        expectations.append(
            gxe.ExpectColumnValuesToNotBeNull(
                column="answer", description="every gold is one number behind ####", meta={"shows": "raw_answer"}
            )
        )
    return expectations


def _text_expectations(column: str, name: str, characters: tuple[int, int]) -> list[Any]:
    import great_expectations.expectations as gxe

    shortest, longest = characters
    meta = {"shows": column}
    return [
        gxe.ExpectColumnValuesToNotBeNull(column=column, description=f"no {name} is missing", meta=meta),
        gxe.ExpectColumnValuesToMatchRegex(column=column, regex=r"\S", description=f"no {name} is blank", meta=meta),
        gxe.ExpectColumnValueLengthsToBeBetween(
            column=column,
            min_value=shortest,
            max_value=longest,
            description=f"every {name} has {shortest} to {longest} characters",
            meta=meta,
        ),
    ]


def _row_count(rows: int) -> Any:
    import great_expectations.expectations as gxe

    return gxe.ExpectTableRowCountToEqual(value=rows, description=f"the source has {rows} rows")


def _results(
    name: str, frame: pd.DataFrame, expectations: list[Any], settings: ValidationSettings
) -> list[dict[str, Any]]:
    """Great Expectations' results on `frame`, as JSON values; the rows that fail are given by the frame's index."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx  # takes seconds
    from great_expectations.data_context.types.base import ProgressBarsConfig

    # It tells of each temporary folder.
    logging.getLogger("great_expectations.data_context.types.base").setLevel(logging.WARNING)
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_pandas("data").add_dataframe_asset(name)
    batch = asset.add_batch_definition_whole_dataframe("all rows").get_batch({"dataframe": frame})
    results = batch.validate(
        gx.ExpectationSuite(name, expectations=expectations),
        result_format={
            "result_format": "SUMMARY",
            "partial_unexpected_count": settings.max_rows_named,
            "return_unexpected_index_query": False,
        },
    )
    return results.to_json_dict()["results"]


def _failure(split: str, result: dict[str, Any], frame: pd.DataFrame) -> str:
    """One line: the expectation, the split, how many rows fail, and the first of them."""
    expectation, found = result["expectation_config"], result["result"]
    expected = f"{split}: expected that {expectation['description']}, but"
    if "unexpected_count" not in found:
        return f"{expected} found {found.get('observed_value', result['exception_info'])}"
    shows = expectation["meta"]["shows"]
    numbers = [row["source_row"] for row in found["partial_unexpected_index_list"]]
    rows = [f"row {number}: {_shortened(frame.at[number, shows], shows)}" for number in numbers]
    count = found["unexpected_count"]
    more = f" and {count - len(rows)} more" if count > len(rows) else ""
    return f"{expected} {count} row{'s do' if count > 1 else ' does'} not fit: {', '.join(rows)}{more}"


def _shortened(value: Any, column: str) -> str:
    if not isinstance(value, str):
        return "null"
    if len(value) <= SHOWN_CHARACTERS:
        return repr(value)
    # What is wrong with an answer mostly stands at its end, where the gold is.
    return f"…{value[-SHOWN_CHARACTERS:]!r}" if column == "raw_answer" else f"{value[:SHOWN_CHARACTERS]!r}…"


def _statistics(frame: pd.DataFrame) -> dict[str, Any]:
    golds = frame["answer"].dropna()
    numbers = pd.to_numeric(golds, errors="coerce").dropna()
    return {
        "rows": len(frame),
        "question_characters": _spread(frame["question"].str.len()),
        "answer_characters": _spread(frame["raw_answer"].str.len()),
        "golds": {
            "different": int(golds.nunique()),
            "most_common": {str(gold): int(rows) for gold, rows in golds.value_counts().head(5).items()},
            "negative": int((numbers < 0).sum()),
            "not_whole": int((numbers % 1 != 0).sum()),
            "numbers": _spread(numbers),
        },
    }


def _spread(values: pd.Series) -> dict[str, float] | None:
    """Smallest, median, mean and largest value; None where there is none."""
    known = values.dropna()
    if known.empty:
        return None
    return {name: round(float(known.agg(name)), 2) for name in ("min", "median", "mean", "max")}
