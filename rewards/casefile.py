"""Reward cases: what a reward gives for a completion, written down.

A file is JSONL (one case a line) or YAML (a list of cases). A case of a completion:

    {"completion": "<answer>72</answer>", "gold": "72", "correctness": 2.0, "int": 0.5, "note": "no
    reasoning"}

`completion` is a string or a message list, `gold` the column `answer`; every key that is not named below is a
reward, with the value it gives (`null`: not applicable). `columns` holds further columns of the row,
`completion_ids` the tokens, `parameters` the keyword arguments per reward. `"kind": "gold"` marks a case of a
dataset's answer: {"kind": "gold", "answer": "…#### 72", "gold": "72"}, where a gold of `null` means refused.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

_FIELDS = ("kind", "id", "completion", "prompt", "gold", "columns", "completion_ids", "parameters", "note")
_GOLD_FIELDS = ("kind", "id", "answer", "gold", "note")


@dataclass(frozen=True)
class Case:
    where: str
    """File and line."""
    completion: str | list[dict[str, Any]]
    values: dict[str, float | None]
    """The expected value per reward."""
    prompt: Any = ""
    columns: dict[str, Any] = field(default_factory=dict)
    """One row's value per column; the gold is the column `answer`."""
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Keyword arguments per reward; none means its defaults."""
    note: str = ""


@dataclass(frozen=True)
class GoldCase:
    where: str
    answer: str
    gold: str | None
    """The plain number string, or `None` where the answer is refused."""
    note: str = ""


def shipped_cases(reward_name: str) -> list[Case]:
    """The project's own cases of a registered reward."""
    return [case for case in _shipped() if isinstance(case, Case) and reward_name in case.values]


def shipped_gold_cases() -> list[GoldCase]:
    """The project's own cases of `extract_hash_answer`."""
    return [case for case in _shipped() if isinstance(case, GoldCase)]


def read_cases(path: Path) -> list[Case | GoldCase]:
    """The cases of a JSONL or (by its suffix) YAML file.

    Raises `ValueError` naming file and line where the file is missing or a case is malformed.
    """
    if not path.is_file():
        raise ValueError(f"there is no cases file {path}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8: {error}") from error
    entries = _yaml_entries(path, text) if path.suffix in (".yaml", ".yml") else _json_entries(path.name, text)
    return [_case(where, entry) for where, entry in entries]


def _shipped() -> Iterator[Case | GoldCase]:
    for file in sorted((resources.files("rewards") / "cases").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".jsonl"):
            for where, entry in _json_entries(file.name, file.read_text(encoding="utf-8")):
                yield _case(where, entry)


def _json_entries(name: str, text: str) -> Iterator[tuple[str, Any]]:
    # Only "\n" ends a line: a JSON string may hold other line separators as they are.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield f"{name}:{number}", json.loads(line)
            except ValueError as error:
                raise ValueError(f"{name}:{number}: is not JSON: {error}") from error
            except RecursionError as error:
                raise ValueError(f"{name}:{number}: is nested too deeply; write it flatter") from error


def _yaml_entries(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    try:
        import yaml
    except ImportError as error:
        raise ValueError(f"{path}: reading YAML needs the package pyyaml; write the cases as JSONL") from error
    try:
        loader = yaml.SafeLoader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        character = f"U+{ord(text[error.position]):04X}"
        raise ValueError(f"{path.name}:{line}: is not YAML: it holds the control character {character}") from error
    line = 1
    try:
        document = loader.get_single_node()
        listed = document.value if isinstance(document, yaml.SequenceNode) else None
        if listed is None:
            raise ValueError(f"{path.name}:1: is not a list of cases")
        for node in listed:
            line = node.start_mark.line + 1
            yield f"{path.name}:{line}", _constructed(f"{path.name}:{line}", loader, node)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ValueError(f"{path.name}:{line}: is not YAML: {error.problem}") from error
    except RecursionError as error:
        raise ValueError(f"{path.name}:{line}: is nested too deeply; write it flatter") from error
    finally:
        loader.dispose()


def _constructed(where: str, loader: Any, node: Any) -> Any:
    """What a node of YAML holds; its tags take values that Python refuses, such as a date in the month 13."""
    try:
        return loader.construct_object(node, deep=True)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{where}: a value cannot be read ({error}); put it in quotes") from error


def _case(where: str, entry: Any) -> Case | GoldCase:
    _require(isinstance(entry, dict), where, f"a case is a mapping, not {type(entry).__name__}")
    kind = entry.get("kind", "completion")
    if kind == "gold":
        return _gold_case(where, entry)
    _require(kind == "completion", where, f"kind must be 'completion' or 'gold', not {kind!r}")
    completion = entry.get("completion")
    _require(isinstance(completion, (str, list)), where, "completion must be a text or a list of messages")
    values = {key: _value(where, key, value) for key, value in entry.items() if key not in _FIELDS}
    _require(bool(values), where, "the case names no reward and its value")
    columns = _mapping(where, entry, "columns")
    if entry.get("gold") is not None:
        columns["answer"] = str(entry["gold"])
    if "completion_ids" in entry:
        columns["completion_ids"] = entry["completion_ids"]
    return Case(
        where=where,
        completion=completion,
        values=values,
        prompt=entry.get("prompt", ""),
        columns=columns,
        parameters=_mapping(where, entry, "parameters"),
        note=str(entry.get("note", "")),
    )


def _gold_case(where: str, entry: dict[str, Any]) -> GoldCase:
    known = all(key in _GOLD_FIELDS for key in entry)
    complete = isinstance(entry.get("answer"), str) and "gold" in entry
    _require(known and complete, where, "a gold case has answer, a text, and gold, a number string or null")
    gold = entry["gold"]
    return GoldCase(where, entry["answer"], None if gold is None else str(gold), str(entry.get("note", "")))


def _value(where: str, key: str, value: Any) -> float | None:
    if value is None:
        return None
    # A whole number may be too large for math.isfinite.
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    _require(is_number, where, f"{key} must be a number, the value of the reward {key}, not {value!r}")
    return float(value)


def _mapping(where: str, entry: dict[str, Any], key: str) -> dict[str, Any]:
    value = entry.get(key, {})
    _require(isinstance(value, dict), where, f"{key} must be a mapping, not {type(value).__name__}")
    return dict(value)


def _require(condition: bool, where: str, problem: str) -> None:
    if not condition:
        raise ValueError(f"{where}: {problem}")
