"""What must be true of the rows, as expectations of Great Expectations: the pipeline's own and the configuration's.

`meta` says what is shown of a row that fails ("shows", a column) and what is wrong with it ("tells", a template over
the row's columns). This module imports Great Expectations, which takes seconds.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import great_expectations.expectations as gxe
from great_expectations.exceptions import ExpectationNotFoundError
from great_expectations.expectations.expectation import (
    ColumnMapExpectation,
    ColumnPairMapExpectation,
    MulticolumnMapExpectation,
)
from great_expectations.expectations.registry import get_expectation_impl, list_registered_expectation_implementations

from tasks.config import DataSettings, ExpectationSettings, ValidationSettings
from tasks.dataset import OWN_COLUMNS
from tasks.errors import UserError
from tasks.overlap import NGRAM

ONE_MARK_EACH = "every answer has exactly one ####"
# Both parts around the mark are free of it, so it stands there once.
ONE_MARK = r"\A(?:(?!####)[\s\S])*####(?:(?!####)[\s\S])*\Z"
# Neither white space (RE2 knows only ASCII's by \s) nor what takes no space on the page.
SEEN = (
    r"[^\s\x00-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180e\u2000-\u200f\u2028-\u202f"
    r"\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0]"
)

# These look at a row in the light of others, so they need a column as a whole.
_ACROSS_ROWS = (gxe.ExpectColumnValuesToBeUnique, gxe.ExpectCompoundColumnsToBeUnique)
_SCHEMA = (
    gxe.ExpectColumnToExist,
    gxe.ExpectTableColumnCountToBeBetween,
    gxe.ExpectTableColumnCountToEqual,
    gxe.ExpectTableColumnsToMatchOrderedList,
    gxe.ExpectTableColumnsToMatchSet,
)
_MAPS = (ColumnMapExpectation, ColumnPairMapExpectation, MulticolumnMapExpectation)


def own_expectations(
    split: str, data: DataSettings, settings: ValidationSettings, max_shared_ngrams: float | None
) -> list[Any]:
    """What must be true of the rows of train (with validation) or test. All can be judged from some of the rows."""
    texts = [name for name in OWN_COLUMNS.names if name != "source_row"]
    expected: list[Any] = [
        gxe.ExpectTableColumnsToMatchSet(
            column_set=texts, exact_match=False, description=f"the columns are {', '.join(texts)} and any others"
        )
    ]
    for name in texts:
        expected.append(
            gxe.ExpectColumnValuesToBeOfType(column=name, type_="str", description=f"the column {name} holds text")
        )
    expected += _text("question", "question", settings.question_characters)
    expected.append(
        _null(
            "gate:duplicate_of",
            "every question is unique, whatever its case, white space and punctuation",
            shows="question",
            tells="asked in row {0[gate:duplicate_of]:.0f} too",
        )
    )
    if split == "train":
        expected.append(_no_leak(max_shared_ngrams))
    if data.answer_column is not None:
        expected += _text("raw_answer", "answer", settings.answer_characters)
    if data.gold == "hash":
        expected.append(
            gxe.ExpectColumnValuesToMatchRegex(
                column="raw_answer",
                regex=ONE_MARK,
                description=ONE_MARK_EACH,
                meta={"shows": "raw_answer"},
            )
        )
        expected.append(
            gxe.ExpectColumnValuesToNotBeNull(
                column="answer", description="every gold is one number behind ####", meta={"shows": "raw_answer"}
            )
        )
    if data.gold == "plain":
        expected.append(
            gxe.ExpectColumnValuesToNotMatchRegex(
                column="raw_answer",
                regex="####",
                description="no gold holds ####, behind which data.gold=hash would read it",
                meta={"shows": "raw_answer"},
            )
        )
    if settings.annotations and data.answer_column is not None:
        expected.append(
            _null(
                "gate:wrong_annotation",
                "every calculator annotation <<…=…>> is right",
                shows="gate:wrong_annotation",
            )
        )
    return expected


def row_count(rows: int) -> Any:
    return gxe.ExpectTableRowCountToEqual(value=rows, description=f"the source has {rows} rows (data.expected_rows)")


def configured_expectations(split: str, settings: ValidationSettings, columns: Sequence[str]) -> list[Any]:
    """The expectations that the configuration adds for `split`. Raises UserError for one that cannot be."""
    return [
        _configured(f"validation.expectations.{number}", expected, columns)
        for number, expected in enumerate(settings.expectations)
        if expected.split in (None, split)
    ]


def told_apart(expectations: Sequence[Any]) -> None:
    """Give each a description of its own, by which its results and its rows are known; a second one gets a number."""
    taken: set[str] = set()
    for expectation in expectations:
        described, number = expectation.description, 1
        while expectation.description in taken:
            number += 1
            expectation.description = f"{described} ({number})"
        taken.add(expectation.description)


def is_about_rows(expectation: Any) -> bool:
    """Whether it can be judged a part of the rows at a time."""
    return isinstance(expectation, _MAPS) and not isinstance(expectation, _ACROSS_ROWS)


def is_about_columns(expectation: Any) -> bool:
    """Whether it is about which columns there are, whatever the rows."""
    return isinstance(expectation, _SCHEMA)


def columns_of(expectation: Any) -> list[str]:
    """The columns that an expectation is about."""
    named = [getattr(expectation, name, None) for name in ("column", "column_A", "column_B")]
    return [name for name in (*named, *(getattr(expectation, "column_list", None) or [])) if name]


def _text(column: str, name: str, characters: tuple[int, int]) -> list[Any]:
    shortest, longest = characters
    meta = {"shows": column}
    return [
        gxe.ExpectColumnValuesToNotBeNull(column=column, description=f"no {name} is missing", meta=meta),
        gxe.ExpectColumnValuesToMatchRegex(column=column, regex=SEEN, description=f"no {name} is blank", meta=meta),
        gxe.ExpectColumnValueLengthsToBeBetween(
            column=column,
            min_value=shortest,
            max_value=longest,
            description=f"every {name} has {shortest} to {longest} characters (validation.{name}_characters)",
            meta=meta,
        ),
    ]


def _no_leak(limit: float | None) -> Any:
    akin = f", and train gives away no more than {limit:.0%} of one (by {NGRAM} words in a row)" if limit else ""
    return _null(
        "gate:leaks",
        f"no question is asked in test too{akin}",
        shows="question",
        tells="as in row {0[gate:leaks]:.0f} of test",
    )


def _null(column: str, description: str, **meta: str) -> Any:
    return gxe.ExpectColumnValuesToBeNull(column=column, description=description, meta=meta)


def _configured(where: str, settings: ExpectationSettings, columns: Sequence[str]) -> Any:
    try:
        implementation = get_expectation_impl(settings.type)
    except ExpectationNotFoundError:
        near = get_close_matches(settings.type, list_registered_expectation_implementations(), n=1)
        hint = f"; did you mean {near[0]}?" if near else "; see Great Expectations' gallery"
        raise UserError(f"{where}: there is no expectation {settings.type!r}{hint}") from None
    options = dict(settings.options)
    described = ", ".join(f"{name}={value!r}" for name, value in options.items() if name != "description")
    options["description"] = options.get("description") or f"{settings.type} ({described})"
    options.pop("id", None)  # Great Expectations gives them itself
    try:
        expectation = implementation(**options)
    except (TypeError, ValueError) as error:  # pydantic's are ValueErrors
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{where}: {settings.type} cannot be made of {described or 'nothing'}: {reason}") from None
    for column in columns_of(expectation):
        if column not in columns:
            raise UserError(f"{where}: the data has no column {column!r}, only {', '.join(columns)}; correct it")
    expectation.meta = {"shows": (columns_of(expectation) or ["question"])[0], "configured": where}
    return expectation
