"""One reward function of several."""

import inspect
import math
from collections.abc import Sequence
from typing import Any

from rewards.calling import Reward, finish, is_async
from rewards.traits import declare, traits_of


def combine(*parts: tuple[Reward, float], scale: float = 1.0, clip: tuple[float, float] | None = None) -> Reward:
    """The weighted sum of rewards as one reward function: `combine((correctness, 1.0), (length, 0.1))`.

    `scale` multiplies the sum, `clip` then limits it to `(lowest, highest)`. A part that gives `None` for a
    row does not apply to it and is left out of its sum; where no part applies, the result is `None`. The
    function is async where a part is. Raises `ValueError` for no parts, or weights, scale or limits that
    are no finite numbers.
    """
    if not parts or not all(isinstance(part, tuple) and len(part) == 2 and callable(part[0]) for part in parts):
        raise ValueError("combine takes one or more (reward, weight) pairs: combine((correctness, 1.0), (length, 0.1))")
    for number in (*(weight for _, weight in parts), scale, *(clip or ())):
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
            raise ValueError(f"the weights, scale and clip of combine must be finite numbers, not {number!r}")
    if clip is not None and (len(clip) != 2 or clip[0] > clip[1]):
        raise ValueError(f"the clip of combine must be (lowest, highest), not {clip!r}")

    async def evaluate(**arguments: Any) -> list[float | None]:
        values = []
        for part, (reward, _) in enumerate(parts, start=1):
            result = reward(**arguments)
            result = await result if inspect.isawaitable(result) else result
            if len(result) != len(arguments["completions"]):
                count = len(arguments["completions"])
                raise ValueError(f"part {part} of combine gave {len(result)} values for {count} completions")
            values.append(result)
        return [_total(row, parts, scale, clip) for row in zip(*values, strict=True)]

    if any(is_async(reward) for reward, _ in parts):

        async def combined_async(
            prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
        ) -> list[float | None]:
            return await evaluate(prompts=prompts, completions=completions, **columns)

        return _described(combined_async, parts, scale, clip)

    def combined(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        return finish(evaluate(prompts=prompts, completions=completions, **columns))

    return _described(combined, parts, scale, clip)


def _total(
    row: tuple[float | None, ...],
    parts: tuple[tuple[Reward, float], ...],
    scale: float,
    clip: tuple[float, float] | None,
) -> float | None:
    weighted = [weight * value for value, (_, weight) in zip(row, parts, strict=True) if value is not None]
    if not weighted:
        return None
    total = scale * sum(weighted)
    return total if clip is None else float(min(max(total, clip[0]), clip[1]))


def _described(
    function: Reward, parts: tuple[tuple[Reward, float], ...], scale: float, clip: tuple[float, float] | None
) -> Reward:
    """`function` with the traits that follow from its parts, and the parts themselves for `with_opening`."""
    traits = [traits_of(reward) for reward, _ in parts]
    maxima = tuple(trait.maximum for trait in traits)
    best = None
    if scale >= 0 and all(weight >= 0 for _, weight in parts) and None not in maxima:
        best = _total(maxima, parts, scale, clip)
    golds = {trait.gold_column for trait in traits if trait.gold_column is not None}
    declare(
        maximum=best,
        gold_column=golds.pop() if len(golds) == 1 else None,
        completion_alone=all(trait.completion_alone for trait in traits),
        deterministic=all(trait.deterministic for trait in traits),
        exact=all(trait.exact for trait in traits),
        rare=all(trait.rare for trait in traits),
    )(function)
    function.parts = parts  # type: ignore[attr-defined]
    function.options = {"scale": scale, "clip": clip}  # type: ignore[attr-defined]
    return function
