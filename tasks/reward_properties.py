"""What every reward must keep to on any text: tried on odd completions and on long hostile ones."""

import copy
import random
import time
from collections.abc import Sequence

from rewards.errors import RewardError
from rewards.opening import with_opening
from tasks.reward_golds import GOLD_COLUMNS, perfect
from tasks.reward_scoring import TOLERANCE, GateReport, Row, Scorer, call, shortened

RANDOM_COMPLETIONS = 48
ALONE = 8
"""Completions that are also scored alone; a judge may take a second for each."""

_FRAGMENTS = (
    "<reasoning>", "</reasoning>", "<answer>", "</answer>", "<think>", "</think>", "\\boxed{", "}", "{",
    "72", "-3", "1,000", "7.5", "#### 72", "0", "one two", "nan", "inf", "1e309", "$", "%", "=", "+", "**",
    "\n", "\r\n", " ", "\t", "\\", "<", ">", "&lt;", "\x00", "\u2212", "\u00b2", "\u0667", "\u00bd", "\u200b",
    "\U0001f642",
)  # fmt: skip
_FIXED = (
    "", " ", "\n", "\x00", "\ufeff72", "<answer>", "</answer>", "<answer></answer>", "</answer><answer>",
    "<answer>72</answer>", "<answer>\u0667\u0662</answer>", "<answer>1e400</answer>", "<answer>-</answer>",
    "<answer>" + "9" * 5000 + "</answer>", "a" * 20_000, "<answer>" * 500, "\\boxed{" * 200, "\\boxed{}",
    "e\u0301" * 100, "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u202e72", "None", "{question}", "%s {0}",
)  # fmt: skip
_ODD_ANSWERS = (
    "\u00b2", "\u00bd", "\u0667\u0662", ".", ",", "-", "--3", "1.2.3", "1,2", "1e400", "nan", "inf", "", " ", "$",
    "None",
)  # fmt: skip

_HOSTILE = (
    "<answer>", "</answer>", "<reasoning>", "<reasoning>\n", "<answer>\n", "<reasoning></reasoning>",
    "<think>", "<intro>", "\\boxed{", "{", "}", "(", "9", "1,", "1,000", "1.", ".", ",", "-", "$", "$ ", "*",
    "\\", " ", "\n", "\r\n", "a", "72 ", "\u00b2", "\u0301",
)  # fmt: skip
LONGEST = 128_000
"""Characters of the longest hostile text, unless completions are shorter; each of four is four times the one before."""
# Four times the text may take four times as long. A quadratic reward takes sixteen times as long; between
# the two there is room for a busy machine, and below the floor no time is long enough to mean anything.
MAXIMUM_GROWTH = 10.0
FLOOR_SECONDS = 0.2


def odd_completions(seed: int, golds: Sequence[str]) -> list[str]:
    """A fixed list of odd texts, and random ones made of tags, numbers, the golds and strange characters."""
    generator = random.Random(seed)
    fragments = (*_FRAGMENTS, *golds)
    made = ["".join(generator.choices(fragments, k=generator.randint(1, 14))) for _ in range(RANDOM_COMPLETIONS)]
    return [*_FIXED, *made]


def odd_answers(template: str, row: Row) -> list[str]:
    """A perfect completion of `row` but for its answer, which is no number, or an odd one."""
    columns = [name for name in GOLD_COLUMNS if name in row]
    return [perfect(template, row, dict.fromkeys(columns, answer)) for answer in _ODD_ANSWERS]


def check_properties(
    scorer: Scorer, rows: Sequence[Row], template: str | None, report: GateReport, *, seed: int
) -> None:
    """Enters what one reward does on odd completions, and on odd answers in the asked format (`template`).

    Raises `RewardError` as the reward does. One finite value or `None` per completion is what the guard already
    demands. Beyond that a value must not exceed the declared maximum, must not change when the same is asked again, in
    another order, alone or twice, and the reward must leave its arguments as they were.
    """
    texts = odd_completions(seed, [str(row.get("answer", "")) for row in rows[:4]])
    if template is not None:
        texts += [text.removeprefix(scorer.opening) for text in odd_answers(template, rows[0])]
    batch = [rows[index % len(rows)] for index in range(len(texts))]
    values = scorer(texts, batch)
    broken = (
        _exceeds(scorer, texts, values)
        or _changes_arguments(scorer, texts, batch)
        or (_depends(scorer, texts, batch, values) if scorer.traits.deterministic else None)
    )
    if broken:
        report.fail("properties", scorer.name, f"{scorer.name} {broken}")
    else:
        held = "deterministic" if scorer.traits.deterministic else "declared as not deterministic"
        detail = f"finite and in range on {len(texts)} odd completions, {held}, changes no argument"
        report.add("properties", scorer.name, "ok", detail)


def check_linear_time(scorer: Scorer, row: Row, report: GateReport, *, longest: int) -> None:
    """Enters whether the processor time of one reward grows faster than its input, up to `longest` characters.

    Raises likewise.
    """
    sizes = [min(longest, LONGEST) // 4**power for power in (3, 2, 1, 0)]
    for fragment in _HOSTILE:
        found = _growth(scorer, fragment, row, sizes)
        if found is not None:
            size, before, seconds = found
            sentence = (
                f"{scorer.name} takes {seconds:.2f} s for {size:,} characters of {fragment!r} and "
                f"{before:.3f} s for a quarter of them: its time grows faster than its input, and one bad "
                "completion can stall the training. Look for nested or lazy quantifiers in its regular "
                "expressions; text.rpartition('<answer>') and the like take no longer than the text."
            )
            report.fail("linear time", scorer.name, sentence)
            return
    detail = f"{len(_HOSTILE)} hostile texts of up to {sizes[-1]:,} characters"
    report.add("linear time", scorer.name, "ok", detail)


def _growth(scorer: Scorer, fragment: str, row: Row, sizes: Sequence[int]) -> tuple[int, float, float] | None:
    """The first size whose time grows too fast, with the seconds for a quarter of it and for all of it."""
    before = _seconds(scorer, _repeated(fragment, sizes[0]), row)
    for size in sizes[1:]:
        seconds = _seconds(scorer, _repeated(fragment, size), row)
        if _too_fast(before, seconds):
            # Once more, the best of two each: a busy machine may have slowed the one and not the other.
            before = min(_seconds(scorer, _repeated(fragment, size // 4), row) for _ in range(2))
            seconds = min(_seconds(scorer, _repeated(fragment, size), row) for _ in range(2))
            if _too_fast(before, seconds):
                return size, before, seconds
        before = seconds
    return None


def _repeated(fragment: str, size: int) -> str:
    return fragment * (size // len(fragment))


def _too_fast(before: float, seconds: float) -> bool:
    return seconds > FLOOR_SECONDS and seconds > MAXIMUM_GROWTH * before


def _seconds(scorer: Scorer, text: str, row: Row) -> float:
    start = time.process_time()
    scorer([text], [row])
    return time.process_time() - start


def _exceeds(scorer: Scorer, texts: Sequence[str], values: Sequence[float | None]) -> str | None:
    maximum = scorer.traits.maximum
    for text, value in zip(texts, values, strict=True):
        if maximum is not None and value is not None and value > maximum + TOLERANCE:
            return (
                f"gives {value:g} to {shortened(text)!r}, more than the maximum of {maximum:g} that it "
                "declares. Correct the reward or its declaration."
            )
    return None


def _changes_arguments(scorer: Scorer, texts: Sequence[str], batch: Sequence[Row]) -> str | None:
    arguments = scorer.arguments(texts, batch)
    before = {name: copy.deepcopy(value) for name, value in arguments.items() if isinstance(value, list)}
    try:
        call(with_opening(scorer.function, scorer.opening), arguments)
    except Exception as error:
        problem = f"raised {type(error).__name__} on completions that it took before: {error}"
        raise RewardError(scorer.name, problem) from error
    changed = [name for name, value in before.items() if arguments[name] != value]
    if changed:
        return f"changes its argument {changed[0]}, which other rewards see too. Let it work on a copy."
    return None


def _depends(scorer: Scorer, texts: Sequence[str], batch: Sequence[Row], values: Sequence[float | None]) -> str | None:
    if scorer(texts, batch) != values:
        return (
            "gives different values when it is asked the same again. Take out what is random or remembered; "
            "a judge that samples declares deterministic=False."
        )
    if scorer(texts[::-1], batch[::-1])[::-1] != values:
        return "gives other values when the same completions come in another order. Score each for itself."
    step = len(texts) // ALONE
    for index in range(0, len(texts), step):
        [alone] = scorer([texts[index]], [batch[index]])
        if scorer([texts[index]] * 2, [batch[index]] * 2) != [alone, alone]:
            return (
                f"gives {alone} to {shortened(texts[index])!r} alone and something else where it comes twice. "
                "Score each completion for itself."
            )
        if alone != values[index]:
            return (
                f"gives {values[index]} to {shortened(texts[index])!r} among others and {alone} to it alone. "
                "Score each completion for itself."
            )
    return None
