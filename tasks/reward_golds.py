"""Gold replay: what a reward gives to the dataset's own answers, right, spelled otherwise, and spoiled."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext

from rewards.number import extract_last_number, plain_number
from tasks.reward_scoring import GateReport, Row, Scorer, in_batches, name_of, shortened

GOLD_TEMPLATE = "<reasoning>\n{rationale}\n</reasoning>\n<answer>\n{answer}\n</answer>"

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_NUMBER_AND_MARKS = re.compile(r"[\s#$€£¥%+\u2212,.0-9-]+")
_TOLERANCE = 1e-9


def fill(template: str, row: Row) -> str:
    """`template` with each `{column}` replaced by the row's value, whatever braces or tags that holds.

    Raises `ValueError` for a column that the row lacks.
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in row:
            asked = f"the gold template asks for the column {match[1]!r}"
            raise ValueError(f"{asked}, which the data lacks (it has {', '.join(row)})")
        return str(row[match[1]])

    return _PLACEHOLDER.sub(value, template)


def perturbed(gold: str) -> dict[str, str]:
    """Wrong answers made of `gold`, by what was done to it. A gold that is no number can only be hedged."""
    wrong = {"' or 5' appended": f"{gold} or 5"}
    number = plain_number(gold)
    if number is not None:
        value = Decimal(number)
        with localcontext() as context:
            context.prec = len(number) + 5
            wrong["plus one"] = f"{value + 1:f}"
            wrong["times ten plus one"] = f"{value * 10 + 1:f}"
            if value:
                wrong["sign flipped"] = f"{-value:f}"
    return wrong


def respelled(gold: str) -> dict[str, str]:
    """`gold`, where it is one number, in spellings that mean the same."""
    number = extract_last_number(gold) if _NUMBER_AND_MARKS.fullmatch(gold) else None
    if number is None or len(re.findall(r"[0-9]+(?:[.,][0-9]+)*", gold)) != 1:
        return {}
    whole, point, decimals = number.partition(".")
    spellings = {"without marks": number}
    if len(whole.lstrip("-0")) > 3:
        spellings["with commas between thousands"] = f"{int(Decimal(whole)):,}" + point + decimals
    return {how: spelling for how, spelling in spellings.items() if spelling != gold}


@dataclass(frozen=True)
class _Try:
    """One completion written from a row's gold, and the value that it earned."""

    index: int
    row: Row
    how: str
    written: str
    text: str
    value: float | None = None


def check_golds(scorer: Scorer, rows: Sequence[Row], template: str, report: GateReport) -> None:
    """Replays every gold through one reward and enters what it finds.

    A gold in the asked format must earn the declared maximum; so must other spellings of it, and no
    perturbed one may, where the reward declares the column that it compares with. Raises `RewardError` as
    the reward does.
    """
    maximum, column = scorer.traits.maximum, scorer.traits.gold_column
    if maximum is None:
        tried = sum(1 for _ in _tries(scorer, rows, template))
        detail = f"ran on {tried} golds; the reward declares no maximum that they should earn"
        report.add("gold replay", scorer.name, "note", detail)
        return
    _check_replay(scorer, rows, template, maximum, report)
    if column is not None:
        _check_spellings(scorer, rows, template, maximum, column, report)
        _check_perturbations(scorer, rows, template, maximum, column, report)


def _tries(
    scorer: Scorer,
    rows: Sequence[Row],
    template: str,
    column: str = "",
    rewrite: Callable[[str], Mapping[str, str]] | None = None,
) -> Iterator[_Try]:
    """Every row's gold as it is, or in each way that `rewrite` writes it, with the value that it earns."""
    for start, batch in in_batches(rows):
        tries = []
        for index, row in enumerate(batch, start):
            if rewrite is None:
                tries.append(_Try(index, row, "", str(row.get("answer", "")), fill(template, row)))
            else:
                for how, written in rewrite(str(row[column])).items():
                    tries.append(_Try(index, row, how, written, fill(template, {**row, column: written})))
        completions = [attempt.text.removeprefix(scorer.opening) for attempt in tries]
        for attempt, value in zip(tries, scorer(completions, [attempt.row for attempt in tries]), strict=True):
            yield replace(attempt, value=value)


def _check_replay(scorer: Scorer, rows: Sequence[Row], template: str, maximum: float, report: GateReport) -> None:
    missed, inapplicable = [], 0
    for attempt in _tries(scorer, rows, template):
        if attempt.value is None:
            inapplicable += 1
        elif attempt.value < maximum - _TOLERANCE:
            missed.append(attempt)
    if missed:
        first = missed[0]
        sentence = (
            f"{scorer.name} gives {first.value:g} instead of {maximum:g} to {len(missed)} of {len(rows)} "
            f"golds written in the asked format, first to {name_of(first.index, first.row)}: "
            f"{shortened(first.text)!r}. "
            f"{_clue(scorer, missed, rows, maximum)}"
            "Correct the reward, or rewards.gold_template where that is not the format you ask for."
        )
        report.fail("gold replay", scorer.name, sentence)
    else:
        applied = len(rows) - inapplicable
        rest = f", {inapplicable} not applicable" if inapplicable else ""
        report.add("gold replay", scorer.name, "ok", f"{applied} of {len(rows)} golds earn {maximum:g}{rest}")


def _check_spellings(
    scorer: Scorer, rows: Sequence[Row], template: str, maximum: float, column: str, report: GateReport
) -> None:
    tried, missed = 0, []
    for attempt in _tries(scorer, rows, template, column, respelled):
        tried += 1
        if attempt.value is not None and attempt.value < maximum - _TOLERANCE:
            missed.append(attempt)
    if missed:
        first = missed[0]
        sentence = (
            f"{scorer.name} gives {first.value:g} instead of {maximum:g} where a gold is written "
            f"{first.how}, in {len(missed)} of {tried} tries, first {first.written!r} for the gold "
            f"{str(first.row[column])!r} of {name_of(first.index, first.row)}. It is the same number: "
            "compare values, not texts, and take commas out of both (rewards.parse_number does)."
        )
        report.fail("gold spelling", scorer.name, sentence)
    else:
        report.add("gold spelling", scorer.name, "ok", f"{tried} golds in other spellings earn {maximum:g}")


def _check_perturbations(
    scorer: Scorer, rows: Sequence[Row], template: str, maximum: float, column: str, report: GateReport
) -> None:
    tried: Counter[str] = Counter()
    earned: dict[str, list[_Try]] = {}
    for attempt in _tries(scorer, rows, template, column, perturbed):
        tried[attempt.how] += 1
        if attempt.value is not None and attempt.value >= maximum - _TOLERANCE:
            earned.setdefault(attempt.how, []).append(attempt)
    for how, attempts in earned.items():
        first = attempts[0]
        sentence = (
            f"{scorer.name} gives its full {maximum:g} to a wrong answer (the gold, {how}) in "
            f"{len(attempts)} of {tried[how]} rows, first {first.written!r} for the gold "
            f"{str(first.row[column])!r} of {name_of(first.index, first.row)}. Compare the whole answer, by "
            "its value."
        )
        report.fail("perturbed golds", scorer.name, sentence)
    if not earned:
        detail = f"none of {tried.total()} wrong answers earns {maximum:g}"
        report.add("perturbed golds", scorer.name, "ok", detail)


def _clue(scorer: Scorer, missed: Sequence[_Try], rows: Sequence[Row], maximum: float) -> str:
    """A sentence on what the golds that missed have in common, where that can be told; otherwise nothing."""
    first = missed[0]
    flat = " ".join(first.text.removeprefix(scorer.opening).splitlines())
    [value] = scorer([flat], [first.row])
    if value is not None and value >= maximum - _TOLERANCE:
        return "It is right once its line breaks are blanks: is there a regular expression without re.DOTALL? "
    for what, holds in _FEATURES.items():
        having = sum(holds(str(row.get("answer", ""))) for row in rows)
        if having == len(missed) and all(holds(attempt.written) for attempt in missed):
            return f"These are exactly the golds that {what}. "
    return ""


_FEATURES: dict[str, Callable[[str], bool]] = {
    "are negative": lambda gold: gold.startswith(("-", "\u2212")),
    "hold a comma": lambda gold: "," in gold,
    "hold a decimal point": lambda gold: "." in gold,
    "are no plain number": lambda gold: plain_number(gold) is None,
}
