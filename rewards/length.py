"""Length rewards, in characters or in tokens, of the completion alone."""

import math
from collections.abc import Sequence
from typing import Any

from rewards.completion import texts
from rewards.traits import declare

UNITS = ("characters", "tokens")


@declare(maximum=0.0, completion_alone=True)
def length_reward_func(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    completion_ids: Sequence[Sequence[int]] | None = None,
    *,
    target: float = 20,
    unit: str = "characters",
    **columns: Any,
) -> list[float]:
    """Minus the distance of the completion's length from `target`, so 0.0 at best.

    `unit` is "characters", or "tokens" by TRL's `completion_ids`. Raises `ValueError` for an impossible
    target or unit, and for tokens without `completion_ids`.
    """
    if isinstance(target, bool) or not isinstance(target, (int, float)) or not 0 <= target < math.inf:
        raise ValueError(f"target must be a number of {unit} of at least 0, not {target!r}")
    # 0.0 minus, since minus 0.0 is -0.0
    return [0.0 - abs(float(target) - length) for length in _lengths(completions, completion_ids, unit)]


@declare(completion_alone=True)
def long_completion_reward_func(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    completion_ids: Sequence[Sequence[int]] | None = None,
    *,
    unit: str = "characters",
    **columns: Any,
) -> list[float]:
    """The length of the completion: its number of characters, or of tokens by TRL's `completion_ids`.

    Raises `ValueError` for an impossible unit, and for tokens without `completion_ids`.
    """
    return [float(length) for length in _lengths(completions, completion_ids, unit)]


def _lengths(completions: Sequence[Any], completion_ids: Sequence[Sequence[int]] | None, unit: str) -> list[int]:
    if unit not in UNITS:
        raise ValueError(f"unit must be one of {', '.join(UNITS)}, not {unit!r}")
    if unit == "characters":
        return [len(text) for text in texts(completions)]
    if completion_ids is None:
        raise ValueError("the unit tokens needs the column completion_ids, which TRL passes")
    if len(completion_ids) != len(completions):
        raise ValueError(f"there are {len(completion_ids)} completion_ids for {len(completions)} completions")
    return [len(ids) for ids in completion_ids]
