"""Rewards by name, with their parameters."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rewards.calling import is_async
from rewards.registry import (
    REGISTRY,
    check_parameters,
    is_model_name,
    is_registered,
    load_reward,
    parameters_of,
)
from rewards.traits import traits_of

OWN = '''
from rewards.traits import declare

@declare(maximum=3.0, gold_column="answer")
def brief(prompts, completions, answer=None, limit=10, *, strict=False, **columns):
    """Shortness."""
    return [float(len(completion) <= limit) for completion in completions]

async def judged(prompts, completions, **columns):
    return [1.0 for _ in completions]

class Counting:
    def __init__(self): self.parts = "not a combination"
    def __call__(self, prompts, completions, **columns):
        return [2.0 for _ in completions]

counting = Counting()
number = 7
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def loaded(name: str, parameters: dict[str, Any] | None = None, **options: Any) -> Any:
    reward = load_reward(name, parameters, **options)
    assert callable(reward)
    return reward


def test_every_short_name_loads_under_its_own_name_with_its_traits() -> None:
    assert set(REGISTRY) == {
        *("correctness", "int", "soft_format", "strict_format", "xmlcount"),
        *("think_format", "sections_format", "boxed_accuracy", "length", "long_completion"),
    }
    for name, function in REGISTRY.items():
        assert loaded(name).__name__ == name
        assert traits_of(loaded(name)) == traits_of(function)


def test_parameters_are_bound() -> None:
    assert loaded("length", {"target": 100})(prompts=[""], completions=["x" * 90]) == [-10.0]
    sections = loaded("sections_format", {"sections": ["a"]})
    assert sections(prompts=[""], completions=["<a>text</a>"]) == [1.0]


def test_a_column_named_like_a_parameter_does_not_take_its_place() -> None:
    columns = {"target": ["paris"], "unit": ["kg"]}
    assert loaded("length")(prompts=[""], completions=["x" * 19], **columns) == [-1.0]
    assert loaded("length", {"target": 19})(prompts=[""], completions=["x" * 19], **columns) == [0.0]


def test_parameters_can_be_checked_by_name_alone() -> None:
    assert parameters_of("length") == {"target": 20, "unit": "characters"}
    assert parameters_of("sections_format") == {"sections": ("intro", "body", "conclusion")}
    assert parameters_of("correctness") == {}
    assert is_registered("length") and not is_registered("brevity")
    check_parameters("length", {"target": 100, "unit": "tokens"})


def test_an_unknown_parameter_is_named_with_the_accepted_ones() -> None:
    with pytest.raises(ValueError, match=r"reward length has no parameter 'taget'; it takes target, unit.*'target'"):
        load_reward("length", {"taget": 1})
    with pytest.raises(ValueError, match=r"it takes none"):
        load_reward("correctness", {"answer": ["1"]})


@pytest.mark.parametrize(
    ("name", "parameters", "problem"),
    [
        ("length", {"target": "long"}, "target"),
        ("length", {"unit": "words"}, "unit"),
        ("sections_format", {"sections": "intro"}, "sections"),
        ("sections_format", {"sections": []}, "sections"),
        ("sections_format", {"sections": ["a", "a"]}, "different"),
        ("sections_format", {"sections": ["a b"]}, "sections"),
    ],
)
def test_an_impossible_value_is_refused_when_loading(name: str, parameters: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=rf"reward {name}: .*{problem}"):
        load_reward(name, parameters)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no reward 'corectness'; known are .*xmlcount.*did you mean 'correctness'"):
        load_reward("corectness")


def test_a_function_comes_from_a_file_beside_the_configuration(folder: Path) -> None:
    reward = loaded("own.py:brief", {"limit": 3, "strict": True}, base=folder)
    assert reward(prompts=[""] * 2, completions=["abc", "abcd"], answer=["1", "2"]) == [1.0, 0.0]
    assert reward.__name__ == "brief"
    assert traits_of(reward).maximum == 3.0
    assert loaded("own.py:brief", label="short", base=folder).__name__ == "short"
    assert loaded(f"{folder}/own.py:brief")


def test_an_async_function_stays_async_and_a_callable_object_is_a_function_too(folder: Path) -> None:
    judged = loaded("own.py:judged", base=folder)
    assert is_async(judged)
    assert asyncio.run(judged(prompts=[""], completions=[""])) == [1.0]
    counting = loaded("own.py:counting", base=folder)
    assert counting(prompts=[""], completions=[""]) == [2.0]
    assert not hasattr(counting, "parts")


@pytest.mark.parametrize("name", ["own_rewards.short:brief", "own_rewards.short.brief"])
def test_a_function_comes_from_an_importable_module(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_rewards").mkdir()
    (tmp_path / "own_rewards" / "short.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    assert loaded(name, {"limit": 1})(prompts=[""], completions=["ab"]) == [0.0]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing.py:brief", "no file .*missing.py"),
        ("own.py:breif", "has no function 'breif'.*'brief'"),
        ("own.py:number", "has no function 'number'"),
        ("own.py", "no reward 'own.py'.*file.py:function"),
        ("broken.py:brief", "importing .*broken.py failed: ZeroDivisionError"),
        ("no_such_package.module:brief", "importing no_such_package.module failed: ModuleNotFoundError"),
        ("json:nothing", "json has no function 'nothing'"),
        (":brief", "no reward"),
        ("own.py:", "no reward"),
    ],
)
def test_code_that_cannot_be_had_is_a_clear_mistake(name: str, problem: str, folder: Path) -> None:
    (folder / "broken.py").write_text("1 / 0\n")
    with pytest.raises(ValueError, match=problem):
        load_reward(name, base=folder)


def test_a_parameter_of_ones_own_function_is_checked_too(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"has no parameter 'limits'; it takes answer, limit, strict"):
        load_reward("own.py:brief", {"limits": 3}, base=folder)


def test_a_file_may_be_named_like_a_module_of_the_library(tmp_path: Path) -> None:
    (tmp_path / "math.py").write_text(OWN)
    assert loaded("math.py:brief", base=tmp_path)
    import math

    assert math.pi > 3


def test_a_reward_model_is_passed_on_by_its_name(tmp_path: Path) -> None:
    assert load_reward("org/reward-model") == "org/reward-model"
    assert is_model_name("org/reward-model") and not is_model_name("my/rewards.py") and not is_model_name("a/b.py:c")
    (tmp_path / "my").mkdir()
    (tmp_path / "my" / "file").write_text("")
    assert not is_model_name("my/file", tmp_path)
    with pytest.raises(ValueError, match=r"takes no parameters"):
        load_reward("org/reward-model", {"threshold": 1})


def test_importing_the_registry_is_light() -> None:
    program = "import sys, rewards.registry; heavy = {'torch', 'sympy', 'math_verify', 'yaml', 'pydantic'}; "
    program += "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
