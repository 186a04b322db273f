"""Calling rewards alike, whether they are plain or async functions."""

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")

Reward = Callable[..., Any]
"""A reward: `(prompts=…, completions=…, **columns)` to a list of `float | None`, or a coroutine of it."""


def is_async(reward: Reward) -> bool:
    """Whether calling `reward` gives a coroutine, by TRL's own test: partials and callable objects too."""
    while isinstance(reward, functools.partial):
        reward = reward.func
    return inspect.iscoroutinefunction(reward) or inspect.iscoroutinefunction(type(reward).__call__)


def finish(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """The result of a coroutine that never has to wait, without an event loop.

    It lets code that serves plain and async rewards be written once, as a coroutine.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: _Result = end.value
        return result
    raise AssertionError("a coroutine that only calls plain functions waited")
