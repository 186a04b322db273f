"""The one wrapper around every reward that a run uses, the project's own and the user's."""

import math
import numbers
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from traceback import extract_tb
from typing import Any

from rewards.calling import Reward, finish, is_async
from rewards.completion import texts
from rewards.errors import RewardError
from rewards.opening import with_opening
from rewards.traits import declare, traits_of

# TRL passes its environments as a list too; they are live objects and belong to no row of the dataset.
_NOT_COLUMNS = ("environments",)
_OUR_CODE = Path(__file__).parent


def guard(reward: Reward, *, name: str, opening: str = "") -> Reward:
    """`reward` with the prompt's `opening` put back, its arguments protected and its result checked.

    The result is one finite float or `None` (not applicable) per completion. Whatever else comes of it, an
    exception included, raises `RewardError` with the reward's name, the row and the completion; nothing
    becomes 0.0. The reward works on copies, so it cannot change what the caller goes on with. The function
    returned has `name` as its `__name__` (TRL names the metrics by it), the traits of `reward`, and is
    async where `reward` is.
    """
    opened = with_opening(reward, opening)
    asynchronous = is_async(reward)

    async def evaluate(
        prompts: Sequence[Any], completions: Sequence[Any], columns: dict[str, Any]
    ) -> list[float | None]:
        async def call(rows: slice) -> Any:
            result = opened(**_arguments(prompts, completions, columns, rows))
            return await result if asynchronous else result

        try:
            values = await call(slice(None))
        except (Exception, SystemExit) as error:
            raise await _blamed(name, call, completions, columns, error) from error
        return list(_checked(name, values, completions, columns))

    if asynchronous:

        async def guarded_async(
            prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
        ) -> list[float | None]:
            return await evaluate(prompts, completions, columns)

        return _named(guarded_async, name, reward)

    def guarded(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        return finish(evaluate(prompts, completions, columns))

    return _named(guarded, name, reward)


def _named(function: Reward, name: str, reward: Reward) -> Reward:
    declare(**asdict(traits_of(reward)))(function)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = reward.__doc__
    return function


def _arguments(
    prompts: Sequence[Any], completions: Sequence[Any], columns: dict[str, Any], rows: slice
) -> dict[str, Any]:
    """Copies of the arguments of a call, cut to `rows` where they hold one value per completion."""
    arguments = {
        column: _copy(values[rows]) if _is_column(column, values, completions) else values
        for column, values in columns.items()
    }
    return {"prompts": _copy(list(prompts[rows])), "completions": _copy(list(completions[rows])), **arguments}


def _is_column(name: str, values: Any, completions: Sequence[Any]) -> bool:
    return isinstance(values, list) and len(values) == len(completions) and name not in _NOT_COLUMNS


def _copy(value: Any) -> Any:
    """A copy down through lists and dictionaries; what these hold (text, images) stays the same object."""
    # Asked of each item before the call, since most of what is copied are token ids.
    if isinstance(value, list):
        return [_copy(item) if isinstance(item, (list, dict)) else item for item in value]
    if isinstance(value, dict):
        return {key: _copy(item) if isinstance(item, (list, dict)) else item for key, item in value.items()}
    return value


async def _blamed(
    name: str,
    call: Callable[[slice], Coroutine[Any, Any, Any]],
    completions: Sequence[Any],
    columns: dict[str, Any],
    error: BaseException,
) -> RewardError:
    """The error that names the first row on which the reward raises alone, or the batch where none does."""
    for row in range(len(completions)):
        try:
            await call(slice(row, row + 1))
        except (Exception, SystemExit) as row_error:
            return _error(name, f"raised {_described(row_error)}", row, completions, columns)
    problem = f"raised {_described(error)} on a batch of {len(completions)}, but on no row of it alone"
    return RewardError(name, problem)


def _checked(name: str, values: Any, completions: Sequence[Any], columns: dict[str, Any]) -> Iterator[float | None]:
    if isinstance(values, Coroutine):
        values.close()
        raise RewardError(name, "returned a coroutine; a reward that awaits must be declared with async def")
    if isinstance(values, (str, dict)) or not hasattr(values, "__len__") or not hasattr(values, "__iter__"):
        raise RewardError(name, f"returned {type(values).__name__} instead of a list of numbers")
    try:
        count = len(values)
    except TypeError:  # an array without a dimension
        raise RewardError(name, f"returned {_shortened(repr(values))} instead of a list of numbers") from None
    if count != len(completions):
        raise RewardError(name, f"returned {count} values for {len(completions)} completions")
    for row, value in enumerate(values):
        try:
            yield _number(value)
        except (ValueError, TypeError, OverflowError, RuntimeError):
            problem = f"returned {_shortened(repr(value))}, which is neither a finite number nor None,"
            raise _error(name, problem, row, completions, columns) from None


def _number(value: Any) -> float | None:
    """`value` as TRL would take it; raises where it is neither a finite number nor None."""
    if hasattr(value, "item"):  # a number of numpy's or torch's; an array of several has no item
        value = value.item()
    if value is None:
        return None
    if not isinstance(value, (numbers.Real, Decimal)) or not math.isfinite(number := float(value)):
        raise ValueError(value)
    return number


def _error(name: str, problem: str, row: int, completions: Sequence[Any], columns: dict[str, Any]) -> RewardError:
    completion = completions[row]
    try:
        [text] = texts([completion])
    except ValueError:
        text = repr(completion)
    text = _shortened(text)
    known = {
        name: columns[name][row] for name in ("id", "source_row") if _is_column(name, columns.get(name), completions)
    }
    where = f"row {known.get('source_row', row)}" + (f" (id {known['id']})" if "id" in known else "")
    return RewardError(name, f"{problem} on {where}, completion {text!r}", row=row, completion=text)


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {_shortened(str(error))}{_place(error)}"


def _place(error: BaseException) -> str:
    """Where in the user's own file it was raised, or led to what was raised."""
    frames = [frame for frame in extract_tb(error.__traceback__) if Path(frame.filename).parent != _OUR_CODE]
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else text[:197] + "..."
