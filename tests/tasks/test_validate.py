"""Rows in these tests are synthetic; those of GSM8K are read from the folder that GSM8K_DIR names."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tasks.config import DataSettings, SampleSettings, ValidationSettings
from tasks.errors import UserError
from tasks.ingest import ingest
from tasks.run import PROJECT, Run, read_json
from tasks.validate import SHOWN_FAILURES, gate_numbers, gate_table, validate


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    """A store of the test's own."""
    monkeypatch.setenv("GRPO_RUNS", str(tmp_path / "runs"))


@pytest.fixture
def run_folder(store):
    return Run.open("a-run")


@pytest.fixture
def report(run_folder):
    return run_folder.folder / "validation"


def row(number, **more):
    return {
        "question": f"Tom has {number} pens and buys 4 more. How many pens does he have?",
        "answer": f"Tom has {number}+4=<<{number}+4={number + 4}>>{number + 4} pens.\n#### {number + 4}",
    } | more


@pytest.fixture
def gate(tmp_path, run_folder):
    """Ingest `train` and `test` and validate them; `settings` belong to either section."""

    def check(train=None, test=None, **settings):
        source = tmp_path / "source"
        source.mkdir(exist_ok=True)
        for name, rows in (("train", train or good(0, 60)), ("test", test or good(60, 80))):
            (source / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        ours = {name: settings.pop(name) for name in list(settings) if name in ValidationSettings.model_fields}
        data = DataSettings(path=source, **settings)
        return validate(run_folder, ingest(data), data, ValidationSettings(**ours))

    return check


def good(first, last):
    return [row(number) for number in range(first, last)]


def with_row(number, **changes):
    """Good training rows, the one with this number (from 1) changed."""
    rows = good(0, 60)
    rows[number - 1] |= changes
    return rows


def refusal_of(gate, *args, **kwargs):
    with pytest.raises(UserError) as refusal:
        gate(*args, **kwargs)
    return str(refusal.value)


def test_good_data_passes_every_expectation_on_both_splits(gate):
    expectations = gate()["expectations"]
    assert all(result["success"] for result in expectations)
    assert {result["split"] for result in expectations} == {"train", "test"}
    assert {result["unexpected"] for result in expectations} == {0, None}


def test_data_without_any_mark_is_told_of_the_other_places_of_a_gold(gate):
    hint = "Where an answer is the gold alone, set data.gold=plain; where it holds none, data.gold=none"
    plain = [row(number, answer=f"{number + 4}") for number in range(60)]
    assert hint in refusal_of(gate, train=plain)
    assert hint not in refusal_of(gate, train=[*plain[:59], row(59)])
    gate(train=plain, test=[row(number, answer=f"{number + 4}") for number in range(60, 80)], gold="plain")


def test_made_problems_pass(run_folder):
    data = DataSettings(samples=SampleSettings(train=300, test=50, steps=2))
    found = validate(run_folder, ingest(data), data, ValidationSettings())
    assert found["statistics"]["test"]["rows"] == 50


QUESTION_LENGTH = "every question has 10 to 4000 characters (validation.question_characters)"
ANSWER_LENGTH = "every answer has 1 to 8000 characters (validation.answer_characters)"
BAD = {
    "a missing question": ({"question": None}, "no question is missing", "row 7: null"),
    "a blank question": ({"question": " \n\t" * 9}, "no question is blank", r"row 7: ' \n\t"),
    "a question of what takes no space": (
        {"question": "\u200b \u2060\xa0\ufeff" * 5},
        "no question is blank",
        r"row 7: '\u200b \u2060\xa0\ufeff",
    ),
    "a short question": (
        {"question": "Why 3?"},
        "every question has 10 to 4000 characters (validation.question_characters)",
        "row 7: 'Why 3?'",
    ),
    "a long question": (
        {"question": "Why? " * 900},
        "every question has 10 to 4000 characters (validation.question_characters)",
        "row 7: 'Why? Why?",
    ),
    "a missing answer": ({"answer": None}, "no answer is missing", "row 7: null"),
    "a blank answer": ({"answer": "  "}, "no answer is blank", "row 7: '  '"),
    "a long answer": (
        {"answer": "so " * 3000 + "#### 3"},
        "every answer has 1 to 8000 characters (validation.answer_characters)",
        "so so #### 3'",
    ),
    "no mark": ({"answer": "It is 5."}, "every answer has exactly one ####", "row 7: 'It is 5.'"),
    "two marks": ({"answer": "#### 4 #### 5"}, "every answer has exactly one ####", "row 7: '#### 4 #### 5'"),
    "a gold in words": ({"answer": "#### five"}, "every gold is one number behind ####", "row 7: '#### five'"),
    "no gold": ({"answer": "It is 5. ####"}, "every gold is one number behind ####", "row 7: 'It is 5. ####'"),
    "two golds": ({"answer": "#### 5 6"}, "every gold is one number behind ####", "row 7: '#### 5 6'"),
}


@pytest.mark.parametrize(("changes", "expectation", "shown"), BAD.values(), ids=BAD.keys())
def test_a_bad_row_is_named_with_the_expectation_it_breaks(gate, changes, expectation, shown):
    message = refusal_of(gate, with_row(7, **changes))
    (line,) = [line for line in message.split("\n") if f"train: expected that {expectation}, but 1 row" in line]
    assert shown in line


@pytest.mark.parametrize("gold", ["five", "5 6", ""])
def test_one_thing_wrong_is_one_line(gate, gold):
    lines = refusal_of(gate, with_row(7, answer=f"#### {gold}")).split("\n")
    assert len(lines) == 2 and lines[1].startswith("Mend or remove these rows of the folder")


def test_one_mark_is_counted_as_python_counts_it():
    from tasks.expectations import ONE_MARK

    texts = ["#### 1", "a\n####\nb", "##### 1", "### 1", "", "#### ####", "########", "a####b\n####"]
    assert [bool(re.search(ONE_MARK, text)) for text in texts] == [text.count("####") == 1 for text in texts]


@pytest.mark.parametrize(
    "again",
    [
        "TOM  HAS 0 pens and BUYS\t4 more. How many pens does he have?",
        "Tom has 0 pens, and buys 4 more: how many pens does he have",
        "Tom has 0 “pens” and buys 4 more. How many pens does he have?",
        "Tom has 0 pens and buys 4 more! How many​ pens does he have？",
    ],
    ids=["case and white space", "punctuation", "quotation marks", "other punctuation and no space"],
)
def test_a_question_asked_twice_is_named_with_the_row_that_it_repeats(gate, again):
    message = refusal_of(gate, with_row(40, question=again))
    assert "every question is unique, whatever its case, white space and punctuation, but 1 row does not" in message
    assert f"row 40: {again[:40]!r}" in message and "(asked in row 1 too)" in message


@pytest.mark.parametrize(("one", "other"), [("+", "-"), ("1.5 +", "15 +"), ("-7 +", "7 +"), ("x' +", "x +")])
def test_signs_and_points_within_numbers_tell_questions_apart(gate, one, other):
    rows = good(0, 60)
    rows[3]["question"], rows[30]["question"] = (f"How much is 12 {sign} 7, Tom?" for sign in (one, other))
    gate(rows)


def test_a_training_row_that_asks_a_test_question_is_named_with_it(gate):
    leaked = row(3, question=row(3)["question"].lower() + " ")
    message = refusal_of(gate, test=[*good(60, 70), leaked])
    assert message.startswith("train: expected that no question is asked in test too, and train gives away no more")
    assert "row 4: 'Tom has 3 pens" in message and "(as in row 11 of test)" in message


LONG = (
    "A farmer drives {a} red tractors over {b} muddy fields before lunch, and after that her brother sells the {c} "
    "oldest ones of them to a dealer from the next town. How many tractors are left?"
)


def test_a_test_question_of_which_train_has_most_is_found_though_the_numbers_differ(gate):
    test = [*good(60, 70), row(70, question=LONG.format(a=9, b=3, c=2))]
    rows = with_row(20, question=LONG.format(a=9, b=3, c=4))
    words = LONG.split()
    shared = 1 - 8 / (len(words) - 7)  # the number that differs stands in eight sequences of eight words
    assert gate(rows, test, max_shared_ngrams=0.75)["overlap"]["largest_share"] == shared
    message = refusal_of(gate, rows, test, max_shared_ngrams=0.7)
    assert "train gives away no more than 70% of one (by 8 words in a row), but 1 row does not fit: row 20:" in message
    assert "(as in row 11 of test)" in message
    assert "set validation.max_shared_ngrams=null" in message


def test_questions_from_a_template_are_refused_in_little_time_and_memory(gate):
    """Every row meets every test question: all n-grams but those with the number are the same."""
    text = " ".join(f"word{number}" for number in range(70))
    train = [row(n, question=f"{text} {n} apples?") for n in range(3000)]
    test = [row(n, question=f"{text} {n} apples?") for n in range(3000, 3400)]
    message = refusal_of(gate, train, test)
    assert "train gives away no more than 80% of one" in message
    assert "set validation.max_shared_ngrams=null" in message


def test_scripts_without_spaces_are_compared_by_their_characters(gate):
    asked = "小明有{}个苹果，他又买了三个，现在一共有多少个苹果"
    train = with_row(20, question=asked.format("五"))
    test = [*good(60, 70), row(70, question=asked.format("五") + "呢")]
    assert "row 20:" in refusal_of(gate, train, test) and gate(good(0, 60), test)


def test_what_test_shares_with_train_is_counted(gate):
    result = gate(test=[row(70, question=LONG.format(a=1, b=2, c=3)), *good(60, 70)])
    assert result["overlap"]["questions_sharing"] == 10  # all but the long one
    assert result["notes"] == [
        "10 of 11 test questions share eight words in a row with train, at most 57% of them (row 2; the limit is 80%)"
    ]


def test_rows_are_numbered_as_in_the_source_though_validation_was_taken_out(gate):
    rows = good(0, 60)
    numbers = range(21, 31)
    for number in numbers:
        rows[number - 1]["answer"] = f"bad {number}"
    message = refusal_of(gate, rows, validation_share=0.5, max_rows_named=10)
    named = ", ".join(f"row {number}: 'bad {number}'" for number in numbers)
    assert f"10 rows do not fit: {named}\n" in message


def test_only_so_many_rows_are_named_and_the_others_counted(gate):
    rows = [row(number, answer=f"bad {number}") for number in range(60)]
    message = refusal_of(gate, rows, max_rows_named=2)
    assert "but 60 rows do not fit: row 1: 'bad 0', row 2: 'bad 1' and 58 more" in message


def test_all_that_is_wrong_is_said_at_once_and_fits_on_a_screen(gate):
    rows = [
        {"question": None, "answer": None},
        {"question": "?", "answer": ""},
        {"question": " ", "answer": "x" * 9000},
    ]
    rows = [rows[number % 3] for number in range(60)]
    message = refusal_of(gate, rows, rows, expected_rows={"train": 1, "test": 1})
    lines = message.split("\n")
    assert len(lines) == SHOWN_FAILURES + 2
    assert "more expectations fail" in lines[-2]
    assert sum(-(-len(line) // 100) for line in lines) < 50


@pytest.mark.parametrize("split", ["train", "test"])
def test_an_unexpected_number_of_rows_is_refused(gate, split):
    there = {"train": 60, "test": 20}
    gate(expected_rows=there)
    message = refusal_of(gate, expected_rows=there | {split: 61})
    assert message.startswith(
        f"{split}: expected that the source has 61 rows (data.expected_rows), but found {there[split]}\n"
    )


def test_expected_rows_are_those_before_samples_are_taken(gate):
    assert gate(expected_rows={"train": 60}, max_samples=3)["statistics"]["train"]["rows"] < 60


def test_bounds_are_those_of_the_configuration(gate):
    long_answer = with_row(7, answer="so " * 3000 + "#### 3")
    gate(long_answer, answer_characters=(1, 9010))
    assert "every question has 70 to 80 characters" in refusal_of(gate, question_characters=(70, 80))


def test_a_plain_gold_that_holds_a_worked_solution_is_refused(gate):
    message = refusal_of(gate, gold="plain")
    assert "no gold holds ####, behind which data.gold=hash would read it, but 60 rows do not fit" in message


def test_a_plain_gold_needs_no_mark(gate):
    rows = [row(number, answer="Rome") for number in range(60)]
    gate(rows, [row(99, answer="Paris")], gold="plain")
    assert "no answer is blank" in refusal_of(gate, with_row(7, answer=" "), gold="plain")


def test_a_task_without_gold_is_checked_for_its_questions_alone(gate):
    rows = [{"question": row(number)["question"]} for number in range(60)]
    result = gate(rows, [{"question": row(99)["question"]}], gold="none", answer_column=None)
    assert not [line for line in result["expectations"] if "answer is" in line["expectation"]]
    assert result["statistics"]["train"]["golds"]["different"] == 0
    assert result["statistics"]["train"]["answer_characters"] is None
    rows[6]["question"] = "?"
    assert "row 7: '?'" in refusal_of(gate, rows, rows[:1], gold="none", answer_column=None)


def test_statistics_describe_lengths_and_golds(gate):
    test = [row(60, answer=f"#### {gold}") for gold in ("-3", "5", "5", "1,000.5")]
    for number, changed in enumerate(test):
        changed["question"] = "x" * (10 + number)
    statistics = gate(test=test)["statistics"]["test"]
    assert statistics["rows"] == 4
    assert statistics["question_characters"] == {"min": 10, "median": 11.5, "mean": 11.5, "max": 13}
    golds = statistics["golds"]
    assert (golds["different"], golds["negative"], golds["not_whole"]) == (3, 1, 1)
    assert next(iter(golds["most_common"].items())) == ("5", 2)
    assert golds["numbers"]["max"] == 1000.5


def test_the_report_holds_the_results_of_great_expectations_and_the_summary(gate, report):
    summary = gate()
    assert read_json(report / "summary.json").items() <= summary.items()
    for split in ("train", "test"):
        types = {result["expectation_config"]["type"] for result in read_json(report / f"{split}.json")}
        assert {"expect_column_values_to_be_null", "expect_column_values_to_match_regex"} <= types


def test_a_refusal_leaves_its_report(gate, report):
    message = refusal_of(gate, with_row(7, answer="#### five"))
    assert message.endswith(f"all results are in {report}")
    (failed,) = [result for result in read_json(report / "summary.json")["expectations"] if not result["success"]]
    assert failed == {
        "split": "train",
        "expectation": "every gold is one number behind ####",
        "success": False,
        "unexpected": 1,
        "warning": False,
    }


@pytest.mark.parametrize(
    ("annotation", "right"),
    [
        ("<<3*4=13>>", "12"),
        ("<<1,000/4=25>>", "250"),
        ("<<10/3=3.5>>", "3.33333"),
        ("<<50%*8=5>>", "4"),
        ("<<3*4=12=13>>", "12"),
        ("<<3*4=13=12>>", "12"),
        ("<<3*4==13>>", "12"),
        ("<<x=3*4=13>>", "12"),
    ],
)
def test_a_wrong_calculator_annotation_is_named_with_what_is_right(gate, annotation, right):
    message = refusal_of(gate, with_row(7, answer=f"That is {annotation}5.\n#### 5"))
    assert f"every calculator annotation <<…=…>> is right, but 1 row does not fit: row 7: '{annotation} (it" in message
    assert f"(it is {right})" in message
    gate(with_row(7, answer=f"That is {annotation}5.\n#### 5"), annotations=False)


@pytest.mark.parametrize(
    "annotation",
    [
        "<<10/3=3.33>>",
        "<<10/3=3>>",
        "<<2/3=.667>>",
        "<<05+1=6>>",
        "<<$3*2=$6>>",
        "<<2x=4>>",
        "<<7//2=3>>",
        "<<3*4=12=12.0>>",
        "<<10/3=3.3=3.33>>",
        "<<2/3=0.67=67%>>",
        "<<x=3*4=y=12>>",
        "<<3>>",
        "<<=>>",
    ],
)
def test_a_rounded_annotation_is_right_and_one_that_cannot_be_computed_is_not_judged(gate, annotation):
    gate(with_row(7, answer=f"That is {annotation}5.\n#### 5"))


# --- expectations of the configuration


def levelled(*levels):
    return [row(number, level=level, points=number) for number, level in enumerate(levels)]


LEVELS = levelled(*["easy", "hard"] * 30)
TEST_LEVELS = [row(number, level="easy", points=number) for number in range(60, 80)]


def test_an_expectation_from_the_configuration_is_held_to(gate):
    rule = {"type": "expect_column_values_to_be_in_set", "column": "level", "value_set": ["easy", "hard"]}
    found = gate(LEVELS, TEST_LEVELS, expectations=[rule])
    assert [
        one
        for one in found["expectations"]
        if "expect_column_values_to_be_in_set (column='level'" in one["expectation"]
    ]
    message = refusal_of(gate, [*LEVELS, row(80, level="odd", points=1)], TEST_LEVELS, expectations=[rule])
    assert (
        "train: expected that expect_column_values_to_be_in_set (column='level', value_set=['easy', 'hard'])" in message
    )
    assert "1 row does not fit: row 61: 'odd'" in message


@pytest.mark.parametrize("on_bad_rows", ["stop", "drop"])
def test_one_of_less_severity_only_warns(gate, on_bad_rows):
    rule = {"type": "expect_column_values_to_be_in_set", "column": "level", "value_set": ["easy", "hard"]}
    mean = {"type": "expect_column_mean_to_be_between", "column": "points", "min_value": 1000, "split": "train"}
    rules = [rule | {"severity": "warning"}, mean | {"severity": "info"}]
    rows = [*LEVELS, row(80, level="odd", points=1)]
    found = gate(rows, TEST_LEVELS, expectations=rules, on_bad_rows=on_bad_rows)
    assert found["data"]["counts"]["train"] + found["data"]["counts"]["validation"] == len(rows)
    warnings = [note for note in found["notes"] if note.startswith("train: expected that")]
    assert len(warnings) == 2 and "row 61: 'odd'" in warnings[0] and "found 2" in warnings[1]
    table = gate_table(found)
    assert "1 row does not fit (a warning) |" in table and "does not hold (a warning) |" in table


def test_it_may_hold_for_one_split_and_for_most_rows(gate, monkeypatch):
    monkeypatch.setattr("tasks.validate.CHUNK", 10)
    rule = {"type": "expect_column_values_to_be_in_set", "column": "level", "value_set": ["easy"], "mostly": 0.5}
    gate(LEVELS, TEST_LEVELS, expectations=[rule])
    message = refusal_of(gate, LEVELS, TEST_LEVELS, expectations=[rule | {"mostly": 0.6}])
    assert "30 rows do not fit" in message and "test:" not in message
    gate(LEVELS, TEST_LEVELS, expectations=[rule | {"mostly": 1.0, "split": "test"}])


@pytest.mark.parametrize("first", ["mostly", "strict"])
@pytest.mark.parametrize("chunk", [10, 1000])
def test_rows_that_most_may_be_do_not_hide_one_that_must_be_left_out(gate, monkeypatch, chunk, first):
    monkeypatch.setattr("tasks.validate.CHUNK", chunk)
    lenient = {"type": "expect_column_values_to_be_in_set", "column": "level", "value_set": ["easy"], "mostly": 0.4}
    strict = {"type": "expect_column_values_to_not_be_in_set", "column": "points", "value_set": [57]}
    rules = [lenient, strict] if first == "mostly" else [strict, lenient]
    found = gate(LEVELS, TEST_LEVELS, expectations=rules, on_bad_rows="drop", max_dropped_share=0.05)
    assert found["dropped"]["train"] == 1
    # One row more than may be left out is enough to stop, however many there are.
    many = strict | {"value_set": list(range(40))}
    message = refusal_of(
        gate, LEVELS, TEST_LEVELS, expectations=[lenient, many], on_bad_rows="drop", max_dropped_share=0.05
    )
    assert "would be left out" in message


def test_one_that_does_not_suit_its_column_is_refused_in_a_sentence(gate):
    rows = [one | {"tags": ["a"] if number else []} for number, one in enumerate(LEVELS)]
    tests = [one | {"tags": ["a"]} for one in TEST_LEVELS]
    null = {"type": "expect_column_values_to_be_null", "column": "tags"}
    assert "rows do not fit" in refusal_of(gate, rows, tests, expectations=[null])
    divergence = {
        "type": "expect_column_kl_divergence_to_be_less_than",
        "column": "level",
        "threshold": 0.1,
    }
    between = {"type": "expect_column_mean_to_be_between", "column": "points"}
    message = refusal_of(gate, LEVELS, TEST_LEVELS, expectations=[between, divergence])
    assert re.fullmatch(
        r"validation\.expectations\.1: the expectation of train as a whole that "
        r"expect_column_kl_divergence_to_be_less_than \(column='level', .*\) cannot be evaluated \(KeyError: .*\); "
        r"correct or remove it",
        message,
    )


def lists(*texts):
    return [row(number, tags=[text]) for number, text in enumerate(texts)]


def test_a_list_in_a_row_that_fails_is_shown_and_is_no_html(gate, report):
    rows, test = lists(*["<script>alert(3)</script>"] * 60), [row(number, tags=["b"]) for number in range(60, 80)]
    rows[1]["tags"] = []
    null = {"type": "expect_column_values_to_be_null", "column": "tags"}
    message = refusal_of(gate, rows, test, expectations=[null])
    assert "60 rows do not fit: row 1: ['<script>" in message and "row 2: []" in message
    for page in (report / "data_docs").rglob("*.html"):
        assert "<script>alert(3)" not in page.read_text()


def test_what_may_be_hides_no_bad_row_of_any_kind(gate, monkeypatch):
    monkeypatch.setattr("tasks.validate.CHUNK", 7)
    rows = [row(n, level="ab"[n // 30], kind="ok") for n in range(60)]
    rows[55] |= {"kind": "BAD"}
    rows[56] |= {"answer": "#### five"}
    rows[57] |= {"question": rows[20]["question"].upper()}
    rows[58] |= {"question": row(70)["question"]}
    tests = [row(n, level="a", kind="ok") for n in range(60, 80)]
    level = {"type": "expect_column_values_to_be_in_set", "column": "level", "value_set": ["a"], "mostly": 0.4}
    kind = {"type": "expect_column_values_to_be_in_set", "column": "kind", "value_set": ["ok"]}
    found = gate(rows, tests, expectations=[level, kind], on_bad_rows="drop", max_dropped_share=0.07)
    assert found["dropped"] == {"train": 4, "test": 0}
    left = [*kept(found, "train")["source_row"], *kept(found, "validation")["source_row"]]
    assert sorted({*range(1, 61)} - {*left}) == [56, 57, 58, 59]


def test_what_may_stand_twice_hides_nothing_that_must_not(gate):
    rows = [row(n, level=str(n % 45), points=n) for n in range(60)]
    rows[58]["points"] = rows[57]["points"]
    tests = [row(n, level=str(n), points=n) for n in range(60, 80)]
    unique = {"type": "expect_column_values_to_be_unique"}
    rules = [unique | {"column": "level", "mostly": 0.4}, unique | {"column": "points"}]
    found = gate(rows, tests, expectations=rules, on_bad_rows="drop", max_dropped_share=0.05)
    assert found["dropped"] == {"train": 2, "test": 0}


@pytest.mark.parametrize("mostly", [1.0, 0.9])
def test_a_batch_that_cannot_be_judged_by_the_row_stops_the_run(gate, monkeypatch, mostly):
    """The first rows fail one by one, the others as a column, whose bad rows nobody could leave out."""
    from tasks.expectation_run import Suite

    check, not_judged = Suite._validated, []

    def unable(suite, frame, expectations):
        found = check(suite, frame, expectations)
        if suite.name == "train" and frame.index[0] > 10:
            for result in found.results:
                if result.expectation_config.kwargs.get("column") == "points":
                    result.success, result.result = False, {}
                    result.exception_info |= {"raised_exception": True, "exception_message": "what is this?"}
                    not_judged.append(frame.index[0])
        return found

    monkeypatch.setattr(Suite, "_validated", unable)
    monkeypatch.setattr("tasks.validate.CHUNK", 10)
    rule = {"type": "expect_column_values_to_not_be_in_set", "column": "points", "value_set": [3], "mostly": mostly}
    message = refusal_of(gate, LEVELS, TEST_LEVELS, expectations=[rule], on_bad_rows="drop", max_dropped_share=0.05)
    assert not_judged and "but what is this?" in message


def test_descriptions_that_look_alike_are_told_apart():
    from types import SimpleNamespace

    from tasks.expectations import told_apart

    expectations = [SimpleNamespace(description=text) for text in ("so", "so", "so (2)", "so")]
    told_apart(expectations)
    assert [one.description for one in expectations] == ["so", "so (2)", "so (2) (2)", "so (3)"]


def test_one_about_a_whole_column_sees_it_whole(gate, monkeypatch):
    monkeypatch.setattr("tasks.validate.CHUNK", 10)
    mean = {"type": "expect_column_mean_to_be_between", "column": "points", "split": "train"}
    gate(LEVELS, TEST_LEVELS, expectations=[mean | {"min_value": 29.4, "max_value": 29.6}])
    message = refusal_of(gate, LEVELS, TEST_LEVELS, expectations=[mean | {"min_value": 30}])
    assert "expect_column_mean_to_be_between (column='points', min_value=30), but found 29.5" in message
    rows = [*LEVELS, row(80, level="easy", points=3)]
    unique = {"type": "expect_column_values_to_be_unique", "column": "points", "description": "points differ"}
    message = refusal_of(gate, rows, TEST_LEVELS, expectations=[unique])
    assert "train: expected that points differ, but 2 rows do not fit: row 4: 3, row 61: 3" in message


def test_a_condition_may_be_about_any_column(gate):
    rule = {"type": "expect_column_mean_to_be_between", "column": "points", "split": "train"}
    condition = {"row_condition": 'level=="hard"', "condition_parser": "pandas"}
    gate(LEVELS, TEST_LEVELS, expectations=[rule | condition | {"min_value": 29.9, "max_value": 30.1}])
    message = refusal_of(gate, LEVELS, TEST_LEVELS, expectations=[rule | condition | {"min_value": 31}])
    assert "but found 30.0" in message


def test_a_whole_column_is_judged_without_the_rows_that_are_left_out(gate):
    rows = [dict(one) for one in LEVELS]
    rows[6] |= {"answer": "#### five", "points": 99_999}
    rule = {"type": "expect_column_max_to_be_between", "column": "points", "split": "train"}
    drop = {"on_bad_rows": "drop", "max_dropped_share": 0.05}
    gate(rows, TEST_LEVELS, expectations=[rule | {"max_value": 60}], **drop)
    assert "but found 59" in refusal_of(gate, rows, TEST_LEVELS, expectations=[rule | {"min_value": 1000}], **drop)


def test_results_of_any_kind_can_be_kept(gate):
    quantiles = {"quantiles": [0.5], "value_ranges": [[100, 200]]}
    rule = {"type": "expect_column_quantile_values_to_be_between", "column": "points", "quantile_ranges": quantiles}
    assert "expect_column_quantile" in refusal_of(gate, LEVELS, TEST_LEVELS, expectations=[rule])


def test_one_about_the_columns_sees_those_of_the_data(gate):
    names = ["id", "question", "answer", "rationale", "raw_answer", "source_row", "level", "points", "ground_truth"]
    rule = {"type": "expect_table_columns_to_match_ordered_list", "column_list": names}
    gate(LEVELS, TEST_LEVELS, expectations=[rule])
    message = refusal_of(gate, LEVELS, TEST_LEVELS, expectations=[rule | {"column_list": names[:-1]}])
    assert "expect_table_columns_to_match_ordered_list" in message and "but found ['id', 'question'" in message


def test_columns_that_are_called_like_what_the_gate_computes_are_no_trouble(gate):
    more = {"leaks": "a", "duplicate_of": "b", "shared": "c", "wrong_annotation": "d", "place": 1, "number": "e"}
    gate(*([row(n) | more for n in numbers] for numbers in (range(60), range(60, 80))))


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"type": "expect_column_values_to_be_in_sets"}, "did you mean expect_column_values_to_be_in_set?"),
        ({"type": "expect_column_values_to_be_in_set", "columm": "a"}, "cannot be made of columm='a'"),
        ({"type": "expect_column_to_exist", "column": "lvl"}, "the data has no column 'lvl', only id, question"),
        ({"type": "expect_column_mean_to_be_between", "column": "question", "min_value": 1}, "Cannot perform"),
        (
            {"type": "expect_column_values_to_be_between", "column": "question", "min_value": {"$PARAMETER": "x"}},
            "cannot be evaluated (SuiteParameterError: No value found for $PARAMETER x); correct or remove it",
        ),
    ],
)
def test_an_expectation_that_cannot_be_is_refused_with_its_place(gate, rule, words):
    message = refusal_of(gate, expectations=[rule])
    assert words in message, message
    assert "validation.expectations" in message or "expect_column_mean" in message


# --- bad rows may be left out


def kept(found, split):
    return pd.read_parquet(Path(found["data"]["folder"]) / f"{split}.parquet")


def test_bad_rows_may_be_left_out_and_are_kept_with_the_reasons(gate, report):
    rows = good(0, 60)
    rows[6]["answer"] = "#### five"
    rows[20]["question"] = rows[3]["question"].upper()
    rows[30]["question"] = row(70)["question"]
    found = gate(rows, good(60, 80), on_bad_rows="drop", max_dropped_share=0.06)
    assert found["dropped"] == {"train": 3, "test": 0}
    left = pd.concat([kept(found, "train"), kept(found, "validation")])
    assert sorted({*range(1, 61)} - {*left["source_row"]}) == [7, 21, 31]
    assert len(kept(found, "test")) == 20  # of a question in both splits the test row is kept
    dropped = [json.loads(line) for line in (report / "dropped.jsonl").read_text().splitlines()]
    assert {line["source_row"]: line["reasons"][0][:24] for line in dropped} == {
        7: "every gold is one number",
        21: "every question is unique",
        31: "no question is asked in ",
    }
    assert dropped[0]["raw_answer"] == "#### five"
    assert found["notes"][-1] == "3 rows of train left out; validation/dropped.jsonl has them with the reasons"
    assert found["data"]["counts"] == {split: len(kept(found, split)) for split in ("train", "validation", "test")}


def test_the_rows_that_are_left_have_a_digest_of_their_own(gate):
    clean = gate(with_row(7))["data"]
    left = gate(with_row(7, answer="#### five"), on_bad_rows="drop", max_dropped_share=0.05)["data"]
    assert left["digest"] != clean["digest"] and left["sha256"]["test"] == clean["sha256"]["test"]
    assert gate(with_row(7), on_bad_rows="drop")["data"] == clean  # nothing to leave out


def test_more_bad_rows_than_allowed_stop_the_run(gate):
    rows = good(0, 60)
    for number in range(4):
        rows[number]["answer"] = "#### five"
    message = refusal_of(gate, rows, on_bad_rows="drop", max_dropped_share=0.05)
    first = "train: 4 or more of 60 rows would be left out, and validation.max_dropped_share allows 5.0%\n"
    assert message.startswith(first) and "or raise validation.max_dropped_share; all results" in message
    assert "every gold is one number behind ####, but 4 rows do not fit: row 1: '#### five'" in message
    gate(rows, on_bad_rows="drop", max_dropped_share=0.07)


def test_what_is_not_about_rows_stops_the_run_all_the_same(gate):
    message = refusal_of(gate, with_row(7, answer="x"), on_bad_rows="drop", expected_rows={"train": 61})
    assert message.startswith("train: expected that the source has 61 rows (data.expected_rows), but found 60")


# --- what is left to look at


def test_the_table_of_the_gate_says_what_holds_and_what_was_left_out(gate):
    table = gate_table(gate(with_row(7, answer="#### five"), on_bad_rows="drop", max_dropped_share=0.05))
    assert "| train | no question is missing | holds |" in table
    assert "| train | every gold is one number behind #### | 1 row does not fit, left out |" in table
    assert "calculator annotation &lt;&lt;…=…&gt;&gt; is right | holds |" in table
    assert "- 1 row of train left out" in table


def test_the_figures_worth_comparing_are_numbers(gate):
    numbers = gate_numbers(gate())
    assert numbers == {
        "questions_sharing": 20.0,
        "sharing_over_half": 20.0,
        "largest_share": pytest.approx(4 / 7),
        "dropped_train": 0.0,
        "dropped_test": 0.0,
    }


def test_many_batches_give_the_same_as_one(gate, monkeypatch, report):
    rows = good(0, 60)
    for number in (3, 17, 18, 40, 59):
        rows[number]["answer"] = "#### five"
    once = refusal_of(gate, rows)
    results = read_json(report / "train.json")
    monkeypatch.setattr("tasks.validate.CHUNK", 7)
    assert refusal_of(gate, rows) == once
    again = read_json(report / "train.json")
    for one, other in zip(results, again, strict=True):
        for result in (one["result"], other["result"]):
            result.pop("partial_unexpected_counts", None)  # counted within a batch
            result |= {name: round(value, 9) for name, value in result.items() if isinstance(value, float)}
        assert one["result"] == other["result"] and one["success"] == other["success"]


def test_great_expectations_shows_it_all_as_pages_that_run_nothing_from_the_data(gate, report):
    refusal_of(gate, with_row(7, answer="<script>alert(1)</script> $5 #### 4 #### 5"))
    pages = {path.name: path.read_text() for path in (report / "data_docs" / "validations").rglob("*.html")}
    assert set(pages) == {"train.html", "test.html"}
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &#36;5" in pages["train.html"]
    assert "<script>alert" not in pages["train.html"]
    assert "every answer has exactly one ####" in pages["train.html"]
    assert (report / "data_docs" / "index.html").exists()


def test_names_of_columns_are_no_html_either(gate, report):
    name = "<script>alert(2)</script>"
    rows, test = ([row(n, **{name: "a"}) for n in numbers] for numbers in (range(60), range(60, 80)))
    rule = {"type": "expect_column_values_to_be_in_set", "column": name, "value_set": ["b"], "description": "<b>so"}
    refusal_of(gate, rows, test, expectations=[rule])
    for page in (report / "data_docs").rglob("*.html"):
        assert "<script>alert(2)" not in page.read_text() and "<b>so" not in page.read_text()


def test_rows_that_moved_are_checked_anew(gate):
    rows = good(0, 60)
    rows[3]["answer"] = "#### five"
    drop = {"on_bad_rows": "drop", "max_dropped_share": 0.05}
    gate(rows, **drop)
    moved = gate([*rows[1:], rows[0]], **drop)
    assert json.loads((Path(moved["report"]) / "dropped.jsonl").read_text())["source_row"] == 3


def test_the_same_rows_are_not_checked_again(gate, monkeypatch):
    first = gate()
    monkeypatch.setattr("tasks.validate._Gate.check", None)
    assert gate() == first
    with pytest.raises(TypeError):
        gate(max_rows_named=1)


def test_a_second_attempt_takes_the_place_of_what_the_first_left(gate, report):
    refusal_of(gate, with_row(7, answer="x"))
    gate()
    refusal_of(gate, with_row(7, answer="y"))
    assert not report.is_symlink()
    gate()
    assert report.is_symlink() and not (report / "scratch").exists()


def test_validating_prints_nothing(gate, capfd):
    gate()
    assert capfd.readouterr() == ("", "")


def test_what_takes_seconds_to_import_is_not_imported_with_the_stage():
    code = (
        "import sys, tasks.ingest, tasks.validate; print({'great_expectations', 'datasets', 'torch'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PROJECT)
    assert done.stdout == "set()\n"


@pytest.mark.skipif("GSM8K_DIR" not in os.environ, reason="GSM8K_DIR is not set")
def test_gsm8k_passes(run_folder):
    data = DataSettings(path=Path(os.environ["GSM8K_DIR"]), expected_rows={"train": 7473, "test": 1319})
    result = validate(run_folder, ingest(data), data, ValidationSettings())
    assert all(line["success"] for line in result["expectations"])
    assert result["statistics"]["train"]["golds"]["negative"] == 3
