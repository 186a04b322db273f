"""The length family beyond its cases."""

import pytest

from rewards import length_reward_func, long_completion_reward_func


def test_tokens_are_counted_by_the_ids_that_trl_passes() -> None:
    ids = [[6303, 13], [304, 279, 12884, 13]]
    completions = [" blue.", " in the sky."]
    assert long_completion_reward_func([""] * 2, completions, completion_ids=ids, unit="tokens") == [2.0, 4.0]
    assert length_reward_func([""] * 2, completions, completion_ids=ids, target=3, unit="tokens") == [
        -1.0,
        -1.0,
    ]


def test_the_target_itself_earns_a_plain_zero() -> None:
    assert str(length_reward_func([""], ["12345678901234567890"])) == "[0.0]"


def test_tokens_without_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="completion_ids"):
        length_reward_func([""], ["a"], unit="tokens")
    with pytest.raises(ValueError, match="1 completion_ids for 2 completions"):
        length_reward_func(["", ""], ["a", "b"], completion_ids=[[1]], unit="tokens")


@pytest.mark.parametrize("target", ["20", None, -1, float("nan"), float("inf"), True])
def test_an_impossible_target_is_refused(target: object) -> None:
    with pytest.raises(ValueError, match="target"):
        length_reward_func([], [], target=target)  # type: ignore[arg-type]


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="characters, tokens"):
        long_completion_reward_func([], [], unit="words")
