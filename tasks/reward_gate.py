"""The reward gate: no training starts before its rewards have proved themselves on the data.

    report = check(rewards, rows, gold_template=GOLD_TEMPLATE, exploit_limit=0.75)
    if not report.ok: stop with report.failures

Five checks, each in a module of its own: cases (here), gold replay (`reward_golds`), properties and linear
time (`reward_properties`), exploits (`reward_exploits`). They run the user's code, so the caller runs them
in a child process with a time limit; `progress` tells it what is being checked.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rewards.casefile import Case, GoldCase, read_cases, shipped_cases, shipped_gold_cases
from rewards.errors import RewardError
from rewards.number import extract_hash_answer
from rewards.registry import columns_of, is_registered, load_reward
from tasks.reward_exploits import check_exploits
from tasks.reward_golds import GOLD_TEMPLATE, check_golds, gold_columns, perfect, written_columns
from tasks.reward_properties import LONGEST, check_linear_time, check_properties
from tasks.reward_scoring import GateReport, GateRow, LoadedReward, Row, Scorer, name_of, shortened

__all__ = ["GOLD_TEMPLATE", "GateReport", "GateRow", "LoadedReward", "check"]


def check(
    rewards: Sequence[LoadedReward],
    rows: Sequence[Row],
    *,
    gold_template: str | None = GOLD_TEMPLATE,
    opening: str = "",
    conversational: bool = True,
    own_cases: Path | None = None,
    exploit_limit: float | None = None,
    longest: int = LONGEST,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> GateReport:
    """Checks `rewards` on the training `rows` (mappings by column; all have the same columns).

    `gold_template` writes a perfect completion from a row's columns (`{rationale}`, `{answer}` …); `None`
    replays no golds. `opening` is what the prompt already holds of it, `conversational` the form in which
    the trainer passes completions. `own_cases` is the user's cases file, with values by reward name.
    `exploit_limit` is the share of the maximum reward above which a degenerate completion that beats an
    honest one stops the run; `None` only reports. `longest` is the length of the longest completion, in
    characters. `progress` is called with what is checked next.

    Whatever a reward does wrong is entered in the report; nothing is raised for it.
    """
    report = GateReport()
    scorers = []
    for reward in rewards:
        if isinstance(reward.function, str):
            detail = f"{reward.function} is a reward model, which only the trainer loads"
            report.add("all", reward.name, "skipped", detail)
        else:
            scorers.append(Scorer(reward, opening=opening, conversational=conversational))
            if reward.registered is not None:
                progress(f"shipped cases of {reward.name}")
                _check_shipped_cases(reward, reward.registered, conversational, report)
    if own_cases is not None:
        progress(f"cases in {own_cases}")
        _check_own_cases(rewards, own_cases, conversational, report)
    if not rows:
        report.fail("data", "all", "There are no rows to check the rewards on. Check data.path and the splits.")
        return report
    scorers = [scorer for scorer in scorers if _has_golds(scorer, rows, report)]
    template = _usable_template(gold_template, rows[0], opening, scorers, report)
    for scorer in scorers:
        _check_one(scorer, rows, template, report, seed, longest, progress)
    if template is not None and scorers:
        progress("exploits")
        _check_exploits(scorers, rows, template, exploit_limit, report)
    return report


def _check_one(
    scorer: Scorer,
    rows: Sequence[Row],
    template: str | None,
    report: GateReport,
    seed: int,
    longest: int,
    progress: Callable[[str], None],
) -> None:
    """The checks of a single reward; the first that it raises in is the last."""
    current = "gold replay"
    try:
        if scorer.traits.completion_alone:
            report.add(current, scorer.name, "skipped", "it judges lengths, which no gold has to have")
        elif scorer.traits.rare:
            report.add(current, scorer.name, "skipped", "it declares that golds need not hold what it pays for")
        elif template is not None:
            progress(f"{current} of {scorer.name}")
            check_golds(scorer, rows, template, report)
        current = "properties"
        progress(f"{current} of {scorer.name}")
        check_properties(scorer, rows, template, report, seed=seed)
        current = "linear time"
        if scorer.traits.deterministic:
            progress(f"{current} of {scorer.name}")
            check_linear_time(scorer, rows[0], report, longest=longest)
        else:
            report.add(current, scorer.name, "skipped", "it declares that it samples: its time is a judge's own")
        _check_variety(scorer, template is not None, report)
    except RewardError as error:
        report.fail(current, scorer.name, f"{error}. Correct the reward, or the row.")


def _check_variety(scorer: Scorer, with_golds: bool, report: GateReport) -> None:
    """A reward that gives the same to everything that was tried teaches nothing; its own declaration may say so."""
    if len(scorer.seen) > 1 or any(entry.reward == scorer.name and entry.result == "failed" for entry in report.rows):
        return
    [value] = scorer.seen
    what = f"{scorer.name} gives {'None (not applicable)' if value is None else f'{value:g}'} to every completion tried"
    tried = f"{what}{', the golds in the asked format among them' if with_golds else ''}: equal rewards teach nothing."
    if scorer.traits.maximum is not None or scorer.traits.rare:
        report.add("variety", scorer.name, "note", tried)
    else:
        sentence = (
            f"{tried} Correct it; or, if it is meant (a bonus or a penalty for what none of them does), say so with "
            "rewards.traits.declare(rare=True)."
        )
        report.fail("variety", scorer.name, sentence)


def _check_exploits(
    scorers: Sequence[Scorer], rows: Sequence[Row], template: str, limit: float | None, report: GateReport
) -> None:
    if not report.ok:
        report.add("exploits", "all", "skipped", "what wrong rewards would pay means nothing; see the failures")
        return
    try:
        check_exploits(scorers, rows, template, limit, report)
    except RewardError as error:
        report.fail("exploits", error.reward, f"{error}. Correct the reward.")


def _has_golds(scorer: Scorer, rows: Sequence[Row], report: GateReport) -> bool:
    """Whether the columns that the reward asks for are there, and the one that it compares with was read as a whole."""
    column = scorer.traits.gold_column
    for asked in dict.fromkeys([*([column] if column else []), *columns_of(scorer.function)]):
        if asked not in rows[0]:
            sentence = (
                f"{scorer.name} {'compares with' if asked == column else 'asks for'} the column {asked!r}, which the "
                f"data lacks (it has {', '.join(rows[0])}). Rename the column or the reward's argument, or take "
                "another reward."
            )
            report.fail("golds", scorer.name, sentence)
            return False
    if column is None:
        return True
    for index, row in enumerate(rows):
        if str(row[column]).lstrip().startswith("#"):
            sentence = (
                f"the column {column} that {scorer.name} compares with holds "
                f"{shortened(str(row[column]))!r} in {name_of(index, row)}: the dataset's answer was split "
                "on fewer marks than its '####'. Split it on '####', or use rewards.extract_hash_answer."
            )
            report.fail("golds", scorer.name, sentence)
            return False
    return True


def _usable_template(
    template: str | None, row: Row, opening: str, scorers: Sequence[Scorer], report: GateReport
) -> str | None:
    if template is None:
        report.add("gold replay", "all", "skipped", "no gold template is configured")
        return None
    try:
        text = perfect(template, row)
    except ValueError as error:
        report.fail("gold replay", "all", f"{error}. Correct rewards.gold_template.")
        return None
    for scorer in scorers:
        column = scorer.traits.gold_column
        if column is not None and not written_columns(template).intersection(gold_columns(row, column)):
            sentence = (
                f"the gold template writes no gold for {scorer.name}, which compares with the column {column}. "
                f"Put {{{column}}} into rewards.gold_template where the answer stands."
            )
            report.fail("gold replay", scorer.name, sentence)
            return None
    if not text.startswith(opening):
        sentence = (
            f"a gold in the asked format begins {shortened(text, 40)!r}, but the prompt's opening is "
            f"{opening!r}: no completion can be in that format. "
            "Let rewards.gold_template begin with prompt.opening."
        )
        report.fail("gold replay", "all", sentence)
        return None
    return template


def _check_shipped_cases(reward: LoadedReward, registered: str, conversational: bool, report: GateReport) -> None:
    """The project's own cases, with the parameters that each case names and not with the run's."""
    cases = shipped_cases(registered)
    functions = {id(case): load_reward(registered, case.parameters.get(registered)) for case in cases}
    scorers = {
        key: Scorer(LoadedReward(registered, function), conversational=conversational)
        for key, function in functions.items()
    }
    wrong = [_mismatch(scorers[id(case)], case, case.values[registered]) for case in cases]
    found = [sentence for sentence in wrong if sentence]
    if registered == "correctness":
        found += _wrong_golds(shipped_gold_cases())
    advice = "The reward is not the one that was tested: undo the change in rewards/, or install the project anew."
    _enter_cases("shipped cases", reward.name, len(cases), found, advice, report)


def _check_own_cases(rewards: Sequence[LoadedReward], path: Path, conversational: bool, report: GateReport) -> None:
    try:
        cases = read_cases(path)
    except ValueError as error:
        report.fail("own cases", "all", f"{error}. Correct the file that rewards.cases names.")
        return
    names = {reward.name for reward in rewards}
    for case in cases:
        unknown = [name for name in getattr(case, "values", {}) if name not in names and not is_registered(name)]
        if unknown:
            sentence = f"{case.where} has a value for {unknown[0]}, but the rewards are {', '.join(sorted(names))}."
            report.fail("own cases", "all", f"{sentence} Correct the name.")
            return
    for reward in rewards:
        of_this = [case for case in cases if isinstance(case, Case) and reward.name in case.values]
        if of_this and not isinstance(reward.function, str):
            scorers = [Scorer(_with_parameters(reward, case), conversational=conversational) for case in of_this]
            wrong = [_mismatch(one, case, case.values[reward.name]) for one, case in zip(scorers, of_this, strict=True)]
            advice = "Correct the reward, its parameters or the case."
            _enter_cases("own cases", reward.name, len(of_this), [one for one in wrong if one], advice, report)
    golds = [case for case in cases if isinstance(case, GoldCase)]
    if golds:
        advice = "Correct the case: golds are read by rewards.extract_hash_answer."
        _enter_cases("own cases", "golds", len(golds), _wrong_golds(golds), advice, report)


def _with_parameters(reward: LoadedReward, case: Case) -> LoadedReward:
    """`reward` as configured, or, one of the project's own, with the parameters that the case gives it."""
    given = case.parameters.get(reward.name)
    if given is None or reward.registered is None:
        return reward
    return replace(reward, function=load_reward(reward.registered, given, label=reward.name))


def _mismatch(scorer: Scorer, case: Case, expected: float | None) -> str | None:
    """What is wrong about a case, in words, or `None` where the reward gives what it says."""
    row = {**case.columns, "prompt": case.prompt}
    where = f"{case.where} ({case.note})" if case.note else case.where
    try:
        [value] = scorer([case.completion], [row])
    except RewardError as error:
        return f"{error}, in {where}"
    if value == expected or (None not in (value, expected) and math.isclose(value or 0.0, expected or 0.0)):
        return None
    return f"{scorer.name} gives {value} instead of {expected} in {where}: {shortened(repr(case.completion))}"


def _wrong_golds(cases: Sequence[GoldCase]) -> list[str]:
    wrong = []
    for case in cases:
        gold: str | None
        try:
            gold = extract_hash_answer(case.answer)
        except ValueError:
            gold = None
        if gold != case.gold:
            wrong.append(
                f"extract_hash_answer gives {gold!r} instead of {case.gold!r} in {case.where}: "
                f"{shortened(repr(case.answer))}"
            )
    return wrong


def _enter_cases(
    check_name: str, reward: str, count: int, found: Sequence[str], advice: str, report: GateReport
) -> None:
    if found:
        others = f" ({len(found)} of {count} cases are wrong)" if len(found) > 1 else ""
        report.fail(check_name, reward, f"{found[0]}{others}. {advice}")
    else:
        report.add(check_name, reward, "ok", f"{count} cases")
