"""The reward gate: right rewards pass on the real data, and each classic bug is caught with a sentence."""

import itertools
import json
import os
import random
import re
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from rewards import (
    combine,
    correctness_reward_func,
    extract_hash_answer,
    extract_xml_answer,
    length_reward_func,
    parse_number,
)
from rewards.registry import REGISTRY, load_reward
from rewards.traits import declare
from tasks import reward_properties
from tasks.reward_exploits import CATALOGUE, Task, honest_but_wrong
from tasks.reward_gate import GOLD_TEMPLATE, GateReport, LoadedReward, check
from tasks.reward_golds import fill, perturbed, respelled

GSM8K = ("correctness", "int", "soft_format", "strict_format", "xmlcount")


def row(number: int, gold: str, *, rationale: str = "I add them.\nThat is it.") -> dict[str, Any]:
    return {
        "id": f"made-{number}",
        "question": f"Anna has {number} shells and finds 5 more. How many has she?",
        "answer": gold,
        "rationale": rationale,
        "raw_answer": f"{rationale}\n#### {gold}",
    }


ROWS = [row(index, gold) for index, gold in enumerate(("12", "7", "-3", "1000", "25", "0", "18", "123456"))]


def real_rows(split: str) -> list[dict[str, Any]]:
    lines = (Path(os.environ["GSM8K_DIR"]) / f"{split}.jsonl").read_text().splitlines()
    return [
        {
            "id": f"{split}-{index}",
            "question": problem["question"],
            "answer": extract_hash_answer(problem["answer"]),
            "rationale": problem["answer"].partition("####")[0].strip(),
        }
        for index, problem in enumerate(map(json.loads, lines))
    ]


def synthetic_rows(count: int) -> list[dict[str, Any]]:
    generator = random.Random(7)
    golds = [generator.choice([generator.randint(0, 99), generator.randint(-9, 99_999)]) for _ in range(count)]
    return [row(index, str(gold)) for index, gold in enumerate(golds)]


def registered(*names: str) -> list[LoadedReward]:
    return [LoadedReward(name, load_reward(name), registered=name) for name in names]


def own(function: Callable[..., Any], **traits: Any) -> list[LoadedReward]:
    return [LoadedReward("mine", declare(**traits)(function))]


def per_completion(score: Callable[..., float | None], *columns: str) -> Callable[..., Any]:
    """A reward from what it gives to one text, with the row's values of `columns`."""

    def reward(prompts: Any, completions: Any, **values: Any) -> list[float | None]:
        texts = [completion[0]["content"] for completion in completions]
        golds = zip(*(values[column] for column in columns), strict=True) if columns else itertools.repeat(())
        return [score(text, *gold) for text, gold in zip(texts, golds, strict=False)]

    return reward


def sentence(report: GateReport) -> str:
    assert not report.ok
    assert len(report.failures) == 1, report.failures
    assert report.failures[0].rstrip().endswith(".")
    return report.failures[0]


def details(report: GateReport, check_name: str) -> list[str]:
    return [entry.detail for entry in report.rows if entry.check == check_name]


@pytest.fixture
def full_size() -> None:
    """Asks for hostile texts as long as in a run."""


@pytest.fixture(autouse=True)
def short_hostile_texts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "full_size" not in request.fixturenames:
        monkeypatch.setattr(reward_properties, "LONGEST", 2000)


# --- what is right passes


def test_all_golds_earn_full_marks_and_no_perturbed_one_earns_correctness() -> None:
    """On all 8,792 real rows where GSM8K_DIR names them, otherwise on made ones."""
    if "GSM8K_DIR" in os.environ:
        rows = [*real_rows("train"), *real_rows("test")]
        assert len(rows) == 8792
    else:
        rows = synthetic_rows(2000)
    report = check(registered(*GSM8K), rows, exploit_limit=0.75)
    assert report.failures == []
    count = len(rows)
    assert f"{count} of {count} golds earn 2" in details(report, "gold replay")
    assert details(report, "gold replay").count(f"{count} of {count} golds earn 0.5") == 4
    tried = 4 * count - sum(float(entry["answer"]) == 0 for entry in rows)
    assert details(report, "perturbed golds") == [f"none of {tried} wrong answers earns 2"]


@pytest.mark.parametrize("conversational", [True, False])
def test_the_opening_is_taken_off_the_golds_and_put_back_by_the_wrapper(conversational: bool) -> None:
    options: dict[str, Any] = {"opening": "<reasoning>\n", "conversational": conversational}
    assert check(registered(*GSM8K), ROWS, **options).ok


def test_lengths_alone_pass_without_golds_and_without_a_template() -> None:
    rows = [{"id": "1", "prompt": "SUBREDDIT: r/x TL;DR:", "completion": "a summary"}]
    report = check(registered("length", "long_completion"), rows, gold_template=None)
    assert report.ok
    assert {entry.result for entry in report.rows if entry.check == "gold replay"} == {"skipped"}
    assert not report.exploit_shares


def test_every_other_family_passes_with_the_template_of_its_format() -> None:
    rows = [{**entry, "ground_truth": gold} for entry, gold in zip(ROWS, ("\\frac{1}{2}", "3"), strict=False)]
    for name, template in {
        "boxed_accuracy": "{rationale}\n\\boxed{{ground_truth}}",
        "think_format": "<think>{rationale}</think><answer>{answer}</answer>",
        "sections_format": "<intro>a</intro><body>{rationale}</body><conclusion>{answer}</conclusion>",
    }.items():
        report = check(registered(name), rows, gold_template=template)
        assert report.failures == [], name


@pytest.mark.parametrize("column", ["answer", "ground_truth"])
def test_boxed_golds_may_be_written_under_either_name(column: str) -> None:
    rows = [{**entry, "ground_truth": entry["answer"]} for entry in ROWS]
    report = check(registered("boxed_accuracy"), rows, gold_template=f"so \\boxed{{{{{column}}}}}")
    assert report.failures == []
    assert details(report, "perturbed golds") == ["none of 31 wrong answers earns 1"]


def test_a_combination_is_replayed_as_a_whole() -> None:
    both = combine((correctness_reward_func, 1.0), (length_reward_func, 0.0), scale=0.5)
    report = check([LoadedReward("both", both)], ROWS, opening="<reasoning>\n")
    assert report.ok
    assert details(report, "gold replay") == ["8 of 8 golds earn 1"]


def test_an_async_reward_and_one_that_uses_what_trl_passes_are_called_as_trl_calls_them() -> None:
    async def reward(
        prompts: Any, completions: Any, trainer_state: Any, log_extra: Any, log_metric: Any, **_: Any
    ) -> list[float]:
        log_extra("seen", list(prompts))
        log_metric("step", trainer_state.global_step / trainer_state.max_steps)
        assert prompts[0][-1]["role"] == "user"
        return [1.0] * len(completions)

    assert check(own(reward, maximum=1.0), ROWS).ok


def test_a_reward_model_is_skipped_with_a_note() -> None:
    report = check([LoadedReward("judge", "org/reward-model"), *registered("xmlcount")], ROWS)
    assert report.ok
    assert details(report, "all") == ["org/reward-model is a reward model, which only the trainer loads"]


def test_a_reward_that_declares_nothing_is_only_run() -> None:
    report = check([LoadedReward("mine", per_completion(lambda text: float(len(text))))], ROWS)
    assert report.ok
    [detail] = details(report, "gold replay")
    assert detail.startswith("ran on 8 golds; it declares no maximum that they should earn, and does not look at the")
    assert "rewards.traits.declare(maximum=...)" in detail


def test_a_judge_that_samples_may_say_so_and_is_asked_less() -> None:
    judge = per_completion(lambda text: random.random())
    report = check(own(judge, deterministic=False), synthetic_rows(500))
    assert report.ok
    assert details(report, "gold replay")[0] == "on 64 of 500 rows, since it samples"
    assert [entry.result for entry in report.rows if entry.check == "linear time"] == ["skipped"]
    assert "asked the same again" in sentence(check(own(judge), ROWS))


# --- the classic bugs


def test_bug_gold_split_on_three_marks_in_the_data() -> None:
    rows = [{**entry, "answer": entry["raw_answer"].split("###")[1]} for entry in ROWS]
    said = sentence(check(registered("correctness"), rows))
    assert "holds '# 12' in row 0 (id made-0)" in said
    assert "split on fewer marks than its '####'" in said and "Split it on '####'" in said


def test_bug_gold_split_on_three_marks_in_the_reward() -> None:
    def score(text: str, raw: str) -> float:
        return 2.0 if extract_xml_answer(text).strip() == raw.split("###")[1].strip() else 0.0

    said = check(own(per_completion(score, "raw_answer"), maximum=2.0), ROWS).failures[0]
    assert "mine gives 0 instead of 2 to 8 of 8 golds written in the asked format, first to row 0 (id made-0)" in said


def test_a_reward_that_gives_golds_more_than_it_declares_is_held_to_its_word() -> None:
    def score(text: str, gold: str) -> float:
        return 3.0 if extract_xml_answer(text).strip().replace(",", "") == gold else 0.0

    said = check(own(per_completion(score, "answer"), maximum=1.0, gold_column="answer"), ROWS).failures[0]
    assert "mine gives 3, more than the maximum of 1 that it declares, to 8 of 8 golds, first to row 0" in said


def test_bug_commas_kept_in_the_gold() -> None:
    def score(text: str, gold: str) -> float:
        return 2.0 if extract_xml_answer(text).strip() == gold else 0.0

    rows = [*ROWS, row(8, "1,000")]
    said = sentence(check(own(per_completion(score, "answer"), maximum=2.0, gold_column="answer"), rows))
    assert "gives 0 instead of 2 where a gold is written" in said
    assert "compare values, not texts, and take commas out of both" in said


def test_bug_commas_kept_in_the_answer() -> None:
    def score(text: str, gold: str) -> float:
        return 2.0 if extract_xml_answer(text).strip() == gold.replace(",", "") else 0.0

    reward = own(per_completion(score, "answer"), maximum=2.0, gold_column="answer")
    said = sentence(check(reward, ROWS))
    assert "with commas between thousands" in said and "'1,000' for the gold '1000' of row 3 (id made-3)" in said


def test_bug_regular_expression_without_dotall() -> None:
    pattern = re.compile(r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>")
    reward = own(per_completion(lambda text: 0.5 if pattern.search(text) else 0.0), maximum=0.5)
    said = sentence(check(reward, ROWS))
    assert "mine gives 0 instead of 0.5 to 8 of 8 golds" in said
    assert "a regular expression without re.DOTALL?" in said


def test_bug_isdigit_refuses_negative_numbers() -> None:
    def score(text: str) -> float:
        return 0.5 if extract_xml_answer(text).strip().isdigit() else 0.0

    said = sentence(check(own(per_completion(score), maximum=0.5), ROWS))
    assert "to 1 of 8 golds" in said and "row 2 (id made-2)" in said
    assert "exactly the golds that are negative" in said


def test_bug_isdigit_accepts_a_superscript(monkeypatch: pytest.MonkeyPatch) -> None:
    def score(text: str) -> float:
        return 0.5 if extract_xml_answer(text).strip().lstrip("-").isdigit() else 0.0

    monkeypatch.setitem(REGISTRY, "int", declare(maximum=0.5)(per_completion(score)))
    report = check(registered("int"), [row(0, "1")])
    assert "shipped cases: int gives" in sentence(report)
    monkeypatch.setattr("tasks.reward_gate.shipped_cases", superscripts_only)
    said = sentence(check(registered("int"), [row(0, "1")]))
    assert "int gives 0.5 instead of 0.0 in gsm8k.jsonl:" in said and "a superscript" in said


def test_a_reward_that_does_not_suit_the_data_is_caught() -> None:
    said = sentence(check(registered("correctness", "int"), [*ROWS, row(8, "2.5")]))
    assert "int gives 0 instead of 0.5 to 1 of 9 golds" in said
    assert "exactly the golds that hold a decimal point" in said


def superscripts_only(name: str) -> list[Any]:
    from rewards.casefile import shipped_cases

    return [case for case in shipped_cases(name) if "\u00b2" in str(case.completion)]


# --- other mistakes in a reward that compares with the gold


@pytest.mark.parametrize(
    ("agree", "how"),
    [
        (lambda answer, gold: answer.startswith(gold), "times ten plus one"),
        (lambda answer, gold: gold in answer.split(), "' or 5' appended"),
        (lambda answer, gold: answer.lstrip("-") == gold.lstrip("-"), "sign flipped"),
        (lambda answer, gold: answer.isdigit() and int(answer) - int(gold) in (0, 1), "plus one"),
    ],
    ids=["prefix", "contains", "absolute", "off by one"],
)
def test_a_reward_that_pays_for_a_wrong_answer_is_caught(agree: Callable[[str, str], bool], how: str) -> None:
    def score(text: str, gold: str) -> float:
        return 2.0 if agree(extract_xml_answer(text).strip().replace(",", ""), gold) else 0.0

    reward = own(per_completion(score, "answer"), maximum=2.0, gold_column="answer")
    report = check(reward, [row(0, "12"), row(1, "40")])
    found = [failure for failure in report.failures if failure.startswith("perturbed golds")]
    assert any(f"to a wrong answer (the gold, {how}) in 2 of 2 rows, first" in failure for failure in found)


# --- a function of the user's own that declares nothing


def undeclared(score: Callable[..., float | None], *columns: str) -> list[LoadedReward]:
    return [LoadedReward("mine", per_completion(score, *columns))]


def test_one_that_compares_rightly_passes_and_is_said_to_look_at_the_gold() -> None:
    def score(text: str, gold: str) -> float:
        return 1.0 if parse_number(extract_xml_answer(text)) == parse_number(gold) else -0.5

    report = check(undeclared(score, "answer"), ROWS)
    assert report.failures == []
    assert details(report, "gold replay") == ["it looks at answer, and each gold earns more than 31 wrong answers"]


UNDECLARED_BUGS: dict[str, tuple[Callable[[str, str], bool], str, tuple[str, ...]]] = {
    "gold split on three marks": (
        lambda text, raw: extract_xml_answer(text).strip() == raw.split("###")[1].strip(),
        "raw_answer",
        ("mine gives 0 to every completion tried, the golds in the asked format among them",),
    ),
    "commas kept": (
        lambda text, gold: extract_xml_answer(text).strip() == gold,
        "answer",
        ("gives 0 instead of 1 where a gold is written with commas between thousands", "take commas out of both"),
    ),
    "no DOTALL": (
        lambda text, gold: bool(re.search(rf"<answer>.*{gold}.*</answer>", text)),
        "answer",
        ("looks at answer, but gives 8 of 8 golds", "no more than a wrong answer (0)", "without re.DOTALL?"),
    ),
    "isdigit": (
        lambda text, gold: (answer := extract_xml_answer(text).strip().replace(",", "")).isdigit() and answer == gold,
        "answer",
        ("gives 1 of 8 golds written in the asked format no more", "row 2 (id made-2)", "golds that are negative"),
    ),
    "contains": (
        lambda text, gold: gold in extract_xml_answer(text).replace(",", "").split(),
        "answer",
        ("gives as much as for the gold, 1 to a wrong answer (the gold, ' or 5' appended) in 8 of 8 rows",),
    ),
}


@pytest.mark.parametrize(("agrees", "column", "words"), UNDECLARED_BUGS.values(), ids=UNDECLARED_BUGS.keys())
def test_a_classic_bug_in_it_stops_the_run(
    agrees: Callable[[str, str], bool], column: str, words: tuple[str, ...]
) -> None:
    said = sentence(check(undeclared(lambda text, gold: float(agrees(text, gold)), column), ROWS))
    assert all(part in said for part in words), said


def test_the_gold_is_found_by_what_changes_though_no_argument_names_it() -> None:
    def reward(prompts: Any, completions: Any, **columns: Any) -> list[float]:
        texts = [completion[0]["content"] for completion in completions]
        return [float(gold in text) for text, gold in zip(texts, columns["ground_truth"], strict=True)]

    rows = [{**entry, "ground_truth": entry["answer"]} for entry in ROWS]
    failures = check([LoadedReward("mine", reward)], rows, gold_template="so {answer}").failures
    assert any("as much as for the gold, 1 to a wrong answer (the gold, ' or 5' appended)" in one for one in failures)


@pytest.mark.parametrize("value", [0.0, 1.0, None])
def test_one_that_gives_the_same_to_everything_stops_the_run_unless_it_says_that_it_is_meant(
    value: float | None,
) -> None:
    said = sentence(check(undeclared(lambda text: value), ROWS))
    shown = "None (not applicable)" if value is None else f"{value:g}"
    assert f"mine gives {shown} to every completion tried" in said and "declare(rare=True)" in said
    # Where it applies to nothing, any maximum will do.
    report = check(own(per_completion(lambda text: value), maximum=1.0 if value is None else value), ROWS)
    assert report.ok
    assert [entry.result for entry in report.rows if entry.check == "variety"] == ["note"]


def test_a_bonus_for_what_no_gold_holds_says_so_and_is_let_through() -> None:
    thanks = per_completion(lambda text: 1.0 if "please" in text.casefold() else 0.0)
    for declared in ({"rare": True}, {"rare": True, "maximum": 1.0}):
        report = check(own(thanks, **declared), ROWS)
        assert report.ok
        assert details(report, "gold replay") == ["it declares that golds need not hold what it pays for"]
    assert "mine gives 0 instead of 1" in sentence(check(own(thanks, maximum=1.0), ROWS))


def test_a_slow_one_is_replayed_on_as_many_rows_as_there_is_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def score(text: str) -> float:
        time.sleep(0.001)
        return 1.0 if "<answer>" in text else 0.0

    monkeypatch.setattr("tasks.reward_golds.SECONDS", 0.5)
    report = check(own(per_completion(score), maximum=1.0), synthetic_rows(1000))
    assert report.ok
    [sampled, replayed] = details(report, "gold replay")
    assert sampled == "on 64 of 1000 rows, since it is slow"
    assert replayed == "64 of 64 golds earn 1"


def test_a_reward_that_raises_names_the_row() -> None:
    def score(text: str, gold: str) -> float:
        return float(int(gold) < 10**9)

    said = sentence(check(own(per_completion(score, "answer"), maximum=1.0), [*ROWS[:4], row(4, "2.5"), *ROWS]))
    assert "reward mine: raised ValueError: invalid literal" in said
    assert "on row 4 (id made-4), completion '<reasoning>" in said


def test_a_column_that_the_data_lacks_is_named() -> None:
    said = sentence(check(registered("boxed_accuracy"), ROWS))
    assert "'ground_truth', which the data lacks (it has id, question, answer, rationale, raw_answer)" in said


def test_an_argument_of_ones_own_reward_that_is_no_column_is_named() -> None:
    def mine(prompts: Any, completions: Any, anwser: Any, **columns: Any) -> list[float]:
        return [1.0] * len(completions)

    said = sentence(check([LoadedReward("mine", mine)], ROWS))
    assert "mine asks for the column 'anwser', which the data lacks (it has id, question, answer" in said


LETTERS = [{**entry, "answer": gold, "ground_truth": gold} for entry, gold in zip(ROWS, "ABCDABDC", strict=True)]
BOXED = "It is \\boxed{{answer}}"


def test_golds_that_are_no_numbers_are_exchanged_for_those_of_other_rows() -> None:
    def any_letter(text: str) -> float:
        return float(text.partition("boxed{")[2][:2] in ("A}", "B}", "C}", "D}"))

    assert check(registered("boxed_accuracy"), LETTERS, gold_template=BOXED).ok
    ignoring = own(per_completion(any_letter), maximum=1.0, gold_column="answer")
    said = check(ignoring, LETTERS, gold_template=BOXED).failures[0]
    assert "gives its full 1 to a wrong answer (the gold, that of another row) in 8 of 8 rows, first 'B'" in said


def test_what_is_near_enough_may_be_declared_as_right() -> None:
    def near(text: str, gold: str) -> float:
        value = parse_number(extract_xml_answer(text))
        return float(value is not None and abs(value - Decimal(gold)) <= abs(Decimal(gold)) / 100)

    reward = per_completion(near, "answer")
    said = sentence(check(own(reward, maximum=1.0, gold_column="answer"), ROWS))
    assert "(the gold, plus one)" in said and "declares exact=False" in said
    assert check(own(reward, maximum=1.0, gold_column="answer", exact=False), ROWS).failures == []


def test_a_declaration_of_nothing_is_none() -> None:
    contains = own(per_completion(lambda text, gold: float(gold in text), "answer"))
    assert any("' or 5' appended" in failure for failure in check(contains, ROWS).failures)


@pytest.mark.parametrize("weight", [-1.0, 0.0])
def test_weights_by_which_being_right_does_not_pay_stop_the_run(weight: float) -> None:
    [correct] = registered("correctness")
    said = sentence(check([LoadedReward("correctness", correct.function, weight, "correctness")], ROWS))
    assert "being right does not pay. Correct the weights in rewards.functions" in said


def test_the_limit_for_exploits_counts_for_a_reward_without_a_maximum_too() -> None:
    reward = undeclared(lambda text: 0.1 + text.count("so so") * 0.01 + 0.05 * ("<answer>" in text))
    assert check(reward, ROWS).ok
    failures = check(reward, ROWS, exploit_limit=2.0).failures
    assert failures and all("'padding' earns" in failure for failure in failures)


def test_the_hint_of_dotall_is_given_only_where_line_breaks_matter() -> None:
    def first_only(prompts: Any, completions: Any, **_: Any) -> list[float]:
        return [1.0] + [0.0] * (len(completions) - 1)

    failures = check(own(first_only, maximum=1.0), ROWS).failures
    assert failures and "DOTALL" not in " ".join(failures)


def test_a_reward_that_exits_is_named_like_one_that_raises() -> None:
    def score(text: str) -> float:
        raise SystemExit(3)

    said = sentence(check(undeclared(score), ROWS))
    assert re.search(r"reward mine: raised SystemExit: 3 \(test_reward_gate.py, line \d+\) on row 0", said)


# --- properties


def test_a_reward_that_remembers_is_caught() -> None:
    seen: set[str] = set()

    def score(text: str) -> float:
        known = text in seen
        seen.add(text)
        return float(known)

    assert "asked the same again" in sentence(check(own(per_completion(score)), ROWS, gold_template=None))


def test_a_reward_that_ranks_its_batch_is_caught() -> None:
    def reward(completions: Any, **_: Any) -> list[float]:
        longest = max(len(completion[0]["content"]) for completion in completions)
        return [float(len(completion[0]["content"]) == longest) for completion in completions]

    said = sentence(check(own(reward), ROWS, gold_template=None))
    assert "among others and 1.0 to it alone" in said


def test_a_reward_that_looks_at_its_neighbour_is_caught() -> None:
    def reward(completions: Any, **_: Any) -> list[float]:
        return [float(index % 2) for index in range(len(completions))]

    assert "in another order" in sentence(check(own(reward), ROWS, gold_template=None))


def test_a_reward_that_changes_its_arguments_is_caught() -> None:
    def reward(completions: Any, **_: Any) -> list[float]:
        for completion in completions:
            completion[0]["content"] = completion[0]["content"].strip()
        return [0.0] * len(completions)

    assert "changes its argument completions" in sentence(check(own(reward), ROWS, gold_template=None))


def test_a_reward_above_its_declared_maximum_is_caught() -> None:
    reward = per_completion(lambda text: 1.0 + text.count("<answer>"))
    assert "more than the maximum of 2" in sentence(check(own(reward, maximum=2.0), ROWS, gold_template=None))


def test_a_value_that_is_not_finite_is_caught() -> None:
    reward = per_completion(lambda text: float(text) if "1e309" in text and "<" not in text else 0.0)
    monstrous = [{**ROWS[0], "answer": "1e309"}]
    assert check(own(per_completion(lambda text: float("nan"))), monstrous, gold_template=None).failures
    report = check(own(reward), monstrous, gold_template="{answer}")
    assert "returned inf, which is neither a finite number nor None" in sentence(report)


@pytest.mark.usefixtures("full_size")
def test_a_regular_expression_that_takes_quadratic_time_is_caught() -> None:
    pattern = re.compile(r"(\s+)$")
    reward = own(per_completion(lambda text: float(bool(pattern.search(text + "x")))))
    said = sentence(check(reward, ROWS, gold_template=None))
    assert "its time grows faster than its input" in said and "characters of ' '" in said


@pytest.mark.usefixtures("full_size")
def test_what_takes_no_time_on_the_longest_completion_is_no_danger() -> None:
    pattern = re.compile(r"<answer>\s*(.*?)\s*</answer>", re.DOTALL)  # quadratic where "<answer>" is repeated

    def score(text: str) -> float:
        found = pattern.search(text)
        return float(found is not None and found[1] != "")

    reward = own(per_completion(score), maximum=1.0)
    assert check(reward, ROWS, longest=384 * 8).failures == []
    said = sentence(check(reward, ROWS))
    assert "characters of '<answer>'" in said and "text.rpartition('<answer>')" in said


@pytest.mark.usefixtures("full_size")
def test_a_slow_reward_that_is_linear_is_not_taken_for_quadratic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_properties, "_HOSTILE", ("<",))

    def score(text: str) -> float:
        return float(sum(character == "<" for character in text * 100) > 1)

    assert check(own(per_completion(score)), ROWS, gold_template=None).ok


# --- exploits


def test_every_exploit_is_in_the_table_with_its_share() -> None:
    report = check(registered(*GSM8K), ROWS)
    assert set(report.exploit_shares) == set(CATALOGUE)
    assert report.exploit_shares["empty"] == 0.0
    assert report.exploit_shares["format without content"] == pytest.approx(1.0 / 4.0)
    honest = details(report, "exploits")[0]
    assert honest == "honest but wrong: 2 (50% of the maximum)"


@pytest.mark.parametrize("gold", ["8", "1000", "-3", "2.5"])
def test_an_honest_but_wrong_answer_does_not_hold_the_gold(gold: str) -> None:
    rationale = f"It is 18, then 8.5 of 80, and {float(gold):,g}. So {gold}, that is ${gold}."
    text = honest_but_wrong(Task(GOLD_TEMPLATE, ("answer",), "1"), row(0, gold, rationale=rationale))
    wrong = perturbed(gold)["plus one"]
    assert f"So {wrong}, that is ${wrong}." in text and f"and {wrong}." in text
    assert "It is 18, then 8.5 of 80" in text
    assert f"<answer>\n{wrong}\n</answer>" in text


def test_an_exploit_that_pays_is_noted_and_above_the_limit_it_stops_the_run() -> None:
    def score(text: str, gold: str) -> float:
        return 2.0 if gold in text.replace("<", " ").split() else 0.0

    reward = own(per_completion(score, "answer"), maximum=2.0)
    rows = [row(index, str(40 + index)) for index in range(8)]
    report = check(reward, rows)
    assert report.ok
    noted = [entry.detail for entry in report.rows if entry.result == "note"]
    assert any(detail.startswith("every number from 0 to 999 listed: 2 (100%") for detail in noted)
    stopped = check(reward, rows, exploit_limit=0.9)
    assert "the degenerate completion 'every number from 0 to 999 listed' earns 2 (100% of the maximum)" in " ".join(
        stopped.failures
    )
    assert all("honest but wrong answer" in failure for failure in stopped.failures)


def test_weights_count_in_the_share() -> None:
    [correct, tags] = registered("correctness", "xmlcount")
    light = [correct, LoadedReward("xmlcount", tags.function, weight=0.5, registered="xmlcount")]
    shares = check(light, ROWS).exploit_shares
    assert shares["format without content"] == pytest.approx(0.5 * 0.5 / (2.0 + 0.5 * 0.5))


# --- cases, templates, the report


def test_the_users_cases_are_held_against_the_reward_as_it_is_configured(tmp_path: Path) -> None:
    cases = tmp_path / "cases.yaml"
    cases.write_text("- {completion: abc, length: -7}\n- {completion: '', length: -9, note: empty}\n")
    reward = [LoadedReward("length", load_reward("length", {"target": 10}), registered="length")]
    said = sentence(check(reward, ROWS, own_cases=cases))
    assert said == (
        "own cases: length gives -10.0 instead of -9.0 in cases.yaml:2 (empty): ''. "
        "Correct the reward, its parameters or the case."
    )
    cases.write_text("- {completion: abc, length: -1, parameters: {length: {target: 4}}}\n")
    assert check(reward, ROWS, own_cases=cases).failures == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"completion": "a"}', "cases.jsonl:1: the case names no reward"),
        (
            '{"completion": "a", "lenght": 1}',
            "cases.jsonl:1 has a value for lenght, but the rewards are length",
        ),
        ('{"kind": "gold", "answer": "#### 1", "gold": "2"}', "extract_hash_answer gives '1' instead of '2'"),
    ],
)
def test_a_cases_file_that_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    cases = tmp_path / "cases.jsonl"
    cases.write_text(text)
    assert problem in sentence(check(registered("length"), ROWS, own_cases=cases))


def test_a_template_is_filled_whatever_the_rationale_holds() -> None:
    odd = row(0, "5", rationale="Take {answer} and {0} of {{x}}; \\1 and 100%.")
    assert fill(GOLD_TEMPLATE, odd).startswith("<reasoning>\nTake {answer} and {0} of {{x}}; \\1 and 100%.\n</reas")
    assert check(registered(*GSM8K), [odd]).ok


def test_a_template_that_cannot_be_right_is_explained() -> None:
    said = sentence(check(registered("correctness"), ROWS, gold_template="<answer>{anwser}</answer>"))
    assert "asks for the column 'anwser', which the data lacks" in said
    said = sentence(check(registered("correctness"), ROWS, gold_template="<answer>{rationale}</answer>"))
    assert "writes no gold for correctness, which compares with the column answer. Put {answer} into" in said
    said = sentence(check(registered("correctness"), ROWS, opening="<think>"))
    assert "the prompt's opening is '<think>'" in said


def test_golds_are_spoiled_and_respelled_exactly() -> None:
    assert perturbed("1" * 40)["plus one"] == "1" * 39 + "2"
    assert perturbed("18") == {
        "' or 5' appended": "18 or 5",
        "plus one": "19",
        "times ten plus one": "181",
        "sign flipped": "-18",
    }
    assert perturbed("5.0")["' or 6' appended"] == "5.0 or 6"  # where "or 5" would say the same again
    assert "sign flipped" not in perturbed("0") and "sign flipped" not in perturbed("0.0")
    assert perturbed("-0.5")["sign flipped"] == "0.5"
    assert set(perturbed("\\frac{1}{2}")) == {"' or 5' appended"}
    assert respelled("18") == {}
    assert respelled("-12345.5") == {"with commas between thousands": "-12,345.5"}
    assert respelled("$1,000") == {"without marks": "1000", "with commas between thousands": "1,000"}
    assert respelled("2x") == respelled("1/2") == respelled("\u221a2") == respelled("Monday") == {}


def test_no_rows_are_a_failure() -> None:
    assert "no rows" in sentence(check(registered("correctness"), []))


def test_what_is_being_checked_is_told_before_it_is() -> None:
    told: list[str] = []
    check(registered("xmlcount"), ROWS, progress=told.append)
    assert told == [
        "shipped cases of xmlcount",
        "gold replay of xmlcount",
        "properties of xmlcount",
        "linear time of xmlcount",
        "exploits",
    ]


def test_the_table_reads_in_a_terminal_and_in_markdown() -> None:
    reward = own(per_completion(lambda text: 0.0 if "|" not in text else 1.0), maximum=1.0)
    report = check(reward, [row(0, "5", rationale="a|b\nc"), row(1, "6")])
    text = report.to_text(width=80)
    assert text.splitlines()[0].split() == ["check", "reward", "result", "detail"]
    assert all(len(line) <= 80 for line in text.splitlines())
    longest = max((row.detail for row in report.rows), key=len)
    assert len(longest) > 80 and " ".join(longest.split()) in " ".join(text.split())
    markdown = report.to_markdown()
    assert markdown.startswith("| check | reward | result | detail |\n| --- |")
    assert len(markdown.splitlines()) == 2 + len(report.rows)


def test_correctness_is_checked_by_its_shipped_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    def lenient(prompts: Any, completions: Any, answer: Any, **columns: Any) -> list[float]:
        values = correctness_reward_func(prompts, completions, answer)
        texts = [completion[0]["content"] for completion in completions]
        return [
            2.0 if f"<answer>{gold}" in text else value for value, text, gold in zip(values, texts, answer, strict=True)
        ]

    monkeypatch.setitem(REGISTRY, "correctness", declare(maximum=2.0, gold_column="answer")(lenient))
    failures = check(registered("correctness"), ROWS).failures
    assert failures and failures[0].startswith("shipped cases: correctness gives 2.0 instead of 0.0 in gsm8k.jsonl:")


# --- what reviewers got through


def test_a_reward_that_applies_to_no_gold_is_caught_whatever_it_declares() -> None:
    """A regular expression without DOTALL, and None where it finds nothing."""

    def score(text: str, answer: str) -> float | None:
        found = re.search(r"<answer>(.*?)</answer>", text)
        return None if found is None else 2.0 * (found[1].strip() == answer)

    for traits in ({}, {"maximum": 2.0, "gold_column": "answer"}):
        mine = own(per_completion(score, "answer"), **traits)
        said = sentence(check(registered("correctness") + mine, ROWS))
        assert "mine gives None (not applicable) to each of 8 golds" in said and "re.DOTALL" in said


@pytest.mark.parametrize("form", ["default", "keyword", "raw_answer"])
def test_a_reward_that_asks_for_the_gold_in_whatever_form_is_held_to_it(form: str) -> None:
    """It never finds the gold equal, and pays a little for the format."""

    def values(completions: Any, golds: Any) -> list[float]:
        texts = [completion[0]["content"] for completion in completions]
        return [
            1.0 if extract_xml_answer(text) == f"# {gold}" else 0.1 * ("<answer>" in text)
            for text, gold in zip(texts, golds, strict=True)
        ]

    def with_default(prompts: Any, completions: Any, answer: Any = None, **_: Any) -> list[float]:
        return values(completions, answer)

    def by_keyword(prompts: Any, completions: Any, *, answer: Any, **_: Any) -> list[float]:
        return values(completions, answer)

    def of_the_source(prompts: Any, completions: Any, raw_answer: Any, **_: Any) -> list[float]:
        return values(completions, [text.split("###")[1] for text in raw_answer])

    function = {"default": with_default, "keyword": by_keyword, "raw_answer": of_the_source}[form]
    said = sentence(check([LoadedReward("mine", function)], ROWS))
    assert "mine looks at answer, but gives 8 of 8 golds" in said


@pytest.mark.parametrize("pattern", [r"[\d,.]+", r"\S*\d"])
def test_a_reward_that_raises_on_an_odd_answer_in_the_asked_format_is_caught(pattern: str) -> None:
    def score(text: str) -> float:
        found = re.search(rf"\n<answer>\n({pattern})\n</answer>", text)
        return 0.0 if found is None else min(1.0, abs(float(found[1].replace(",", ""))))

    said = sentence(check(own(per_completion(score)), ROWS))
    assert "mine: raised ValueError: could not convert string to float" in said


def test_a_reward_that_counts_a_completion_among_the_others_is_caught() -> None:
    def diversity(prompts: Any, completions: Any, **_: Any) -> list[float]:
        texts = [completion[0]["content"] for completion in completions]
        return [1 / texts.count(text) - 0.001 * len(text) for text in texts]

    said = sentence(check([LoadedReward("mine", diversity)], ROWS))
    assert "where it comes twice" in said or "among others" in said


def test_what_says_only_that_it_samples_must_not_give_the_same_to_all() -> None:
    said = sentence(check(own(per_completion(lambda text: 1.0), deterministic=False), ROWS))
    assert "mine gives 1 to every completion tried" in said


def test_rows_without_a_worked_solution_can_be_written_in_the_asked_format() -> None:
    rows = [row(index, gold, rationale="") for index, gold in enumerate(("12", "7", "-3", "1000"))]
    assert check(registered(*GSM8K), rows).failures == []
    # The stand-in is for golds; an exploit that writes nothing writes nothing.
    task = Task(GOLD_TEMPLATE, ("answer",), ("12",))
    assert CATALOGUE["format without content"](task, rows[0]) == "<reasoning>\n\n</reasoning>\n<answer>\n\n</answer>"


def test_golds_that_mean_the_same_in_other_words_are_no_wrong_answers() -> None:
    golds = ("0.5", "\\frac{1}{2}", "3", "2^\\circ", "2", "3,5,7", "5^\\circ")
    rows = [row(index, gold) | {"ground_truth": gold} for index, gold in enumerate(golds)]
    template = "It is \\boxed{{answer}}"
    assert check(registered("boxed_accuracy"), rows, gold_template=template).failures == []


def test_the_trainers_state_has_every_field_that_a_reward_may_read() -> None:
    from transformers import TrainerState

    from tasks.reward_scoring import Scorer

    state = Scorer(registered("int")[0]).arguments(["a"], [ROWS[0]])["trainer_state"]
    missing = {name for name in vars(TrainerState()) if not hasattr(state, name)}
    assert missing <= {"trial_name", "trial_params", "stateful_callbacks"}
    assert state.log_history == []
