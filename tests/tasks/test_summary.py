"""What scored completions come to, greedy and sampled."""

import pandas as pd
import pytest

from tasks.summary import pass_at, sampled_summary, summary


def table(answers: dict[str, list[str | None]], gold: str = "4") -> pd.DataFrame:
    """Completions by question, as the numbers that they end with."""
    rows = [(id, number) for id, numbers in answers.items() for number in numbers]
    return pd.DataFrame(
        {
            "id": [id for id, _ in rows],
            "answer": gold,
            "flexible": [number for _, number in rows],
            "correct": [number == gold for _, number in rows],
            "correct_flexible": [number == gold for _, number in rows],
            "reward": [2.0 * (number == gold) for _, number in rows],
            "tokens": 3,
            "finished": True,
        }
    )


def test_a_mean_and_its_error():
    found = summary(table({"a": ["4"], "b": ["5"], "c": ["4"], "d": ["4"]}))
    assert (found["n"], found["accuracy"], found["reward"]) == (4, 0.75, 1.5)
    assert found["accuracy_stderr"] == pytest.approx((0.75 * 0.25 / 4) ** 0.5)


def test_pass_at_k_is_the_chance_of_a_draw_without_putting_back():
    assert pass_at(1, 4, 1) == 0.25
    assert pass_at(2, 4, 1) == 0.5
    assert pass_at(4, 4, 1) == 1.0
    assert pass_at(2, 4, 0) == 0.0
    assert pass_at(3, 4, 2) == 1.0


def test_sampled_completions_are_summed_up_by_question():
    found = sampled_summary(table({"a": ["4", "4", "5"], "b": ["5", "5", "4"], "c": [None, None, None]}))
    assert found["sampled/accuracy"] == pytest.approx(1 / 3)
    assert found["sampled/pass_at_2"] == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert found["sampled/pass_at_3"] == pytest.approx(2 / 3)
    assert found["sampled/majority_flexible"] == pytest.approx(1 / 3)
    assert found["sampled/accuracy_flexible"] == found["sampled/accuracy"]
    assert found["sampled/best_reward"] == pytest.approx(4 / 3)
    assert found["sampled/pass_at_3_stderr"] == pytest.approx((2 / 3 * 1 / 3 / 3) ** 0.5)  # yes or no, as for accuracy
    # Over questions: three completions of one question are not three independent ones.
    assert found["sampled/accuracy_stderr"] == pytest.approx(pd.Series([2 / 3, 1 / 3, 0]).std() / 3**0.5)
    assert not [name for name in found if not name.startswith("sampled/")]


def test_numbers_vote_by_their_value_and_the_first_of_equals_wins():
    assert sampled_summary(table({"a": ["5", "4.0", "4"]}))["sampled/majority_flexible"] == 1.0
    assert sampled_summary(table({"a": ["4", "5"]}))["sampled/majority_flexible"] == 1.0
    assert sampled_summary(table({"a": ["5", "4"]}))["sampled/majority_flexible"] == 0.0


def test_golds_that_are_no_numbers_have_no_majority():
    assert "sampled/majority_flexible" not in sampled_summary(table({"a": ["B", "C"]}, gold="B"))


def test_without_a_gold_there_are_rewards_alone():
    rewards = table({"a": ["4", "5"]}).drop(columns=["correct", "flexible"])
    assert {name.removesuffix("_stderr") for name in sampled_summary(rewards)} == {
        "sampled/reward",
        "sampled/best_reward",
    }
