"""Math-Verify behind the boxed accuracy: exact where it can be, bounded where it cannot."""

import subprocess
import sys
import threading
import time

import pytest

from rewards import boxed_accuracy_reward_func, math_judge


def boxed(answer: str, gold: str) -> float:
    [value] = boxed_accuracy_reward_func(["?"], [f"so \\boxed{{{answer}}}"], ground_truth=[gold])
    return value


def test_an_equal_expression_is_right_and_another_is_wrong() -> None:
    assert boxed("\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt{2}}") == 1.0
    assert boxed("\\frac{\\sqrt{2}}{3}", "\\frac{1}{\\sqrt{2}}") == 0.0


def test_letters_beside_a_number_of_the_gold_are_no_unit() -> None:
    assert boxed("2k", "2m") == 0.0
    assert boxed("2k", "2k") == 1.0


def test_it_works_off_the_main_thread() -> None:
    values: list[float] = []
    threads = [threading.Thread(target=lambda n=n: values.append(boxed(f"x+{n}", f"{n}+x"))) for n in range(2, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == [1.0] * 4


def test_an_endless_computation_is_ended_and_the_next_answer_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(math_judge, "SECONDS", 1.0)
    monkeypatch.setattr(math_judge, "_judge", math_judge._Judge())
    start = time.monotonic()
    assert boxed("9^{9^{9^{9}}}", "5") == 0.0
    assert time.monotonic() - start < 60
    assert boxed("\\frac{10}{4}", "\\frac{5}{2}") == 1.0


def test_an_answer_longer_than_the_limit_is_not_given_to_the_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_judge._Judge, "ask", lambda *_: pytest.fail("it was asked"))
    assert boxed("x+" * math_judge.MAXIMUM_LENGTH, "x^2") == 0.0


def test_plain_numbers_start_no_judge() -> None:
    program = (
        "from rewards import boxed_accuracy_reward_func as reward, math_judge\n"
        "import sys\n"
        "completions = ['\\\\boxed{1,000}', '\\\\boxed{7}']\n"
        "assert reward(['?'] * 2, completions, ground_truth=['1000', '8']) == [1.0, 0.0]\n"
        "assert math_judge._judge._process is None and 'math_verify' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_missing_math_verify_stops_instead_of_giving_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_judge.sys, "executable", "/bin/true")
    with pytest.raises(RuntimeError, match="Math-Verify cannot be started"):
        math_judge._Judge().ask("x", "y")


@pytest.mark.parametrize(
    "answer",
    [
        "\\frac{144}{2}",
        "x = 72",
        "\\text{Total} = 72",
        "8 \\times 9",
        "8 × 9",
        "6^2 \\cdot 2",
        "\\dfrac{144}{2} \\text{ km}",
    ],
)
def test_one_expression_of_a_plain_number_is_right(answer):
    assert boxed_accuracy_reward_func([None], [f"\\boxed{{{answer}}}"], ["72"]) == [1.0]


@pytest.mark.parametrize(
    "answer",
    [
        "72²",
        "72\\text{ or so 73}",
        "72\\text{ or so }73",
        "72~73",
        "72 \\approx 73",
        "73 = 72",
        "x=73=72",
        "72 or 73",
        "72, 73",
        "72 \\pm 1",
    ],
)
def test_a_hedge_around_a_plain_number_is_wrong(answer):
    assert boxed_accuracy_reward_func([None], [f"\\boxed{{{answer}}}"], ["72"]) == [0.0]
