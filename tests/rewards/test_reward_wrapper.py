"""The one wrapper around every reward."""

import asyncio
import pickle
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from rewards import (
    RewardError,
    combine,
    correctness_reward_func,
    length_reward_func,
    soft_format_reward_func,
)
from rewards.calling import is_async
from rewards.traits import traits_of
from rewards.wrapper import guard

OPENING = "<reasoning>\n"
REST = "6 * 12\n</reasoning>\n<answer>\n72\n</answer>"


def message(text: str) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": text}]


def test_the_opening_is_put_back_in_front_of_strings_and_messages() -> None:
    reward = guard(soft_format_reward_func, name="soft", opening=OPENING)
    assert reward(["?"], [REST]) == [0.5]
    assert reward(["?"], [message(REST)]) == [0.5]
    assert reward(["?"], [[{"content": REST}]]) == [0.5]
    assert reward(["?"], [message([{"type": "text", "text": REST}])]) == [0.5]  # type: ignore[arg-type]
    assert soft_format_reward_func(["?"], [REST]) == [0.0]


def test_the_opening_goes_before_the_first_thing_that_the_assistant_says() -> None:
    seen: list[Any] = []

    def reward(completions: Any, **columns: Any) -> list[float]:
        seen.extend(completions)
        return [0.0]

    turns = [{"role": "tool", "content": "a"}, *message("b"), *message("c")]
    guard(reward, name="r", opening="> ")(["?"], [turns])
    assert [turn["content"] for turn in seen[0]] == ["a", "> b", "c"]
    assert [turn["content"] for turn in turns] == ["a", "b", "c"]


def test_lengths_are_those_of_the_completion_alone() -> None:
    assert guard(length_reward_func, name="length", opening=OPENING)(["?"], ["x" * 20]) == [0.0]


def test_in_a_combination_each_part_sees_the_completion_in_its_own_way() -> None:
    both = combine((soft_format_reward_func, 1.0), (length_reward_func, 1.0), scale=2.0)
    assert guard(both, name="both", opening=OPENING)(["?"], [REST]) == [2 * (0.5 - (len(REST) - 20))]


def test_none_and_whole_numbers_are_values() -> None:
    values = guard(lambda **_: [None, 1, True, 2.5], name="r")([""] * 4, [""] * 4)
    assert values == [None, 1.0, 1.0, 2.5]
    assert [type(value) for value in values[1:]] == [float] * 3


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([1.0], "returned 1 values for 2 completions"),
        ([1.0] * 3, "returned 3 values for 2 completions"),
        (None, "returned NoneType instead of a list"),
        (1.0, "returned float instead of a list"),
        ("ab", "returned str instead of a list"),
        ([1.0, float("nan")], "returned nan, .* on row 1, completion 'b'"),
        ([float("inf"), 1.0], "returned inf, .* on row 0, completion 'a'"),
        ([1.0, "1"], "returned '1', .* on row 1"),
        ([[1.0], [1.0]], r"returned \[1.0\], .* on row 0"),
    ],
)
def test_what_is_no_reward_stops_with_reward_row_and_completion(values: Any, problem: str) -> None:
    with pytest.raises(RewardError, match=rf"reward mine: {problem}"):
        guard(lambda **_: values, name="mine")(["", ""], ["a", "b"])


def failing(completions: list[str], **columns: Any) -> list[float]:
    return [1 / (completion != "bad") for completion in completions]


def test_an_exception_names_reward_row_and_completion_and_keeps_its_cause() -> None:
    with pytest.raises(RewardError) as caught:
        guard(failing, name="mine")([""] * 3, ["a", "bad", "bad"], id=["x-1", "x-2", "x-3"])
    error = caught.value
    assert (error.reward, error.row, error.completion) == ("mine", 1, "bad")
    assert "reward mine: raised ZeroDivisionError" in str(error) and "row 1 (id x-2), completion 'bad'" in str(error)
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_long_completion_is_shortened_in_the_message() -> None:
    with pytest.raises(RewardError) as caught:
        guard(lambda **_: 1 / 0, name="mine")([""], ["x" * 100_000])
    assert caught.value.completion == "x" * 197 + "..."
    assert len(str(caught.value)) < 400


def test_an_exception_on_the_batch_only_blames_no_row() -> None:
    def reward(completions: list[str], **columns: Any) -> list[float]:
        return [1 / (2 - len(completions))] * len(completions)

    with pytest.raises(RewardError, match=r"on a batch of 2, but on no row of it alone") as caught:
        guard(reward, name="mine")(["", ""], ["a", "b"])
    assert caught.value.row is None


def test_a_gold_that_is_no_number_stops_instead_of_giving_zero() -> None:
    with pytest.raises(RewardError, match=r"reward correctness: .*the gold 'many' is not one number on row 1"):
        guard(correctness_reward_func, name="correctness")([""] * 2, ["a", "b"], answer=["1", "many"])


def test_signals_and_interrupts_pass() -> None:
    def reward(**columns: Any) -> list[float]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guard(reward, name="mine")([""], [""])


def test_a_reward_cannot_change_what_the_caller_passes() -> None:
    def vandal(prompts: Any, completions: Any, answer: Any, tags: Any, **columns: Any) -> list[float]:
        values = [0.0] * len(completions)
        prompts[0][0]["content"] = completions[0][0]["content"] = "changed"
        completions[0].append({"role": "user"})
        tags[0].append("changed")
        for argument in (prompts, completions, answer):
            argument.clear()
        return values

    arguments = {
        "prompts": [message("p")],
        "completions": [message("c")],
        "answer": ["1"],
        "tags": [["t"]],
    }
    guard(vandal, name="vandal")(**arguments)
    assert arguments == {
        "prompts": [message("p")],
        "completions": [message("c")],
        "answer": ["1"],
        "tags": [["t"]],
    }


def test_what_trl_passes_beside_columns_arrives_untouched() -> None:
    state, environments, seen = object(), [object(), object()], {}

    def reward(completions: Any, **columns: Any) -> list[float]:
        seen.update(columns)
        return [0.0] * len(completions)

    guard(reward, name="r")(
        prompts=["", ""],
        completions=["", ""],
        trainer_state=state,
        environments=environments,
        log_extra=print,
        completion_ids=[[1], [2]],
        shared=[1, 2, 3],
    )
    assert seen["trainer_state"] is state and seen["log_extra"] is print
    assert seen["environments"] is environments
    assert seen["completion_ids"] == [[1], [2]] and seen["shared"] == [1, 2, 3]


def test_async_rewards_stay_async_and_are_checked_alike() -> None:
    async def reward(completions: list[str], **columns: Any) -> list[float]:
        await asyncio.sleep(0)
        return failing(completions)

    guarded = guard(reward, name="mine", opening=">")
    assert is_async(guarded)
    assert asyncio.run(guarded(["", ""], ["a", "bad"])) == [1.0, 1.0]
    unopened = guard(reward, name="mine")
    with pytest.raises(RewardError, match=r"row 1, completion 'bad'"):
        asyncio.run(unopened(["", ""], ["a", "bad"]))


def test_a_coroutine_from_a_plain_function_is_explained() -> None:
    async def later() -> list[float]:
        return [1.0]

    with pytest.raises(RewardError, match=r"async def"):
        guard(lambda **_: later(), name="mine")([""], [""])


def test_it_has_the_name_and_the_traits_that_trl_and_the_gate_read() -> None:
    reward = guard(correctness_reward_func, name="right", opening=OPENING)
    assert reward.__name__ == "right"
    assert traits_of(reward) == traits_of(correctness_reward_func)


@pytest.mark.parametrize(
    "values",
    [
        np.array([1.0, 2.0]),
        torch.tensor([1.0, 2.0]),
        [torch.tensor(1.0), np.float32(2)],
        [Decimal(1), Fraction(2)],
        [np.True_, 2],
    ],
    ids=["array", "tensor", "numbers of torch and numpy", "Decimal and Fraction", "bool"],
)
def test_whatever_is_a_number_is_taken_as_trl_takes_it(values: Any) -> None:
    found = guard(lambda prompts, completions, **_: values, name="mine")(prompts=["", ""], completions=["", ""])
    assert found == [1.0, 2.0] and all(type(value) is float for value in found)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.zeros((2, 3)), "neither a finite number nor None"),
        (np.array(1.0), "instead of a list of numbers"),
        ([10**400, 1.0], "neither a finite number nor None"),
        ([[1.0], [2.0]], "neither a finite number nor None"),
        ([torch.ones(2), 1.0], "neither a finite number nor None"),
    ],
)
def test_what_is_no_list_of_numbers_is_named_with_the_reward(values: Any, said: str) -> None:
    reward = guard(lambda completions, **_: values, name="mine")
    with pytest.raises(RewardError, match=said) as refused:
        reward(["?", "?"], ["a", "b"])
    assert "mine" in str(refused.value)
