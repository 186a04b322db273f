"""Rewards by name: the project's own by a short name, the user's by a dotted path or a file.

`is_registered`, `parameters_of` and `check_parameters` run no code of the user's, so that a configuration
can be checked by them; `load_reward` imports it.
"""

import difflib
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from rewards.boxed import boxed_accuracy_reward_func
from rewards.calling import Reward, is_async
from rewards.formats import sections_format_reward_func, think_format_reward_func
from rewards.gsm8k import (
    correctness_reward_func,
    int_reward_func,
    soft_format_reward_func,
    strict_format_reward_func,
    xmlcount_reward_func,
)
from rewards.length import length_reward_func, long_completion_reward_func
from rewards.traits import declare, traits_of

REGISTRY: dict[str, Reward] = {
    "correctness": correctness_reward_func,
    "int": int_reward_func,
    "soft_format": soft_format_reward_func,
    "strict_format": strict_format_reward_func,
    "xmlcount": xmlcount_reward_func,
    "think_format": think_format_reward_func,
    "sections_format": sections_format_reward_func,
    "boxed_accuracy": boxed_accuracy_reward_func,
    "length": length_reward_func,
    "long_completion": long_completion_reward_func,
}

# What TRL itself passes to a reward; none of it is a parameter to configure.
_PASSED_BY_TRL = {
    "prompts",
    "completions",
    "completion_ids",
    "trainer_state",
    "log_extra",
    "log_metric",
    "environments",
}


def is_registered(name: str) -> bool:
    """Whether `name` is the short name of one of the project's rewards."""
    return name in REGISTRY


def is_model_name(name: str, base: Path | None = None) -> bool:
    """Whether `name` looks like a reward model (`org/model` or its folder) and not like a function."""
    return "/" in name and ":" not in name and not name.endswith(".py") and not _file(name, base).is_file()


def parameters_of(name: str) -> dict[str, Any]:
    """The parameters of a registered reward with their defaults."""
    return _parameters(REGISTRY[name])


def check_parameters(name: str, parameters: Mapping[str, Any]) -> None:
    """Raises `ValueError` where a registered reward does not accept `parameters`, by name or by value."""
    reward = REGISTRY[name]
    _check_names(name, reward, parameters)
    gold = traits_of(reward).gold_column
    try:
        reward(prompts=[], completions=[], completion_ids=[], **({gold: []} if gold else {}), **parameters)
    except ValueError as error:
        raise ValueError(f"reward {name}: {error}") from error


def load_reward(
    name: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    label: str | None = None,
    base: Path | None = None,
) -> Reward | str:
    """The reward function called `name`, with `parameters` bound as keyword arguments.

    `name` is a short name, `package.module:function`, `package.module.function`, or `file.py:function` with
    the file relative to the folder `base`. A name such as `org/model` is returned as it is: TRL loads
    reward models by name. The function's `__name__` is `label`, or else its own short name. Raises
    `ValueError` for an unknown name or parameter, and for code of the user's that cannot be imported.
    """
    parameters = dict(parameters or {})
    if is_registered(name):
        check_parameters(name, parameters)
        # All of them, so that a column of the dataset that happens to be called "target" is not taken for
        # one.
        return _bound(REGISTRY[name], {**parameters_of(name), **parameters}, label or name)
    if is_model_name(name, base):
        if parameters:
            raise ValueError(f"reward {name}: a reward model takes no parameters, not {_listed(parameters)}")
        return name
    reward = _user_function(name, base)
    _check_names(name, reward, parameters)
    return _bound(reward, parameters, label or name.replace(":", ".").rpartition(".")[2])


def columns_of(reward: Reward) -> list[str]:
    """The columns of the dataset without which `reward` cannot be called, by its signature."""
    return [
        name
        for name, parameter in inspect.signature(reward).parameters.items()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        and parameter.default is parameter.empty
        and name not in _PASSED_BY_TRL
    ]


def _parameters(reward: Reward) -> dict[str, Any]:
    """What can be configured: keywords with a default or without a position, beside what TRL passes."""
    return {
        name: None if parameter.default is parameter.empty else parameter.default
        for name, parameter in inspect.signature(reward).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and (parameter.default is not parameter.empty or parameter.kind is parameter.KEYWORD_ONLY)
        and name not in _PASSED_BY_TRL
    }


def _check_names(name: str, reward: Reward, parameters: Mapping[str, Any]) -> None:
    accepted = _parameters(reward)
    for parameter in parameters:
        if parameter not in accepted:
            takes = f"it takes {_listed(accepted)}" if accepted else "it takes none"
            raise ValueError(f"reward {name} has no parameter {parameter!r}; {takes}{_closest(parameter, accepted)}")


def _bound(reward: Reward, parameters: dict[str, Any], label: str) -> Reward:
    """`reward` called `label`, with its parameters set whatever the columns are called."""
    if is_async(reward):

        async def bound_async(**arguments: Any) -> Any:
            return await reward(**{**arguments, **parameters})

        bound: Reward = bound_async
    else:

        def bound(**arguments: Any) -> Any:
            return reward(**{**arguments, **parameters})

    if inspect.isroutine(reward):
        functools.update_wrapper(bound, reward)
    else:
        declare(**asdict(traits_of(reward)))(bound)
    bound.__name__ = bound.__qualname__ = label
    return bound


def _user_function(name: str, base: Path | None) -> Reward:
    location, attribute = _location_and_attribute(name)
    if not location or not attribute:
        raise ValueError(
            f"there is no reward {name!r}; known are {_listed(REGISTRY)}{_closest(name, REGISTRY)}. "
            "A function of your own is written package.module:function or file.py:function"
        )
    in_file = location.endswith(".py")
    module = _module_of_file(name, _file(location, base)) if in_file else _module(name, location)
    functions: dict[str, Reward] = {
        key: value for key, value in vars(module).items() if callable(value) and not key.startswith("_")
    }
    if attribute not in functions:
        raise ValueError(f"reward {name}: {location} has no function {attribute!r}{_closest(attribute, functions)}")
    return functions[attribute]


def _location_and_attribute(name: str) -> tuple[str, str]:
    """The module or file, and the function in it; either is empty where `name` does not tell it."""
    if name.endswith(".py"):
        return name, ""
    location, _, attribute = name.rpartition(":" if ":" in name else ".")
    return location, attribute


def _file(location: str, base: Path | None) -> Path:
    return (base or Path()) / Path(location).expanduser()


def _module(name: str, location: str) -> ModuleType:
    try:
        return importlib.import_module(location)
    except Exception as error:
        raise ValueError(f"reward {name}: importing {location} failed: {type(error).__name__}: {error}") from error


def _module_of_file(name: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"reward {name}: there is no file {path}")
    # A name of its own: a user's file called math.py must not take the place of the module math.
    module_name = f"rewards_of_{path.stem}_{abs(hash(path.resolve()))}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # the file may import its neighbours, which come after all else
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise ValueError(f"reward {name}: importing {path} failed: {type(error).__name__}: {error}") from error
    return module


def _closest(word: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
