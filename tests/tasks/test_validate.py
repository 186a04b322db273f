"""Rows in these tests are synthetic; those of GSM8K are read from the folder that GSM8K_DIR names."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.config import DataSettings, SampleSettings, ValidationSettings
from tasks.errors import UserError
from tasks.ingest import ingest
from tasks.run import PROJECT, read_json
from tasks.validate import ONE_MARK, SHOWN_FAILURES, validate


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    """A store of the test's own."""
    monkeypatch.setenv("GRPO_RUNS", str(tmp_path / "runs"))


@pytest.fixture
def report(tmp_path):
    return tmp_path / "report"


def row(number, **more):
    return {
        "question": f"Tom has {number} pens and buys 4 more. How many pens does he have?",
        "answer": f"Tom has {number}+4=<<{number}+4={number + 4}>>{number + 4} pens.\n#### {number + 4}",
    } | more


@pytest.fixture
def gate(tmp_path, report):
    """Ingest `train` and `test` and validate them; `settings` belong to either section."""

    def run(train=None, test=None, **settings):
        source = tmp_path / "source"
        source.mkdir(exist_ok=True)
        for name, rows in (("train", train or good(0, 60)), ("test", test or good(60, 80))):
            (source / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        ours = {name: settings.pop(name) for name in list(settings) if name in ValidationSettings.model_fields}
        data = DataSettings(path=source, **settings)
        return validate(Path(ingest(data)["folder"]), data, ValidationSettings(**ours), report)

    return run


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


def test_made_problems_pass(report):
    data = DataSettings(samples=SampleSettings(train=300, test=50, steps=2))
    assert (
        validate(Path(ingest(data)["folder"]), data, ValidationSettings(), report)["statistics"]["test"]["rows"] == 50
    )


BAD = {
    "a missing question": ({"question": None}, "no question is missing", "row 7: null"),
    "a blank question": ({"question": " \n\t" * 9}, "no question is blank", r"row 7: ' \n\t"),
    "a short question": ({"question": "Why 3?"}, "every question has 10 to 4000 characters", "row 7: 'Why 3?'"),
    "a long question": ({"question": "Why? " * 900}, "every question has 10 to 4000 characters", "row 7: 'Why? Why?"),
    "a missing answer": ({"answer": None}, "no answer is missing", "row 7: null"),
    "a blank answer": ({"answer": "  "}, "no answer is blank", "row 7: '  '"),
    "a long answer": ({"answer": "so " * 3000 + "#### 3"}, "every answer has 1 to 8000 characters", "so so #### 3'"),
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
    texts = ["#### 1", "a\n####\nb", "##### 1", "### 1", "", "#### ####", "########", "a####b\n####"]
    assert [bool(re.search(ONE_MARK, text)) for text in texts] == [text.count("####") == 1 for text in texts]


def test_a_question_asked_twice_is_named_with_both_rows(gate):
    again = good(0, 1)[0]["question"].upper().replace(" ", "  ")
    message = refusal_of(gate, with_row(40, question=again))
    assert "every question is unique, whatever its case and white space, but 2 rows" in message
    assert "row 1: 'Tom has 0 pens" in message and "row 40: 'TOM  HAS" in message


def test_a_question_in_train_and_validation_is_asked_twice(gate):
    # Two rows of the same question: each of train and validation must have one, so they are parted.
    assert "every question is unique" in refusal_of(gate, good(0, 1) * 2)


def test_a_test_question_that_is_trained_on_is_named(gate):
    leaked = row(3, question=row(3)["question"].lower() + " ")
    message = refusal_of(gate, test=[*good(60, 70), leaked])
    assert message.startswith(
        "test: expected that no question is also in train, whatever its case and white space, but 1"
    )
    assert "row 11: 'tom has 3 pens" in message


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
    assert message.startswith(f"{split}: expected that the source has 61 rows, but found {there[split]}\n")


def test_expected_rows_are_those_before_samples_are_taken(gate):
    assert gate(expected_rows={"train": 60}, max_samples=3)["statistics"]["train"]["rows"] < 60


def test_bounds_are_those_of_the_configuration(gate):
    long_answer = with_row(7, answer="so " * 3000 + "#### 3")
    gate(long_answer, answer_characters=(1, 9010))
    assert "every question has 70 to 80 characters" in refusal_of(gate, question_characters=(70, 80))


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
    assert read_json(report / "summary.json") == summary
    for split in ("train", "test"):
        types = {result["expectation_config"]["type"] for result in read_json(report / f"{split}.json")}
        assert {"expect_column_values_to_be_unique", "expect_column_values_to_match_regex"} <= types


def test_a_refusal_leaves_its_report(gate, report):
    message = refusal_of(gate, with_row(7, answer="#### five"))
    assert message.endswith(f"all results are in {report}")
    (failed,) = [result for result in read_json(report / "summary.json")["expectations"] if not result["success"]]
    assert failed == {
        "split": "train",
        "expectation": "every gold is one number behind ####",
        "success": False,
        "unexpected": 1,
    }


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
def test_gsm8k_passes(report):
    data = DataSettings(path=Path(os.environ["GSM8K_DIR"]), expected_rows={"train": 7473, "test": 1319})
    result = validate(Path(ingest(data)["folder"]), data, ValidationSettings(), report)
    assert all(line["success"] for line in result["expectations"])
    assert result["statistics"]["train"]["golds"]["negative"] == 3
