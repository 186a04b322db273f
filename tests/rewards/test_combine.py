"""Several rewards as one."""

import asyncio
from typing import Any

import pytest

from rewards import combine, correctness_reward_func, length_reward_func, xmlcount_reward_func
from rewards.calling import is_async
from rewards.traits import declare, traits_of

RIGHT = "<answer>72</answer>"


def constant(*values: float | None) -> Any:
    return lambda prompts, completions, **columns: list(values)


async def eventually(prompts: Any, completions: Any, **columns: Any) -> list[float]:
    await asyncio.sleep(0)
    return [1.0] * len(completions)


def test_it_is_the_weighted_sum() -> None:
    reward = combine((correctness_reward_func, 1.0), (xmlcount_reward_func, 2.0), (length_reward_func, 0.1))
    assert reward(["?"], [RIGHT], answer=["72"]) == [pytest.approx(2.0 + 2 * 0.25 + 0.1 * -abs(20 - len(RIGHT)))]


def test_scale_comes_before_clip() -> None:
    reward = combine((constant(1.0, 5.0, -9.0), 1.0), scale=0.5, clip=(-1.0, 2.0))
    assert reward([""] * 3, [""] * 3) == [0.5, 2.0, -1.0]


def test_a_part_that_does_not_apply_is_left_out_and_none_remains_where_none_applies() -> None:
    reward = combine((constant(None, 1.0, None), 1.0), (constant(2.0, 2.0, None), 0.5))
    assert reward([""] * 3, [""] * 3) == [1.0, 2.0, None]
    assert combine((constant(0.0), 1.0), (constant(None), 1.0))([""], [""]) == [0.0]


def test_async_parts_make_it_async() -> None:
    reward = combine((eventually, 1.0), (constant(3.0), 1.0))
    assert is_async(reward)
    assert asyncio.run(reward(prompts=[""], completions=[""])) == [4.0]
    assert not is_async(combine((constant(3.0), 1.0)))


def test_a_part_that_gives_too_few_values_is_named() -> None:
    with pytest.raises(ValueError, match="part 2 of combine gave 1 values for 2 completions"):
        combine((constant(1.0, 2.0), 1.0), (constant(1.0), 1.0))(["", ""], ["", ""])


def test_its_traits_follow_from_its_parts() -> None:
    both = combine((correctness_reward_func, 1.0), (xmlcount_reward_func, 2.0), scale=0.5)
    assert traits_of(both).maximum == 0.5 * (2.0 + 2 * 0.5)
    assert traits_of(both).gold_column == "answer"
    assert not traits_of(combine((length_reward_func, 1.0), (xmlcount_reward_func, 1.0))).completion_alone
    assert traits_of(combine((length_reward_func, 1.0))).completion_alone
    assert traits_of(combine((correctness_reward_func, 1.0), clip=(0.0, 1.0))).maximum == 1.0
    assert traits_of(combine((correctness_reward_func, -1.0))).maximum is None
    assert traits_of(combine((constant(1.0), 1.0))).maximum is None
    assert not traits_of(combine((declare(deterministic=False)(constant(1.0)), 1.0))).deterministic


@pytest.mark.parametrize(
    ("parts", "options"),
    [
        ([], {}),
        ([correctness_reward_func], {}),
        ([(correctness_reward_func,)], {}),
        ([("correctness", 1.0)], {}),
        ([(constant(1.0), float("nan"))], {}),
        ([(constant(1.0), "1")], {}),
        ([(constant(1.0), 1.0)], {"scale": float("inf")}),
        ([(constant(1.0), 1.0)], {"clip": (1.0, 0.0)}),
        ([(constant(1.0), 1.0)], {"clip": (1.0,)}),
    ],
)
def test_what_cannot_be_combined_is_refused(parts: Any, options: Any) -> None:
    with pytest.raises(ValueError, match="combine"):
        combine(*parts, **options)
