"""The run folder and the store."""

import subprocess
import sys

import pandas as pd
import pytest

from tasks.errors import UserError
from tasks.run import Run, code_version, digest, require_disk, source_digest, still_there, stored


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_RUNS", str(tmp_path))
    return tmp_path


def test_a_finished_stage_is_found_by_a_later_attempt():
    Run.open("a").finish("ingest", {"rows": 3})
    assert Run.open("a").result("ingest") == {"rows": 3}
    assert Run.open("a").result("train") is None and Run.open("b").result("ingest") is None


def test_a_result_whose_part_of_the_store_was_removed_is_none_any_more(runs):
    folder = stored("data", "a", lambda place: (place / "rows").write_text("x"))
    result = {"rows": [{"folder": str(folder)}], "note": f"{folder}-of-old\nis not a path", "elsewhere": "/nowhere"}
    assert still_there(result)
    (folder / "rows").unlink()
    folder.rmdir()
    assert not still_there(result)


def test_a_result_that_cannot_be_read_or_whose_files_are_gone_is_none(runs):
    run = Run.open("a")
    (run.folder / "adapter").mkdir()
    run.finish("train", {"adapter": str(run.folder / "adapter")})
    assert run.result("train") is not None
    (run.folder / "adapter").rmdir()
    assert run.result("train") is None
    for damage in (b"", b'{"a": ', b"\xff"):
        (run.folder / "results" / "train.json").write_bytes(damage)
        assert run.result("train") is None


def test_each_attempt_has_a_log_of_its_own_and_a_link_to_the_newest():
    run = Run.open("a")
    first, second = run.log_file("train"), run.log_file("train")
    assert (first.name, second.name) == ("train-1.log", "train-2.log")
    assert (run.folder / "logs" / "train.log").resolve() == second


HOLDER = """
import sys, time
from tasks.run import Run
Run.open("held").claim()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_run_that_another_process_holds_is_refused_or_waited_for():
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        run = Run.open("held")
        with pytest.raises(UserError, match=f"the run held is going on in the process {holder.pid}; wait for its end"):
            run.claim()
        told: list[str] = []

        def tell(words: str) -> None:
            told.append(words)
            holder.kill()

        run.claim(on_wait=tell)
        assert told == [f"the run held is going on in the process {holder.pid}; waiting for its end"]
        run.release()
    finally:
        holder.kill()
        holder.wait()


def test_a_run_whose_lock_cannot_be_written_is_one_sentence():
    run = Run.open("locked")
    (run.folder / "lock").mkdir()
    with pytest.raises(UserError, match="locked cannot be written to .*; free some of its disk, or set GRPO_RUNS"):
        run.claim()


def test_attempts_are_counted_by_stage_and_not_by_share():
    run = Run.open("counted")
    for name in ("train", "evaluate", "evaluate.1", "train"):
        run.log_file(name)
    assert run.attempts() == {"evaluate": 1, "train": 2}


def test_a_stored_thing_is_made_once():
    made = []

    def make(folder):
        made.append(folder)
        (folder / "file").write_text("x")

    assert stored("things", "k", make) == stored("things", "k", make)
    assert len(made) == 1


@pytest.mark.parametrize("name", ["rows.parquet", "rows.json"])
def test_a_stored_thing_with_a_torn_file_is_made_again_and_a_stage_that_left_one_is_not_finished(name, runs):
    def make(folder):
        table = pd.DataFrame({"a": [1, 2]})
        table.to_parquet(folder / "rows.parquet")
        table.to_json(folder / "rows.json")

    folder = stored("things", "k", make)
    torn, run = folder / name, Run.open("a")
    run.finish("by file", {"results": str(torn)})
    run.finish("by folder", {"folder": str(folder)})
    assert run.result("by file") and run.result("by folder")
    whole = torn.read_bytes()
    torn.write_bytes(whole[: len(whole) // 2])
    assert run.result("by file") is None and run.result("by folder") is None
    assert stored("things", "k", make) == folder and torn.read_bytes() == whole


def test_a_making_that_fails_leaves_nothing(runs):
    def make(folder):
        (folder / "half").write_text("x")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        stored("things", "k", make)
    assert list((runs / "store" / "things").iterdir()) == []


def test_of_two_runs_that_make_the_same_the_slower_takes_the_others(runs):
    def slower(folder):
        (folder / "by").write_text("slower")
        stored("things", "k", lambda other: (other / "by").write_text("faster") and None)

    assert (stored("things", "k", slower) / "by").read_text() == "faster"
    assert [path.name for path in (runs / "store" / "things").iterdir()] == ["k"]


def test_a_digest_does_not_depend_on_the_order_of_keys():
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 1, "b": 3})


def test_a_digest_of_source_files_is_that_of_their_names_and_content():
    assert source_digest("tasks/run.py") == source_digest("tasks/run.py") != source_digest("tasks/worker.py")
    with pytest.raises(AssertionError):
        source_digest("tasks/none.py")


def test_too_little_disk_is_one_sentence_that_says_how_much_is_free(tmp_path):
    require_disk(tmp_path, 0.0001, "nothing much")
    with pytest.raises(UserError, match=r"a run needs about 10000000\.0 GiB .* GiB are free; free some"):
        require_disk(tmp_path, 1e7, "a run")


def test_the_code_has_a_version():
    assert len(code_version()) >= 12


def test_a_runs_folder_that_cannot_be_made_is_one_sentence_that_names_the_setting(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("GRPO_RUNS", str(tmp_path / "file" / "runs"))
    with pytest.raises(UserError, match="set GRPO_RUNS to a folder that you may write to"):
        Run.open("a")
