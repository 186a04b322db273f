import os
import re
import subprocess
import sys

import pytest

from rewards import extract_hash_answer
from tasks.config import SampleSettings
from tasks.errors import UserError
from tasks.run import PROJECT
from tasks.samples import PEOPLE, TEMPLATES, make_problems

CALCULATION = re.compile(r"(\d+)([-+*/])(\d+)=<<(\d+)([-+*/])(\d+)=(\d+)>>(\d+)")
NAMES = [name for name, _ in PEOPLE]


@pytest.fixture(scope="module", params=[1, 2], ids=["one step", "two steps"])
def problems(request):
    return make_problems(SampleSettings(train=5000, test=1000, steps=request.param))


def all_rows(problems):
    return problems["train"] + problems["test"]


def test_as_many_are_made_as_are_asked_for(problems):
    assert len(problems["train"]) == 5000
    assert len(problems["test"]) == 1000


def test_no_question_is_asked_twice_within_or_across_the_splits(problems):
    questions = [" ".join(row["question"].casefold().split()) for row in all_rows(problems)]
    assert len(set(questions)) == len(questions)


def test_every_place_in_a_question_is_filled(problems):
    assert not [row for row in all_rows(problems) if re.search(r"[{}]", row["question"] + row["answer"])]


def test_every_gold_is_a_positive_whole_number_behind_one_mark(problems):
    for row in all_rows(problems):
        assert re.fullmatch(r"[1-9]\d*", extract_hash_answer(row["answer"]))


def test_every_calculation_is_right_and_the_last_one_gives_the_gold(problems):
    for row in all_rows(problems):
        *lines, gold = row["answer"].split("\n")
        for line in lines:
            (calculation,) = CALCULATION.findall(line)
            left, sign, right, *annotated, annotated_result, result = calculation
            assert annotated == [left, sign, right]
            value = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}
            value["/"] = int(left) / int(right)
            assert value[sign] == int(result) == int(annotated_result), line
        assert gold == f"#### {result}"


def test_all_numbers_that_are_calculated_with_stand_in_the_question(problems):
    for row in all_rows(problems):
        known = set(re.findall(r"\d+", row["question"]))
        for left, _, right, *_, result in CALCULATION.findall(row["answer"]):
            assert {left, right} <= known, row
            known.add(result)


def test_questions_are_short(problems):
    # 33 words with their punctuation are about 45 tokens.
    assert max(len(re.findall(r"\w+|[^\w\s]", row["question"])) for row in all_rows(problems)) <= 36


def test_one_step_means_one_calculation():
    rows = make_problems(SampleSettings(train=500, test=1, steps=1))["train"]
    assert {len(CALCULATION.findall(row["answer"])) for row in rows} == {1}


def test_with_two_steps_half_of_the_problems_have_one():
    rows = make_problems(SampleSettings(train=1000, test=1, steps=2))["train"]
    steps = [len(CALCULATION.findall(row["answer"])) for row in rows]
    assert set(steps) == {1, 2}
    assert 0.45 < steps.count(1) / len(steps) < 0.55


def test_every_template_is_used_and_they_are_mixed():
    rows = make_problems(SampleSettings(train=1000, test=1, steps=2))["train"]
    things = {thing for template in TEMPLATES for thing in template.things.split()}
    filled = re.compile(rf"\d+|\b(?:{'|'.join({*NAMES, *things, 'he', 'she'})})\b")
    assert len({filled.sub("", row["question"]) for row in rows}) == len(TEMPLATES) > 40
    assert len({filled.sub("", row["question"]) for row in rows[:100]}) > 30


def test_a_template_numbers_its_problems_without_repeating_one():
    template = min(TEMPLATES, key=lambda template: template.size)
    texts = {template.problem(index)["question"] for index in range(template.size)}
    assert len(texts) == template.size


def test_nobody_is_their_own_friend():
    for template in TEMPLATES:
        if "{friend}" in template.question:
            for index in range(0, template.size, template.size // 200):
                question = template.problem(index)["question"]
                assert len({name for name in NAMES if re.search(rf"\b{name}\b", question)}) == 2, question


def test_the_same_seed_gives_the_same_problems_in_another_process_and_another_seed_others():
    code = (
        "from tasks.samples import make_problems; from tasks.config import SampleSettings; "
        "print(make_problems(SampleSettings(train=50, test=20, steps=2, seed=7)))"
    )
    # Sets of text have another order in each process; nothing may depend on it.
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    there = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PROJECT, env=environment
    ).stdout.strip()
    settings = SampleSettings(train=50, test=20, steps=2, seed=7)
    assert there == str(make_problems(settings))
    assert there != str(make_problems(settings.model_copy(update={"seed": 8})))


def test_more_problems_than_the_templates_can_give_are_refused_with_the_number_that_is_possible():
    with pytest.raises(
        UserError, match=r"asks for 100000001 problems, but the templates give at most (\d+)"
    ) as refusal:
        make_problems(SampleSettings(train=100_000_000, test=1))
    possible = int(re.search(r"at most (\d+)", str(refusal.value)).group(1))
    assert possible > 10_000


def test_exactly_as_many_problems_as_the_templates_can_give_are_made(monkeypatch):
    few = tuple(template for template in TEMPLATES if len(template.operations) == 1)[-2:]
    monkeypatch.setattr("tasks.samples.TEMPLATES", few)
    possible = 2 * min(template.size for template in few)
    assert len(make_problems(SampleSettings(train=possible - 1, test=1))["train"]) == possible - 1
    with pytest.raises(UserError):
        make_problems(SampleSettings(train=possible, test=1))
