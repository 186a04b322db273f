import math

import numpy as np
import pandas as pd
import pytest

from tasks.statistics import compare, mcnemar_exact, mean_stderr, paired_permutation, proportion_stderr


def test_the_error_of_a_share_is_that_of_a_coin():
    assert proportion_stderr(0.5, 100) == pytest.approx(0.05)
    assert proportion_stderr(1.0, 7) == 0


def test_the_error_of_a_mean_uses_the_sample_deviation():
    assert mean_stderr([1.0, 2.0, 3.0, 4.0]) == pytest.approx(math.sqrt(5 / 3) / 2)
    assert math.isnan(mean_stderr([1.0]))


@pytest.mark.parametrize(
    ("gained", "lost", "p_value"),
    # By hand: twice the binomial tail, capped at 1. 6 of 6: 2/64; 9 of 10: 2 × 11/1024; 3 of 6: 1.
    [(6, 0, 2 / 64), (9, 1, 22 / 1024), (1, 9, 22 / 1024), (3, 3, 1.0), (0, 0, 1.0)],
)
def test_mcnemar_counts_only_the_questions_that_changed(gained, lost, p_value):
    before = [False] * gained + [True] * lost + [True] * 20 + [False] * 30
    after = [True] * gained + [False] * lost + [True] * 20 + [False] * 30
    result = mcnemar_exact(before, after)
    assert (result.n, result.gained, result.lost) == (len(before), gained, lost)
    assert result.p_value == pytest.approx(p_value)
    assert result.delta == pytest.approx((gained - lost) / len(before))


def test_mcnemar_refuses_lists_of_different_lengths():
    with pytest.raises(ValueError):
        mcnemar_exact([True], [True, False])


def test_the_permutation_test_is_exact_for_few_questions():
    # All 8 differences point the same way: of 2^8 sign patterns only two are as extreme.
    result = paired_permutation([0.0] * 8, [1, 2, 3, 4, 5, 6, 7, 8])
    assert result.p_value == pytest.approx(2 / 256)
    assert (result.gained, result.lost, result.delta) == (8, 0, 4.5)


def test_the_permutation_test_is_deterministic_and_holds_its_level():
    random = np.random.default_rng(1)
    p_values = [paired_permutation(random.normal(size=40), random.normal(size=40)).p_value for _ in range(30)]
    assert 0 <= sum(p < 0.05 for p in p_values) <= 5  # 1.5 expected where nothing changed
    before, after = random.normal(size=50), random.normal(size=50)
    assert paired_permutation(before, after) == paired_permutation(before, after)
    assert paired_permutation(before, random.normal(0.9, size=50)).p_value < 0.01


def test_equal_rewards_and_a_single_question_prove_nothing():
    assert paired_permutation([1.0, 2.0], [1.0, 2.0]).p_value == 1.0
    assert paired_permutation([1.0], [2.0]).p_value == 1.0


def test_better_needs_both_a_rise_and_significance():
    up, down = mcnemar_exact([False] * 9, [True] * 9), mcnemar_exact([True] * 9, [False] * 9)
    assert up.better(0.05) and not up.better(0.001)
    assert not down.better(0.05)


def test_tables_are_matched_by_id_whatever_their_order():
    before = pd.DataFrame({"id": list("abcd"), "correct": [False, False, True, True], "reward": 0.0})
    after = pd.DataFrame({"id": list("dcba"), "correct": [True, True, True, False], "reward": 1.0})
    result = compare(before, after)
    assert (result.gained, result.lost, result.test) == (1, 0, "exact McNemar test")


def test_without_a_gold_tables_are_compared_by_reward():
    before = pd.DataFrame({"id": list("ab"), "reward": [0.0, 1.0]})
    after = pd.DataFrame({"id": list("ba"), "reward": [0.5, 0.25]})
    result = compare(before, after)
    assert (result.gained, result.lost, result.test) == (1, 1, "paired permutation test")
    assert result.delta == pytest.approx(-0.125)


def test_tables_of_different_questions_cannot_be_compared():
    with pytest.raises(ValueError, match="different questions"):
        compare(pd.DataFrame({"id": ["a"], "reward": [0.0]}), pd.DataFrame({"id": ["b"], "reward": [0.0]}))
