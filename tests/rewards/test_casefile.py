"""Cases files, the user's own included."""

from pathlib import Path

import pytest

from rewards.casefile import Case, GoldCase, read_cases


def write(tmp_path: Path, name: str, text: str | bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_jsonl_and_yaml_say_the_same(tmp_path: Path) -> None:
    jsonl = write(
        tmp_path,
        "cases.jsonl",
        '\ufeff{"completion": "a\u2028b", "gold": 72, "mine": 1, "columns": {"level": "hard"}}\r\n'
        "\n"
        '{"kind": "gold", "answer": "#### 72", "gold": null}\n',
    )
    listed = write(
        tmp_path,
        "cases.yaml",
        '# my cases\n- completion: "a\\u2028b"\n  gold: 72\n  mine: 1\n  columns: {level: hard}\n\n'
        "- {kind: gold, answer: '#### 72', gold: null}\n",
    )
    first, second = read_cases(jsonl)
    assert isinstance(first, Case) and isinstance(second, GoldCase)
    assert (first.where, second.where) == ("cases.jsonl:1", "cases.jsonl:3")
    assert first.values == {"mine": 1.0}
    assert first.columns == {"level": "hard", "answer": "72"}
    assert second.gold is None
    from_yaml, gold_from_yaml = read_cases(listed)
    assert (from_yaml.where, gold_from_yaml.where) == ("cases.yaml:2", "cases.yaml:7")
    assert isinstance(from_yaml, Case)
    assert (from_yaml.completion, from_yaml.values, from_yaml.columns) == (
        first.completion,
        first.values,
        first.columns,
    )


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("c.jsonl", '{"completion": "a", "mine": 1}\n{"completion"', "c.jsonl:2: is not JSON"),
        ("c.jsonl", "[1]", "c.jsonl:1: a case is a mapping, not list"),
        ("c.jsonl", '{"mine": 1}', "c.jsonl:1: completion must be"),
        ("c.jsonl", '{"completion": "a"}', "c.jsonl:1: the case names no reward"),
        ("c.jsonl", '{"completion": "a", "mine": "1"}', "c.jsonl:1: mine must be a number.*'1'"),
        ("c.jsonl", '{"completion": "a", "mine": NaN}', "c.jsonl:1: mine must be a number"),
        ("c.jsonl", '{"completion": "a", "mine": true}', "c.jsonl:1: mine must be a number"),
        ("c.jsonl", '{"completion": "a", "mine": 1, "columns": []}', "c.jsonl:1: columns must be a mapping"),
        ("c.jsonl", '{"kind": "silver", "completion": "a"}', "c.jsonl:1: kind must be"),
        ("c.jsonl", '{"kind": "gold", "answer": "a"}', "c.jsonl:1: a gold case has"),
        ("c.jsonl", '{"kind": "gold", "answer": 1, "gold": "1"}', "c.jsonl:1: a gold case has"),
        ("c.yaml", "- completion: a\n  mine: 1\n- completion: b\n", "c.yaml:3: the case names no reward"),
        ("c.yaml", "- completion: a\n  mine: [1\n", "c.yaml:3: is not YAML"),
        ("c.yaml", "completion: a\n", "c.yaml:1: is not a list"),
        ("c.yaml", "", "c.yaml:1: is not a list"),
        ("c.yml", "- !!python/object:os.system {}\n", "c.yml:1: is not YAML"),
        ("c.jsonl", b"\xff\xfe", "c.jsonl: is not UTF-8"),
        ("c.jsonl", '{"completion": "a", "mine": 1}\n' + "[" * 200_000, "c.jsonl:2: is nested too deeply"),
        ("c.jsonl", f'{{"completion": "a", "mine": {10**400}}}', "c.jsonl:1: mine must be a number"),
        ("c.yaml", "- completion: a\n  mine: 1\n- completion: \x07\n", r"c.yaml:3: is not YAML: .* character U\+0007"),
        ("c.yaml", "- completion: a\n  mine: " + "[" * 1_500, "c.yaml:1: is nested too deeply"),
        (
            "c.yaml",
            "- completion: a\n  mine: 1\n- completion: 2024-13-01\n",
            "c.yaml:3: a value cannot be read .*month",
        ),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, name: str, text: str | bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_cases(write(tmp_path, name, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no cases file .*none.jsonl"):
        read_cases(tmp_path / "none.jsonl")
