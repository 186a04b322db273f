"""What a reward function tells about itself, as attributes of the function.

    @declare(maximum=1.0, gold_column="answer")
    def my_reward(prompts, completions, answer, **columns): ...

The reward gate reads them: it can check only what a reward declares.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Traits:
    maximum: float | None = None
    """What a perfect completion earns; `None` where there is no such value."""
    gold_column: str | None = None
    """The dataset's column that the reward compares with; `None` where it compares with none."""
    completion_alone: bool = False
    """The reward sees the completion as generated: the prompt's opening is not put back in front of it."""
    deterministic: bool = True
    """The same completion always earns the same. A judge that samples declares `False`."""
    exact: bool = True
    """Only the gold itself is right. A reward that takes what is near enough declares `False`."""
    rare: bool = False
    """What it pays for, or fines, need not be in any gold: a word of thanks, a text in another language."""


def declare(
    *,
    maximum: float | None = None,
    gold_column: str | None = None,
    completion_alone: bool = False,
    deterministic: bool = True,
    exact: bool = True,
    rare: bool = False,
) -> Callable[[_Function], _Function]:
    """A decorator that sets the traits of a reward function, which `Traits` explains."""
    traits = Traits(maximum, gold_column, completion_alone, deterministic, exact, rare)

    def decorate(function: _Function) -> _Function:
        for name, value in asdict(traits).items():
            setattr(function, name, value)
        return function

    return decorate


def is_declared(reward: Callable[..., Any]) -> bool:
    """Whether a reward tells anything about itself that is not the default."""
    return traits_of(reward) != Traits()


def traits_of(reward: Callable[..., Any]) -> Traits:
    """The traits of any reward; one that declares nothing has the defaults of `Traits`."""
    defaults = asdict(Traits())
    return Traits(**{name: getattr(reward, name, default) for name, default in defaults.items()})
