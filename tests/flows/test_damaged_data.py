"""Each kind of damage is refused by the command with the row and the reason, on one screen; harmless variety is not."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sandbox import Sandbox, write_config

ROWS = [
    {
        "question": f"Ann has {n} shells and finds 7 more. How many has she?",
        "answer": f"<<{n}+7={n + 7}>>\n#### {n + 7}",
    }
    for n in range(60)
]
TEST = [
    {"question": f"How much is twice the number {n}?", "answer": f"<<2*{n}={2 * n}>>\n#### {2 * n}"} for n in range(20)
]

Row = dict[str, Any]


def jsonl(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(rows: list[Row]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def changed(row: int, **values: Any) -> bytes:
    """The training rows, one of them (from 1) with other values."""
    rows = [dict(one) for one in ROWS]
    rows[row - 1] |= values
    return jsonl(rows)


FINE = jsonl(ROWS)
FIRST_TEN = jsonl(ROWS[:10])

# The file of the training rows, its content, and what must be said of it.
DAMAGED: dict[str, tuple[str, bytes, tuple[str, ...]]] = {
    "invalid UTF-8": (
        "train.jsonl",
        FIRST_TEN + FINE.replace(b"Ann has 10 ", b"\xc4nn has 10 "),
        ("line 21 is not UTF-8", "0xc4"),
    ),
    "a NUL byte": ("train.jsonl", FIRST_TEN + b'{"question": "\0"}\n', ("line 11 holds a NUL byte",)),
    "broken JSON": (
        "train.jsonl",
        FIRST_TEN + b'{"question": oh}\n' + FINE,
        ("line 11 is not valid JSON", "column 14"),
    ),
    "a truncated last line": ("train.jsonl", FINE[:-20], ("line 60, the last, is cut short",)),
    "null": ("train.jsonl", changed(7, question=None), ("no question is missing", "row 7: null")),
    "blank": ("train.jsonl", changed(7, answer=" \n "), ("no answer is blank", "row 7: ' \\n '")),
    "a number where text belongs": ("train.jsonl", changed(7, answer=5), ("line 7", "'answer' holds a number", ": 5;")),
    "two ####": ("train.jsonl", changed(7, answer="#### 5 #### 6"), ("exactly one ####", "row 7: '#### 5 #### 6'")),
    "no ####": ("train.jsonl", changed(7, answer="It is 5."), ("exactly one ####", "row 7: 'It is 5.'")),
    "a gold in words": (
        "train.jsonl",
        changed(7, answer="#### five"),
        ("one number behind ####", "row 7: '#### five'"),
    ),
    "a duplicate": (
        "train.jsonl",
        changed(7, question=ROWS[2]["question"].upper()),
        ("every question is unique", "row 7: 'ANN HAS 2", "(asked in row 3 too)"),
    ),
    "a leaked test row": (
        "train.jsonl",
        changed(7, question=TEST[4]["question"]),
        ("no question is asked in test too", "row 7: 'How much", "(as in row 5 of test)"),
    ),
    "a key twice": (
        "train.jsonl",
        FIRST_TEN + FINE.replace(b'"answer"', b'"answer": "", "answer"', 1),
        ("line 11 is not valid JSON", "the key 'answer' twice"),
    ),
    "a wrong chain of results": (
        "train.jsonl",
        changed(7, answer="<<6+7=13=14>>\n#### 14"),
        ("calculator annotation <<…=…>> is right", "row 7: '<<6+7=13=14>> (it is 13)'"),
    ),
    "a renamed column": (
        "train.jsonl",
        FINE.replace(b'"question"', b'"qestion"'),
        ("line 1 has no column 'question'", "(is 'qestion' meant?)"),
    ),
    "a nested object": ("train.jsonl", changed(7, question={"text": "?"}), ("line 7", "'question' holds an object")),
    "an oversized row": ("train.jsonl", changed(7, answer="x" * 2**20), ("line 7 is longer than 1 MiB",)),
    "a wrong annotation": (
        "train.jsonl",
        changed(7, answer="<<6+7=14>>\n#### 14"),
        ("calculator annotation <<…=…>> is right", "row 7: '<<6+7=14>> (it is 13)'"),
    ),
    "mixed types": (
        "train.jsonl",
        jsonl([{**row, "level": "hard" if n == 6 else 1} for n, row in enumerate(ROWS)]),
        ("'level' has mixed types, a number in line 1 and text in line 7",),
    ),
    "an empty split": ("train.jsonl", b"\n", ("the split 'train'", "holds no rows")),
    "a Parquet file cut short": ("train.parquet", parquet(ROWS)[:-9], ("is not a whole Parquet file",)),
    "gzip damage": ("train.jsonl.gz", gzip.compress(FINE)[:-9], ("is not a whole gzip file",)),
}

HARMLESS: dict[str, tuple[str, bytes]] = {
    "a BOM": ("train.jsonl", b"\xef\xbb\xbf" + FINE),
    "CRLF": ("train.jsonl", FINE.replace(b"\n", b"\r\n")),
    "blank lines": ("train.jsonl", FINE.replace(b"\n", b"\n\n \n")),
    "extra columns": ("train.jsonl", jsonl([{**row, "level": n, "tags": ["a"]} for n, row in enumerate(ROWS)])),
    "gzip": ("train.jsonl.gz", gzip.compress(FINE)),
    "Parquet": ("train.parquet", parquet(ROWS)),
    "no line break at the end": ("train.jsonl", FINE.rstrip()),
    "one file": ("all.jsonl", FINE),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What `python -m flows.check` made of each; the commands run one after the other in one process."""
    place = Sandbox(tmp_path_factory.mktemp("damaged"))
    config = write_config(place.folder / "config.yaml", {"rewards": {"functions": [{"name": "xmlcount"}]}})
    cases = {}
    for name, (file, content, *_) in (DAMAGED | HARMLESS).items():
        folder = place.folder / name.replace(" ", "-")
        folder.mkdir()
        (folder / file).write_bytes(content)
        if name == "one file":
            folder = folder / file
        else:
            (folder / "test.jsonl").write_bytes(jsonl(TEST))
        cases[name] = ["flows.check", str(config), f"data.path={folder}"]
    (place.folder / "cases.json").write_text(json.dumps(cases))
    done = place.run("tests/flows/command_lines.py", *(str(place.folder / f"{name}.json") for name in ("cases", "out")))
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(Path(place.folder / "out.json").read_text())
    return found


@pytest.mark.parametrize("kind", DAMAGED)
def test_damage_is_refused_with_the_row_and_the_reason_on_one_screen(kind, outcomes):
    outcome = outcomes[kind]
    assert outcome["code"] == 2
    for words in DAMAGED[kind][2]:
        assert words in outcome["stderr"], outcome["stderr"]
    assert outcome["stderr"].startswith("error: ") and "Traceback" not in outcome["stderr"]
    assert sum(-(-len(line) // 100) for line in outcome["stderr"].splitlines()) <= 12
    assert "gate passed" not in outcome["stdout"]


@pytest.mark.parametrize("kind", HARMLESS)
def test_harmless_variety_is_read_rightly(kind, outcomes):
    outcome = outcomes[kind]
    assert outcome["code"] == 0, outcome["stderr"]
    assert "data gate passed" in outcome["stdout"] and "reward gate passed" in outcome["stdout"]


def test_harmless_variety_is_the_same_data(outcomes):
    """All but what has more columns, and the one file, which is divided."""
    digests = {outcomes[kind]["stdout"].split()[1] for kind in HARMLESS if kind not in ("extra columns", "one file")}
    assert len(digests) == 1
