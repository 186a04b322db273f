"""Gold replay: what a reward gives to the dataset's own answers, right, spelled otherwise, and spoiled.

A reward that declares its maximum must give it to every gold, and to no wrong answer. One that declares nothing is
watched: if what it gives changes with the gold, it must give every gold more than a wrong answer to the same question.
"""

import inspect
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, localcontext
from itertools import count, groupby

from rewards.math_judge import equal_expressions
from rewards.number import extract_last_number, plain_number
from tasks.reward_scoring import TOLERANCE, GateReport, Row, Scorer, evenly, in_batches, name_of, shortened

GOLD_TEMPLATE = "<reasoning>\n{rationale}\n</reasoning>\n<answer>\n{answer}\n</answer>"
GOLD_COLUMNS = ("answer", "ground_truth")
"""Columns that hold the gold after ingestion."""
NO_SOLUTION = "I work it out step by step."
"""What stands for the worked solution of a row that has none."""

SAMPLE = 64
"""Golds by which it is found what a reward looks at and how long it takes, and that a judge which samples gets."""
SLOW = 0.001
"""Seconds for a completion from which a reward counts as slow, such as a judge that is asked over a network."""
SECONDS = 120.0
"""The most that replaying the golds through a slow reward may take: it gets as many as fit."""

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_NUMBER_AND_MARKS = re.compile(r"[\s#$€£¥%+\u2212,.0-9-]+")
_ONE_NUMBER = re.compile(r"(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)(?:\.[0-9]+)?")  # "3,5,7" is three
_OF_ANOTHER = "that of another row"
_TRIES = 8  # completions that are scored for each gold, about


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


def solution(row: Row) -> str:
    """The row's worked solution, or what stands for one, as where the golds are plain."""
    text = str(row.get("rationale", ""))
    return text if text.strip() else NO_SOLUTION


def perfect(template: str, row: Row, answers: Mapping[str, str] | None = None) -> str:
    """A perfect completion of `row`, or one with other `answers` by column. Raises `ValueError` as `fill` does."""
    solved = {"rationale": solution(row)} if "rationale" in row else {}
    return fill(template, {**row, **solved, **(answers or {})})


def written_columns(template: str) -> set[str]:
    """The columns that `template` writes."""
    return set(_PLACEHOLDER.findall(template))


def gold_columns(row: Row, column: str) -> list[str]:
    """`column`, and whichever columns hold the same gold under another name."""
    return [column, *(name for name in GOLD_COLUMNS if name != column and row.get(name) == row.get(column))]


def perturbed(gold: str, others: Sequence[str] = (), exact: bool = True) -> dict[str, str]:
    """Wrong answers made of `gold`, by what was done to it.

    A gold that is no number can only be hedged, or exchanged for one of `others`, golds of other rows. Where what is
    near enough counts as right (not `exact`), one more is no wrong answer.
    """
    number = plain_number(gold)
    held = [number] if number is not None else re.findall(r"[0-9]+", gold)
    hedge = next(one for one in count(5) if all(Decimal(part) != one for part in held))  # "5 or 5" is right
    wrong = {f"' or {hedge}' appended": f"{gold} or {hedge}"}
    if number is None:
        another = next((other for other in others if other.split() != gold.split()), None)
        if another is not None:
            wrong[_OF_ANOTHER] = another
    else:
        value = Decimal(number)
        with localcontext() as context:
            context.prec = len(number) + 5
            if exact:
                wrong["plus one"] = f"{value + 1:f}"
            if exact or abs(value) >= 1:  # of 0 that would be near enough
                wrong["times ten plus one"] = f"{value * 10 + 1:f}"
            if value:
                wrong["sign flipped"] = f"{-value:f}"
    return wrong


def respelled(gold: str) -> dict[str, str]:
    """`gold`, where it is one number, in spellings that mean the same."""
    number = extract_last_number(gold) if _NUMBER_AND_MARKS.fullmatch(gold) else None
    written = re.findall(r"[0-9]+(?:[.,][0-9]+)*", gold)
    if number is None or len(written) != 1 or not _ONE_NUMBER.fullmatch(written[0]):
        return {}
    whole, point, decimals = number.partition(".")
    spellings = {"without marks": number}
    if len(whole.lstrip("-0")) > 3:
        spellings["with commas between thousands"] = f"{Decimal(whole):,f}" + point + decimals
    return {how: spelling for how, spelling in spellings.items() if spelling != gold}


def _spoiler(scorer: Scorer, rows: Sequence[Row], column: str) -> Callable[[str], Mapping[str, str]]:
    """`perturbed` with what it needs to know of the reward and of other rows."""
    others = list(dict.fromkeys(str(row[column]) for row in evenly(rows, SAMPLE)))
    return lambda gold: perturbed(gold, others, scorer.traits.exact)


@dataclass(frozen=True)
class _Try:
    """One completion written from a row's gold, and the value that it earned."""

    index: int
    row: Row
    how: str
    written: str
    text: str
    value: float | None = None


@dataclass
class _Tally:
    """Tries that came out wrong: how many, the first, and what all of them have in common."""

    count: int = 0
    first: _Try | None = None
    features: set[str] = field(default_factory=lambda: set(_FEATURES))

    def add(self, attempt: _Try) -> None:
        self.count += 1
        self.first = self.first or attempt
        self.features = {what for what in self.features if _FEATURES[what](attempt.written)}


def check_golds(scorer: Scorer, rows: Sequence[Row], template: str, report: GateReport) -> None:
    """Replays golds through one reward and enters what it finds; all golds, unless it samples or is slow.

    A gold in the asked format must earn the declared maximum; so must other spellings of it, and no
    perturbed one may, where the reward declares the column that it compares with. Of a reward that declares
    nothing but looks at the gold, a gold must earn more than a perturbed one and as much as another
    spelling. Raises `RewardError` as the reward does.
    """
    rows, all_rows = _replayed(scorer, rows, template), len(rows)
    if len(rows) < all_rows:
        why = "it is slow" if scorer.traits.deterministic else "it samples"
        report.add("gold replay", scorer.name, "note", f"on {len(rows)} of {all_rows} rows, since {why}")
    maximum, column = scorer.traits.maximum, scorer.traits.gold_column
    if maximum is not None:
        _check_replay(scorer, rows, template, maximum, report)
        if column is not None:
            _check_spellings(scorer, rows, template, column, report)
            _check_perturbations(scorer, rows, template, maximum, column, report)
        return
    looked_at = column or (None if scorer.declared else _gold_looked_at(scorer, rows, template))
    if looked_at is not None:
        _check_spellings(scorer, rows, template, looked_at, report)
        _check_told_apart(scorer, rows, template, looked_at, report)
        return
    tried = sum(1 for _ in _tries(scorer, rows, template))
    detail = (
        f"ran on {tried} golds; it declares no maximum that they should earn, and does not look at the gold. "
        "A reward that has a maximum says so with rewards.traits.declare(maximum=...)"
    )
    report.add("gold replay", scorer.name, "note", detail)


def _replayed(scorer: Scorer, rows: Sequence[Row], template: str) -> Sequence[Row]:
    """The rows to replay: all, or as many as there is time for, evenly spaced."""
    sample = list(evenly(rows, SAMPLE))
    if not scorer.traits.deterministic:
        return sample
    started = time.monotonic()
    for _ in _tries(scorer, sample, template):
        pass
    seconds = (time.monotonic() - started) / len(sample)
    return rows if seconds < SLOW else evenly(rows, max(SAMPLE, int(SECONDS / (seconds * _TRIES))))


def _gold_looked_at(scorer: Scorer, rows: Sequence[Row], template: str) -> str | None:
    """The column with a gold that the reward asks for by name, or by which what it gives changes."""
    present = [name for name in GOLD_COLUMNS if name in rows[0] and rows[0][name] is not None]
    if not present:
        return None
    asked = inspect.signature(scorer.function).parameters
    for name in present:
        if name in asked:
            return name
    if "raw_answer" in asked:  # where the same gold stands, in the source's own form
        return present[0]
    sample = list(evenly(rows, SAMPLE))
    texts = [perfect(template, row).removeprefix(scorer.opening) for row in sample]
    others = [_with_another_gold(row, present[0]) for row in sample]
    # On one line too, lest a regular expression without DOTALL sees nothing.
    forms = (texts, [_flat(text) for text in texts])
    steady = scorer(texts, sample) == scorer(texts, sample)  # what changes by itself tells nothing
    return present[0] if steady and any(scorer(form, sample) != scorer(form, others) for form in forms) else None


def _flat(text: str) -> str:
    return " ".join(text.splitlines())


def _with_another_gold(row: Row, column: str) -> Row:
    """`row` as if its gold were another number, the source's own answer included."""
    gold = str(row[column])
    other = perturbed(gold).get("times ten plus one", f"not {gold}")
    changed = {**row, **dict.fromkeys(gold_columns(row, column), other)}
    if isinstance(row.get("raw_answer"), str):
        changed["raw_answer"] = f"{row['raw_answer'].partition('####')[0]}#### {other}"
    return changed


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
                tries.append(_Try(index, row, "", str(row.get("answer", "")), perfect(template, row)))
            else:
                names = gold_columns(row, column)
                for how, written in rewrite(str(row[column])).items():
                    text = perfect(template, row, dict.fromkeys(names, written))
                    tries.append(_Try(index, row, how, written, text))
        completions = [attempt.text.removeprefix(scorer.opening) for attempt in tries]
        for attempt, value in zip(tries, scorer(completions, [attempt.row for attempt in tries]), strict=True):
            yield replace(attempt, value=value)


def _check_replay(scorer: Scorer, rows: Sequence[Row], template: str, maximum: float, report: GateReport) -> None:
    missed, above, inapplicable = _Tally(), _Tally(), _Tally()
    for attempt in _tries(scorer, rows, template):
        if attempt.value is None:
            inapplicable.add(attempt)
        elif not _at_least(attempt.value, maximum):
            missed.add(attempt)
        elif attempt.value > maximum + TOLERANCE:
            above.add(attempt)
    if above.first is not None:
        first = above.first
        sentence = (
            f"{scorer.name} gives {first.value:g}, more than the maximum of {maximum:g} that it declares, to "
            f"{above.count} of {len(rows)} golds, first to {name_of(first.index, first.row)}. Declare what it gives at "
            "the most: by that it is told what is right, and what a cheat earns."
        )
        report.fail("gold replay", scorer.name, sentence)
    elif inapplicable.count == len(rows) and scorer.traits.gold_column is not None:
        report.fail("gold replay", scorer.name, _gives_nothing(scorer, inapplicable, rows))
    elif missed.first is not None:
        first = missed.first
        sentence = (
            f"{scorer.name} gives {first.value:g} instead of {maximum:g} to {missed.count} of {len(rows)} "
            f"golds written in the asked format, first to {name_of(first.index, first.row)}: "
            f"{shortened(first.text)!r}. "
            f"{_clue(scorer, missed, rows, maximum)}"
            "Correct the reward, or rewards.gold_template where that is not the format you ask for."
        )
        report.fail("gold replay", scorer.name, sentence)
    else:
        applied = len(rows) - inapplicable.count
        rest = f", {inapplicable.count} not applicable" if inapplicable.count else ""
        report.add("gold replay", scorer.name, "ok", f"{applied} of {len(rows)} golds earn {maximum:g}{rest}")


def _check_spellings(scorer: Scorer, rows: Sequence[Row], template: str, column: str, report: GateReport) -> None:
    tried, missed, due = 0, _Tally(), 0.0
    for attempt, right in _beside_gold(scorer, rows, template, column, respelled):
        tried += 1
        if attempt.value is not None and right is not None and not _at_least(attempt.value, right):
            due = due if missed.count else right
            missed.add(attempt)
    if missed.first is not None:
        first = missed.first
        sentence = (
            f"{scorer.name} gives {first.value:g} instead of {due:g} where a gold is written "
            f"{first.how}, in {missed.count} of {tried} tries, first {first.written!r} for the gold "
            f"{str(first.row[column])!r} of {name_of(first.index, first.row)}. It is the same number: "
            "compare values, not texts, and take commas out of both (rewards.parse_number does)."
        )
        report.fail("gold spelling", scorer.name, sentence)
    else:
        report.add("gold spelling", scorer.name, "ok", f"{tried} golds in other spellings earn as much")


def _check_perturbations(
    scorer: Scorer, rows: Sequence[Row], template: str, maximum: float, column: str, report: GateReport
) -> None:
    tried: Counter[str] = Counter()
    earned: dict[str, _Tally] = {}
    for attempt in _tries(scorer, rows, template, column, _spoiler(scorer, rows, column)):
        tried[attempt.how] += 1
        if _at_least(attempt.value, maximum) and not _means_the_gold(attempt, column):
            earned.setdefault(attempt.how, _Tally()).add(attempt)
    for how, tally in earned.items():
        report.fail("perturbed golds", scorer.name, _pays_wrong(scorer, how, tally, tried[how], column, "its full"))
    if not earned:
        detail = f"none of {tried.total()} wrong answers earns {maximum:g}"
        report.add("perturbed golds", scorer.name, "ok", detail)


def _check_told_apart(scorer: Scorer, rows: Sequence[Row], template: str, column: str, report: GateReport) -> None:
    """A reward that looks at the gold must give it more than it gives a wrong answer."""
    tried: Counter[str] = Counter()
    earned: dict[str, _Tally] = {}
    lost = _Tally()  # golds that earn no more than any wrong answer
    inapplicable = _Tally()
    golds = 0
    beside = _beside_gold(scorer, rows, template, column, _spoiler(scorer, rows, column))
    for _, group in groupby(beside, key=lambda pair: pair[0].index):
        # What earns no less than the gold is asked for its meaning, and nothing else: Math-Verify takes its time.
        pairs = [
            (attempt, right)
            for attempt, right in group
            if not (_at_least(attempt.value, right) and _means_the_gold(attempt, column))
        ]
        if not pairs:
            continue
        golds += 1
        tried.update(attempt.how for attempt, _ in pairs)
        equal = [attempt for attempt, right in pairs if _at_least(attempt.value, right)]
        first, right = pairs[0]
        gold = replace(first, written=str(first.row[column]), text=perfect(template, first.row), value=right)
        if right is None:
            inapplicable.add(gold)
        elif len(equal) == len(pairs):
            lost.add(gold)
        else:
            for attempt in equal:
                earned.setdefault(attempt.how, _Tally()).add(attempt)
    if golds and inapplicable.count == golds:
        report.fail("gold replay", scorer.name, _gives_nothing(scorer, inapplicable, rows))
        return
    if lost.first is not None:
        sentence = (
            f"{scorer.name} looks at {column}, but gives {lost.count} of {len(rows)} golds written in the asked format "
            f"no more than a wrong answer ({lost.first.value:g}), first {name_of(lost.first.index, lost.first.row)}: "
            f"{shortened(lost.first.text)!r}. {_clue(scorer, lost, rows, None)}"
            "Correct the reward, or rewards.gold_template where that is not the format you ask for."
        )
        report.fail("gold replay", scorer.name, sentence)
    for how, tally in earned.items():
        sentence = _pays_wrong(scorer, how, tally, tried[how], column, "as much as for the gold,")
        report.fail("perturbed golds", scorer.name, sentence)
    if not earned and lost.first is None:
        detail = f"it looks at {column}, and each gold earns more than {tried.total()} wrong answers"
        report.add("gold replay", scorer.name, "ok", detail)


def _at_least(value: float | None, other: float | None) -> bool:
    """Whether both apply, and the first is not below the second."""
    return value is not None and other is not None and value >= other - TOLERANCE


def _beside_gold(
    scorer: Scorer,
    rows: Sequence[Row],
    template: str,
    column: str,
    rewrite: Callable[[str], Mapping[str, str]],
) -> Iterator[tuple[_Try, float | None]]:
    """Every try of `rewrite` with what the row's gold itself earns."""
    golds = _tries(scorer, rows, template)
    gold = next(golds)
    for attempt in _tries(scorer, rows, template, column, rewrite):
        while gold.index < attempt.index:
            gold = next(golds)
        yield attempt, gold.value


def _means_the_gold(attempt: _Try, column: str) -> bool:
    """Whether another row's gold, taken for a wrong answer, says the same as this row's, as 0.5 and 1/2 do."""
    if attempt.how != _OF_ANOTHER:
        return False
    gold = str(attempt.row[column])
    return gold.casefold() == attempt.written.casefold() or equal_expressions(gold, attempt.written)


def _gives_nothing(scorer: Scorer, golds: _Tally, rows: Sequence[Row]) -> str:
    first = golds.first
    assert first is not None
    return (
        f"{scorer.name} gives None (not applicable) to each of {golds.count} golds written in the asked format, first "
        f"{name_of(first.index, first.row)}: {shortened(first.text)!r}. {_clue(scorer, golds, rows, None)}"
        "Correct the reward, or rewards.gold_template where that is not the format you ask for."
    )


def _pays_wrong(scorer: Scorer, how: str, tally: _Tally, tried: int, column: str, much: str) -> str:
    first = tally.first
    assert first is not None
    return (
        f"{scorer.name} gives {much} {first.value:g} to a wrong answer (the gold, {how}) in "
        f"{tally.count} of {tried} rows, first {first.written!r} for the gold "
        f"{str(first.row[column])!r} of {name_of(first.index, first.row)}: {shortened(first.text)!r}. "
        "Compare the whole answer, by "
        f"its value{'; a reward that takes what is near enough declares exact=False' if how == 'plus one' else ''}."
    )


def _clue(scorer: Scorer, missed: _Tally, rows: Sequence[Row], maximum: float | None) -> str:
    """A sentence on what the golds that missed have in common, where that can be told; otherwise nothing."""
    first = missed.first
    assert first is not None
    text = first.text.removeprefix(scorer.opening)
    [alone], [value] = scorer([text], [first.row]), scorer([_flat(text)], [first.row])
    least = maximum if maximum is not None else (first.value or 0.0) + 2 * TOLERANCE
    if _at_least(value, least) and not _at_least(alone, least):
        return "It is right once its line breaks are blanks: is there a regular expression without re.DOTALL? "
    for what in missed.features:
        if sum(_FEATURES[what](str(row.get("answer", ""))) for row in rows) == missed.count:
            return f"These are exactly the golds that {what}. "
    return ""


_FEATURES: dict[str, Callable[[str], bool]] = {
    "are negative": lambda gold: gold.startswith(("-", "\u2212")),
    "hold a comma": lambda gold: "," in gold,
    "hold a decimal point": lambda gold: "." in gold,
    "are no plain number": lambda gold: plain_number(gold) is None,
}
