"""Rows in these tests are synthetic; those of GSM8K are read from the folder that GSM8K_DIR names."""

import gzip
import json
import os
from pathlib import Path

import datasets
import httpx
import huggingface_hub.constants
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import data_files
from tasks.config import DataSettings, SampleSettings
from tasks.errors import UserError
from tasks.ingest import ingest
from tasks.run import read_json


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    """A store of the test's own."""
    monkeypatch.setenv("GRPO_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs" / "store" / "data"


@pytest.fixture
def folder(tmp_path):
    """An empty folder for source files."""
    path = tmp_path / "source"
    path.mkdir()
    return path


def row(number, **more):
    return {
        "question": f"Tom has {number} pens and buys 4 more. How many pens does he have?",
        "answer": f"Tom has {number}+4=<<{number}+4={number + 4}>>{number + 4} pens.\n#### {number + 4}",
    } | more


TRAIN = [row(number) for number in range(200)]
TEST = [row(number) for number in range(200, 240)]


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(content, rows=None, twice=None):
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist(content).slice(0, rows)
    pq.write_table(table.append_column(twice, table[twice]) if twice else table, sink)
    return sink.getvalue().to_pybytes()


def write(folder, train=None, test=None):
    (folder / "train.jsonl").write_bytes(jsonl(TRAIN) if train is None else train)
    (folder / "test.jsonl").write_bytes(jsonl(TEST) if test is None else test)
    return folder


def frame(manifest, split):
    return pd.read_parquet(Path(manifest["folder"]) / f"{split}.parquet")


def questions(manifest, split):
    return list(frame(manifest, split)["question"])


# --- what comes out


def test_a_row_becomes_stable_columns(folder):
    manifest = ingest(DataSettings(path=write(folder)))
    first = frame(manifest, "test").iloc[0]
    assert first["question"] == TEST[0]["question"]
    assert first["answer"] == "204"
    assert first["rationale"] == "Tom has 200+4=<<200+4=204>>204 pens."
    assert first["raw_answer"] == TEST[0]["answer"]
    assert first["source_row"] == 1
    assert len(first["id"]) == 16


def test_the_manifest_counts_what_lies_in_the_folder(folder):
    manifest = ingest(DataSettings(path=write(folder), max_samples=100))
    counts = {split: len(frame(manifest, split)) for split in ("train", "validation", "test")}
    assert manifest["counts"] == counts
    assert counts["train"] == 100 and counts["test"] == 40 and counts["validation"] > 0
    assert manifest["source_rows"] == {"train": 200, "test": 40}
    assert manifest["dropped"] == 200 - 100 - counts["validation"]
    assert manifest["source"] == f"the folder {folder}"
    assert read_json(Path(manifest["folder"]) / "manifest.json") == {
        name: value for name, value in manifest.items() if name != "folder"
    }


def test_a_gold_is_a_plain_number_and_null_where_there_is_none(folder):
    answers = ["#### 1,234", "a #### -3", "no mark", "#### one", "#### 1 #### 2"]
    rows = [row(number, answer=answer) for number, answer in enumerate(answers)]
    manifest = ingest(DataSettings(path=write(folder, test=jsonl(rows))))
    golds = frame(manifest, "test")["answer"]
    assert list(golds.astype(object).where(golds.notna(), None)) == ["1234", "-3", None, None, None]
    assert list(frame(manifest, "test")["raw_answer"]) == answers


def test_a_plain_gold_is_the_whole_answer(folder):
    rows = [{"question": f"Capital {n}?", "answer": f" city {n}\n"} for n in range(9)]
    manifest = ingest(DataSettings(path=write(folder, jsonl(rows), jsonl(rows[:1])), gold="plain"))
    assert list(frame(manifest, "test")["answer"]) == ["city 0"]
    assert list(frame(manifest, "test")["rationale"]) == [""]


def test_a_task_without_gold_needs_no_answer_column(folder):
    rows = [{"prompt": f"Summarise {n}.", "completion": "x"} for n in range(9)]
    settings = DataSettings(
        path=write(folder, jsonl(rows), jsonl(rows[:1])), gold="none", answer_column=None, question_column="prompt"
    )
    test = frame(ingest(settings), "test")
    assert list(test["question"]) == ["Summarise 0."]
    assert list(test["completion"]) == ["x"]
    assert test["answer"].isna().all() and test["raw_answer"].isna().all()


def test_other_columns_are_kept_and_one_named_like_ours_is_renamed(folder):
    rows = [row(n, id_original="y", id=n, level={"grade": n}) for n in range(9)]
    test = frame(ingest(DataSettings(path=write(folder, jsonl(rows), jsonl(rows[:2])))), "test")
    assert list(test["id_original"]) == ["y", "y"]
    assert list(test["id_original_original"]) == [0, 1]
    assert list(test["level"]) == [{"grade": 0}, {"grade": 1}]
    assert test["id"].str.len().eq(16).all()


def test_a_column_that_first_appears_late_is_kept(folder):
    rows = [row(n) for n in range(9)] + [row(9, level=3)]
    test = frame(ingest(DataSettings(path=write(folder, test=jsonl(rows)))), "test")
    assert list(test["level"].dropna()) == [3]


def test_a_large_file_is_read_in_parts_that_fit_together(folder, monkeypatch):
    monkeypatch.setattr(data_files, "BATCH", 7)
    rows = [row(n, level=None if n < 20 else n / 2 if n > 30 else n, tag=[] if n < 20 else ["a"]) for n in range(40)]
    test = frame(ingest(DataSettings(path=write(folder, test=jsonl(rows)))), "test")
    assert list(test["source_row"]) == list(range(1, 41))
    assert list(test["level"].dropna()) == [*range(20, 31), *(n / 2 for n in range(31, 40))]


def test_columns_of_nothing_but_null_are_kept(folder):
    rows = [{"question": row(number)["question"], "answer": None, "level": None} for number in range(9)]
    test = frame(ingest(DataSettings(path=write(folder, test=jsonl(rows)))), "test")
    assert test[["answer", "raw_answer", "level"]].isna().all(axis=None) and len(test) == 9


# --- the division


def test_validation_is_taken_out_of_train_by_about_its_share(folder):
    rows = [row(n) for n in range(4000)]
    manifest = ingest(DataSettings(path=write(folder, jsonl(rows)), validation_share=0.1))
    assert 340 < manifest["counts"]["validation"] < 460
    assert sorted(questions(manifest, "train") + questions(manifest, "validation")) == sorted(
        row["question"] for row in rows
    )


def test_a_question_stays_where_it_is_when_rows_move_or_join(folder, tmp_path):
    before = ingest(DataSettings(path=write(folder)))
    other = tmp_path / "other"
    other.mkdir()
    after = ingest(DataSettings(path=write(other, jsonl([row(n) for n in range(999, 1300)] + TRAIN[::-1]))))
    old = {question["question"] for question in TRAIN}
    assert set(questions(after, "validation")) & old == set(questions(before, "validation"))


def test_case_and_white_space_do_not_move_a_question(folder):
    shouted = [row | {"question": "  " + row["question"].upper().replace(" ", "\n ")} for row in TRAIN]
    shares = DataSettings(path=write(folder, jsonl(TRAIN + shouted)))
    held_out = [" ".join(question.casefold().split()) for question in questions(ingest(shares), "validation")]
    assert held_out and all(held_out.count(question) == 2 for question in held_out)


def test_the_first_samples_are_the_same_whether_or_not_they_are_all(folder):
    write(folder)
    some, whole = ingest(DataSettings(path=folder, max_samples=10)), ingest(DataSettings(path=folder))
    assert questions(some, "train") == questions(whole, "train")[:10]
    assert questions(some, "validation") == questions(whole, "validation")


@pytest.mark.parametrize("share", [1e-9, 1 - 1e-9])
def test_neither_train_nor_validation_is_ever_empty(folder, share):
    settings = DataSettings(path=write(folder, jsonl(TRAIN[:2])), validation_share=share)
    assert ingest(settings)["counts"] == {"train": 1, "validation": 1, "test": 40}


def test_one_file_is_divided_three_ways(folder):
    (folder / "all.jsonl").write_bytes(jsonl([row(n) for n in range(4000)]))
    manifest = ingest(DataSettings(path=folder / "all.jsonl", test_share=0.2, validation_share=0.1))
    parts = [set(questions(manifest, split)) for split in ("train", "validation", "test")]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 4000
    assert 720 < len(parts[2]) < 880
    assert 260 < len(parts[1]) < 380  # a tenth of what is left


def test_one_file_of_three_rows_gives_one_to_each_split(folder):
    (folder / "all.jsonl").write_bytes(jsonl(TRAIN[:3]))
    manifest = ingest(DataSettings(path=folder / "all.jsonl"))
    assert set(manifest["counts"].values()) == {1}


# --- same content, same digest


@pytest.fixture
def digest_of_jsonl(tmp_path):
    folder = tmp_path / "reference"
    folder.mkdir()
    return ingest(DataSettings(path=write(folder)))["digest"]


def spread(text):
    """`text` with CRLF and blank lines, behind a BOM."""
    return b"\xef\xbb\xbf\r\n" + text.replace(b"\n", b"\r\n\r\n   \r\n")


def halves(name, make, suffix):
    return {f"{name}-{i:05d}-of-00002.{suffix}": make(part) for i, part in enumerate([TRAIN[:90], TRAIN[90:]])}


FORMS = {
    "parquet": {"train.parquet": parquet(TRAIN), "test.parquet": parquet(TEST)},
    "gzip": {"train.jsonl.gz": gzip.compress(jsonl(TRAIN)), "test.jsonl.gz": gzip.compress(jsonl(TEST))},
    "Parquet in gzip": {"train.parquet.gz": gzip.compress(parquet(TRAIN)), "test.parquet": parquet(TEST)},
    "JSON arrays": {"train.json": json.dumps(TRAIN, indent=1).encode(), "test.json": json.dumps(TEST).encode()},
    "a JSON array behind a BOM": {"train.json": spread(json.dumps(TRAIN).encode()), "test.jsonl": jsonl(TEST)},
    "JSON lines named JSON": {"train.json": jsonl(TRAIN), "test.json": jsonl(TEST)},
    "BOM, CRLF and blank lines": {"train.jsonl": spread(jsonl(TRAIN)), "test.jsonl": spread(jsonl(TEST))},
    "no newline at the end": {"train.jsonl": jsonl(TRAIN).rstrip(), "test.jsonl": jsonl(TEST).rstrip()},
    "shards of Parquet": halves("train", parquet, "parquet") | {"test-00000-of-00001.parquet": parquet(TEST)},
    "shards of JSON lines": halves("train", jsonl, "jsonl") | {"test.jsonl": jsonl(TEST)},
    "other files beside": {"train.jsonl": jsonl(TRAIN), "test.jsonl": jsonl(TEST), "training.jsonl": b"x", ".a": b"x"},
}


@pytest.mark.parametrize("files", FORMS.values(), ids=FORMS.keys())
def test_the_digest_does_not_depend_on_the_form(folder, files, digest_of_jsonl):
    for name, content in files.items():
        (folder / name).write_bytes(content)
    assert ingest(DataSettings(path=folder))["digest"] == digest_of_jsonl


def test_the_digest_does_not_depend_on_the_width_of_strings(folder, digest_of_jsonl):
    schema = pa.schema([("question", pa.large_string()), ("answer", pa.dictionary(pa.int32(), pa.string()))])
    for name, rows in (("train", TRAIN), ("test", TEST)):
        pq.write_table(pa.Table.from_pylist(rows).cast(schema), folder / f"{name}.parquet")
    assert ingest(DataSettings(path=folder))["digest"] == digest_of_jsonl


def test_the_digest_does_not_depend_on_the_names_of_splits_and_columns(folder, digest_of_jsonl):
    for name, rows in (("learn", TRAIN), ("exam", TEST)):
        renamed = [{"q": row["question"], "solution": row["answer"]} for row in rows]
        (folder / f"{name}.jsonl").write_bytes(jsonl(renamed))
    settings = DataSettings(
        path=folder, train_split="learn", test_split="exam", question_column="q", answer_column="solution"
    )
    assert ingest(settings)["digest"] == digest_of_jsonl


def test_the_digest_does_not_depend_on_the_order_of_columns(folder):
    rows = [row(number, level=number, topic="pens") for number in range(9)]
    there = ingest(DataSettings(path=write(folder, jsonl(rows))))["digest"]
    turned = [dict(reversed(row.items())) for row in rows]
    assert ingest(DataSettings(path=write(folder, jsonl(turned))))["digest"] == there


def test_the_digest_does_not_depend_on_where_other_splits_stand_in_the_same_file(folder):
    path = folder / "all.jsonl"
    path.write_bytes(jsonl(TRAIN))
    before = ingest(DataSettings(path=path))
    tested = set(questions(before, "test"))
    path.write_bytes(jsonl(sorted(TRAIN, key=lambda row: row["question"] in tested)))
    after = ingest(DataSettings(path=path))
    assert after["folder"] != before["folder"] and after["digest"] == before["digest"]


@pytest.mark.parametrize(
    ("train", "settings"),
    [
        (TRAIN[:-1] + [row(777)], {}),
        (TRAIN[::-1], {}),
        (TRAIN, {"validation_share": 0.5}),
        (TRAIN, {"max_samples": 5}),
    ],
    ids=["another row", "another order", "another division", "fewer rows"],
)
def test_the_digest_depends_on_rows_and_division(folder, train, settings, digest_of_jsonl):
    assert ingest(DataSettings(path=write(folder, jsonl(train)), **settings))["digest"] != digest_of_jsonl


# --- the store


def test_what_was_ingested_once_is_not_read_again(folder, monkeypatch):
    first = ingest(DataSettings(path=write(folder)))
    monkeypatch.setattr("tasks.ingest.read_file", None)
    assert ingest(DataSettings(path=folder)) == first
    assert ingest(DataSettings(path=folder, expected_rows={"train": 3})) == first


def test_a_changed_source_is_read_again(folder):
    first = ingest(DataSettings(path=write(folder)))
    second = ingest(DataSettings(path=write(folder, jsonl(TRAIN[:-1]))))
    assert second["folder"] != first["folder"]
    assert second["source_rows"]["train"] == 199


def test_a_refused_source_leaves_nothing_in_the_store(folder, store):
    with pytest.raises(UserError):
        ingest(DataSettings(path=write(folder, b"{")))
    assert list(store.iterdir()) == []


def test_damage_in_the_store_is_noticed(folder):
    manifest = ingest(DataSettings(path=write(folder)))
    path = Path(manifest["folder"]) / "train.parquet"
    whole = path.read_bytes()
    for damage in (lambda: path.write_bytes(whole[:20] + bytes([whole[20] ^ 1]) + whole[21:]), path.unlink):
        damage()
        with pytest.raises(UserError, match=r"train\.parquet is not what was once written there; remove the folder"):
            ingest(DataSettings(path=folder))


def test_a_table_in_the_store_that_was_cut_short_is_written_again(folder):
    manifest = ingest(DataSettings(path=write(folder)))
    path = Path(manifest["folder"]) / "train.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert ingest(DataSettings(path=folder)) == manifest
    assert path.read_bytes() == whole


def test_a_full_disk_is_said_before_anything_is_written(folder, store, monkeypatch):
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr("tasks.run.shutil.disk_usage", lambda path: usage)
    with pytest.raises(UserError, match="the ingested data needs about"):
        ingest(DataSettings(path=write(folder)))
    assert list(store.iterdir()) == []


# --- made problems and the hub


def test_made_problems_are_divided_like_any_others():
    manifest = ingest(DataSettings(samples=SampleSettings(train=300, test=50)))
    assert manifest["counts"]["train"] + manifest["counts"]["validation"] == 300
    assert manifest["counts"]["validation"] > 0 and manifest["counts"]["test"] == 50
    assert frame(manifest, "train")["answer"].notna().all()
    assert "300 + 50 word problems" in manifest["source"]


def test_made_problems_have_the_columns_of_gsm8k_and_no_others():
    with pytest.raises(UserError, match=r"data\.samples has no column 'prompt', only 'question', 'answer'"):
        ingest(DataSettings(samples=SampleSettings(train=9, test=9), question_column="prompt"))


@pytest.fixture
def offline_hub(tmp_path, monkeypatch):
    """No network, and an empty cache."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def cached(folder, monkeypatch, **settings):
    """Load `folder` with datasets, so that its name alone is then found in the cache."""
    first = ingest(DataSettings(name=str(write(folder)), subset=None, **settings))
    monkeypatch.chdir(folder)
    return first


def test_datasets_loads_what_has_a_name(folder, offline_hub, digest_of_jsonl):
    manifest = ingest(DataSettings(name=str(write(folder)), subset=None))
    assert manifest["digest"] == digest_of_jsonl
    assert manifest["source"] == f"{folder} on the hub"
    assert manifest["revision"]


def test_a_dataset_loaded_before_is_found_without_the_network(folder, offline_hub, monkeypatch):
    first = cached(folder, monkeypatch)
    again = ingest(DataSettings(name="source", subset=None))
    assert (again["digest"], again["revision"]) == (first["digest"], first["revision"])


def test_the_cache_does_not_stand_in_for_a_pinned_revision(folder, offline_hub, monkeypatch):
    cached(folder, monkeypatch)
    with pytest.raises(ConnectionError, match=r"only the revision \w+ is cached, not 0{40}"):
        ingest(DataSettings(name="source", subset=None, revision="0" * 40))


def test_a_hub_out_of_reach_may_heal_and_says_what_else_helps(offline_hub):
    with pytest.raises(ConnectionError, match=r"could not be reached for openai/gsm8k .*data\.path") as refusal:
        ingest(DataSettings())
    assert not isinstance(refusal.value, UserError)


@pytest.mark.parametrize("error", [httpx.ConnectTimeout("slow"), ConnectionResetError("reset"), httpx.ReadError("cut")])
def test_a_download_cut_short_may_heal(folder, offline_hub, monkeypatch, error):
    def download(self):
        raise error

    monkeypatch.setattr(datasets.DatasetBuilder, "download_and_prepare", download)
    with pytest.raises(ConnectionError, match=r"could not be reached"):
        ingest(DataSettings(name=str(write(folder)), subset=None))


def test_a_name_that_the_hub_does_not_know_is_the_users_mistake(monkeypatch):
    def load(*args, **kwargs):
        raise datasets.exceptions.DatasetNotFoundError("Dataset 'openai/gsm9k' doesn't exist on the Hub.")

    monkeypatch.setattr(datasets, "load_dataset_builder", load)
    with pytest.raises(UserError, match=r"'openai/gsm9k' cannot be loaded .*doesn't exist on the Hub\)"):
        ingest(DataSettings(name="openai/gsm9k"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"subset": "main"}, r"BuilderConfig 'main' not found\. Available: \['default'\]"),
        ({"test_split": "dev"}, r"has no split 'dev', only train, test; set data\.test_split"),
        ({"answer_column": "answers"}, r"split 'train' has no column 'answers', only .*is 'answer' meant\?"),
        ({"question_column": "level"}, r"the column 'level' holds int64 where text belongs"),
    ],
)
def test_settings_that_do_not_fit_a_named_dataset_are_the_users_mistake(folder, offline_hub, settings, message):
    path = write(folder, jsonl([row(n, level=n) for n in range(9)]), jsonl([row(9, level=9)]))
    with pytest.raises(UserError, match=message):
        ingest(DataSettings(**{"name": str(path), "subset": None} | settings))


# --- damage: each with one sentence that says what, where, and what to do

FINE = jsonl(TRAIN[:5])
LONG = jsonl([row(1, answer="x" * 2**20 + " #### 5")])

DAMAGED = {
    "an empty file": ("train.jsonl", b"", r"train\.jsonl is empty; "),
    "only blank lines": ("train.jsonl", b"\n\r\n  \n", r"the split 'train' of the folder .* holds no rows"),
    "an empty array": ("train.json", b"[]", r"the split 'train' .* holds no rows"),
    "Parquet without rows": ("train.parquet", parquet(TRAIN, rows=0), r"the split 'train' .* holds no rows"),
    "a single row": ("train.jsonl", jsonl(TRAIN[:1]), r"'train' .* has too few rows to divide, 1 of 2; "),
    "broken JSON": (
        "train.jsonl",
        FINE + b'{"question": x}\n' + FINE,
        r"line 6 is not valid JSON \(.*column 14\); mend",
    ),
    "a name that is no text": (
        "train.jsonl",
        FINE + rb'{"question": "a", "answer": "#### 1", "\ud800": 1}' + b"\n",
        r"line 6: the column '.ud800' is no Unicode text",
    ),
    "a name of the gate's own": (
        "train.jsonl",
        FINE + b'{"question": "a", "answer": "#### 1", "gate:leaks": 1}\n',
        r"line 6: the column 'gate:leaks' has a name of the data gate's own; rename it",
    ),
    "a name of the gate's own in Parquet": (
        "train.parquet",
        parquet([row(n, **{"Gate:duplicate_of": 1}) for n in range(200)]),
        r"train\.parquet: the column 'Gate:duplicate_of' has a name of the data gate's own; rename it",
    ),
    "a key twice": (
        "train.jsonl",
        FINE + b'{"question": "a", "answer": "#### 1", "answer": "#### 2"}\n' + FINE,
        r"line 6 is not valid JSON \(an object has the key 'answer' twice\); mend or remove it",
    ),
    "a key twice in the last line": (
        "train.jsonl",
        FINE + b'{"question": "a", "more": {"b": 1, "b": 1}, "answer": "#### 1"} ',
        r"line 6 is not valid JSON \(an object has the key 'b' twice\)",
    ),
    "a key twice in an array": (
        "train.json",
        b'[\n{"question": "a", "answer": "#### 1", "answer": "#### 1"}]',
        r"train\.json is not valid JSON \(an object has the key 'answer' twice\)",
    ),
    "two columns of one name": (
        "train.parquet",
        parquet(TRAIN, twice="question"),
        r"there are two columns 'question'; rename or remove one",
    ),
    "broken JSON after blank lines": ("train.jsonl", b"\n\n" + FINE + b"{]\n", r"line 8 is not valid JSON"),
    "a truncated last line": ("train.jsonl", FINE[:-20], r"line 5, the last, is cut short; copy the file again"),
    "broken JSON in an array": ("train.json", b'[\n{"question": "a",\n "answer": }]', r"line 3 is not valid JSON"),
    "broken JSON behind letters of two bytes": (
        "train.json",
        ('[{"question": "' + "ä" * 50 + '"},\n\n\n}' + "\n" * 50).encode(),
        r"line 4 is not valid JSON",
    ),
    "a truncated array": ("train.json", json.dumps(TRAIN).encode()[:-30], r"train\.json, line 1 is not valid JSON"),
    "nesting without end": (
        "train.jsonl",
        FINE + b"[" * 200_000 + b"\n",
        r"line 6 is not valid JSON \(maximum recursion",
    ),
    "nesting without end in an array": ("train.json", b"[" * 200_000, r"train\.json, line 1 is not valid JSON"),
    "a number without end": (
        "train.jsonl",
        b'{"n": ' + b"1" * 5000 + b"}\n",
        r"line 1 is not valid JSON \(Exceeds the limit",
    ),
    "invalid UTF-8": ("train.jsonl", FINE + jsonl([row(5)]).replace(b"Tom", b"T\xf6m"), r"line 6 is not UTF-8 .*0xf6"),
    "invalid UTF-8 in an array": ("train.json", b'[\n{"question": "\xff"}]', r"line 2 is not UTF-8 .*0xff"),
    "a NUL byte": ("train.jsonl", FINE + b'{"question": "\0"}\n', r"line 6 holds a NUL byte; "),
    "a NUL in the text": ("train.jsonl", jsonl([row(1, answer="a\0 #### 5")]), r"line 1: the column 'answer' .* NUL"),
    "half a surrogate pair": ("train.jsonl", FINE + jsonl([row(1, answer="\ud83d #### 5")]), r"line 6: .*surrogate"),
    "UTF-16": ("train.jsonl", FINE.decode().encode("utf-16"), r"line 1 holds a NUL byte; .*save it anew as UTF-8"),
    "a list instead of an object": ("train.jsonl", FINE + b"[1]\n", r"line 6 is a list; it must be an object"),
    "null instead of an object": ("train.jsonl", FINE + b"null\n", r"line 6 is null; it must be an object"),
    "text in an array": ("train.json", b'[{"question": "a", "answer": "b"}, "c"]', r"row 2 is text; it must be"),
    "a renamed column": (
        "train.jsonl",
        jsonl([{"qestion": "a", "answer": "b"}]),
        r"line 1 has no column 'question', only 'qestion', 'answer' \(is 'qestion' meant\?\); rename it, or set data",
    ),
    "a column missing in one row": (
        "train.jsonl",
        FINE + b'{"question": "a"}\n',
        r"line 6 has no column 'answer', only",
    ),
    "a renamed column of Parquet": (
        "train.parquet",
        parquet([{"q": "a", "answer": "b"}]),
        r"no column 'question', only",
    ),
    "a number for text": ("train.jsonl", FINE + jsonl([row(1, answer=5)]), r"line 6: .*'answer' holds a number .*: 5;"),
    "an object for text": (
        "train.jsonl",
        jsonl([row(1, question={"text": 1})]),
        r'line 1: .* an object .*: \{"text": 1',
    ),
    "a list for text": (
        "train.json",
        json.dumps([row(1, question=["a"])]).encode(),
        r"row 1: .*'question' holds a list",
    ),
    "numbers for text in Parquet": ("train.parquet", parquet([row(1, answer=5)]), r"'answer' holds int64 where text"),
    "objects for text in Parquet": (
        "train.parquet",
        parquet([row(1, answer={"a": 1})]),
        r"'answer' holds struct<a: int",
    ),
    "a NUL in Parquet": ("train.parquet", parquet([row(1), row(2, answer="\0")]), r"row 2: .*'answer' holds a NUL"),
    "mixed types": (
        "train.jsonl",
        jsonl([row(1, level=1), row(2), row(3, level="x")]),
        r"'level' has mixed types, a number in line 1 and text in line 3; give it one type",
    ),
    "mixed types in a list": (
        "train.jsonl",
        jsonl([row(1, level=[1, "a"])]),
        r"lines 1 to 1: the column 'level' cannot be",
    ),
    "a number beyond 64 bits": ("train.jsonl", jsonl([row(1, level=10**30)]), r"the column 'level' cannot be stored"),
    "half a surrogate pair beside": (
        "train.jsonl",
        jsonl([row(1, tag="\ud83d")]),
        r"the column 'tag' cannot be stored",
    ),
    "an oversized row": ("train.jsonl", FINE + LONG, r"line 6 is longer than 1 MiB; shorten"),
    "an oversized row of an array": ("train.json", b"[" + LONG.strip() + b"]", r"row 1 is longer than 1 MiB"),
    "an oversized row of Parquet": (
        "train.parquet",
        parquet(TRAIN + [json.loads(LONG)]),
        r"row 201 is longer than 1 MiB",
    ),
    "Parquet cut short": (
        "train.parquet",
        parquet(TRAIN)[:-9],
        r"is not a whole Parquet file \(.*\); copy or download",
    ),
    "Parquet damaged inside": (
        "train.parquet",
        parquet(TRAIN).replace(b"Tom", b"T\xf6m"),
        r"is not a whole Parquet file \(.*UTF8.*\)",
    ),
    "gzip cut short": ("train.jsonl.gz", gzip.compress(jsonl(TRAIN))[:-30], r"is not a whole gzip file \(.*\); copy"),
    "gzip damaged inside": (
        "train.jsonl.gz",
        gzip.compress(jsonl(TRAIN))[:200] + b"damage" + gzip.compress(jsonl(TRAIN))[206:],
        r"is not a whole gzip file",
    ),
    "gzip with a wrong checksum": (
        "train.jsonl.gz",
        gzip.compress(jsonl(TRAIN))[:-8] + b"\0" * 8,
        r"is not a whole gzip file \(CRC check failed",
    ),
    "no gzip at all": ("train.jsonl.gz", jsonl(TRAIN), r"is not a whole gzip file \(Not a gzipped file"),
    "objects without a field": (
        "train.jsonl",
        jsonl([row(n, more={}) for n in range(20)]),
        r"a column of 'train' cannot be kept as Parquet \(Cannot write struct type 'more'",
    ),
    "another kind of file": (
        "train.csv",
        b"question,answer\n",
        r"has no file for the split 'train' .*only test\.jsonl, tr",
    ),
}


@pytest.mark.parametrize(("name", "content", "message"), DAMAGED.values(), ids=DAMAGED.keys())
def test_damage_is_refused_with_the_place_and_the_reason(folder, name, content, message):
    (folder / "test.jsonl").write_bytes(jsonl(TEST))
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as refusal:
        ingest(DataSettings(path=folder))
    assert str(folder) in str(refusal.value)
    assert len(str(refusal.value)) < 400 and "\n" not in str(refusal.value)


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("nowhere")], ids=["a folder", "a link"])
def test_what_is_no_file_is_refused(folder, make):
    (folder / "test.jsonl").write_bytes(jsonl(TEST))
    make(folder / "train.jsonl")
    with pytest.raises(UserError, match=r"train\.jsonl is no file \(a folder, or a link to nothing\)"):
        ingest(DataSettings(path=folder))


def test_an_empty_test_split_is_refused(folder):
    with pytest.raises(UserError, match=r"the split 'test' of the folder .* holds no rows"):
        ingest(DataSettings(path=write(folder, test=b"\n")))


def test_a_split_without_a_file_is_refused_with_the_files_that_are_there(folder):
    (folder / "train.jsonl").write_bytes(jsonl(TRAIN))
    (folder / "LICENSE").touch()
    with pytest.raises(UserError, match=r"no file for the split 'test' .*, only LICENSE, train\.jsonl; rename"):
        ingest(DataSettings(path=folder))


def test_two_files_for_one_split_are_refused(folder):
    write(folder)
    (folder / "train.parquet").write_bytes(parquet(TRAIN))
    with pytest.raises(UserError, match=r"several files for the split 'train': train\.jsonl, train\.parquet"):
        ingest(DataSettings(path=folder))


def test_a_missing_shard_is_noticed(folder):
    write(folder).joinpath("train.jsonl").rename(folder / "train-00000-of-00003.jsonl")
    with pytest.raises(UserError, match=r"has only 1 of 3 files of the split 'train'"):
        ingest(DataSettings(path=folder))


def test_shards_that_do_not_fit_together_are_refused(folder):
    write(folder).joinpath("train.jsonl").unlink()
    (folder / "train-0.jsonl").write_bytes(jsonl([row(1, level=1)]))
    (folder / "train-1.jsonl").write_bytes(jsonl([row(2, level="x")]))
    with pytest.raises(
        UserError, match=r"the folder .*: the rows of 'train' do not all hold the same kinds of columns .*level"
    ):
        ingest(DataSettings(path=folder))


def test_a_missing_path_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"there is no file or folder .*nowhere; correct the path"):
        ingest(DataSettings(path=tmp_path / "nowhere"))


def test_a_file_of_another_kind_is_refused(folder):
    (folder / "all.csv").write_text("question,answer\n")
    with pytest.raises(UserError, match=r"all\.csv is no data file by its name; it must end in \.jsonl"):
        ingest(DataSettings(path=folder / "all.csv"))


def test_one_file_of_two_rows_cannot_be_divided_three_ways(folder):
    (folder / "all.jsonl").write_bytes(jsonl(TRAIN[:2]))
    with pytest.raises(UserError, match=r"the file .*all\.jsonl has too few rows to divide, 2 of 3"):
        ingest(DataSettings(path=folder / "all.jsonl"))


# --- the official rows


@pytest.mark.skipif("GSM8K_DIR" not in os.environ, reason="GSM8K_DIR is not set")
def test_every_gold_of_gsm8k_is_read():
    manifest = ingest(DataSettings(path=Path(os.environ["GSM8K_DIR"])))
    assert manifest["source_rows"] == {"train": 7473, "test": 1319}
    rows = pd.concat([frame(manifest, split) for split in ("train", "validation", "test")])
    assert len(rows) == 8792
    assert rows["answer"].notna().all()
    assert not rows["answer"].str.contains(",").any()
    assert rows["id"].is_unique
    assert (rows["answer"].str.startswith("-")).sum() == 5
