"""What a run begins with, and what a later attempt of it goes on with."""

import errno
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.beginning import begin
from flows.evaluate import OF_ANOTHER_MODEL
from flows.resume import _name, parameters_of
from flows.stages import Context
from tasks import run as runs
from tasks.config import load
from tasks.errors import UserError
from tasks.model_folder import folder_digest
from tasks.run import Run, read_json, write_json
from tasks.versions import FetchedVersion

FIRST, CHANGED = load({}), load({}, {"training.learning_rate": 1e-3})


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRPO_RUNS", str(tmp_path))
    return tmp_path


def attempt(settings, warnings: list[str] | None = None):
    context = begin("one", settings, ([] if warnings is None else warnings).append, "train")
    context.run.release()
    return context


def test_what_is_finished_and_what_follows_are_done_by_one_configuration(root):
    attempt(FIRST).run.finish("ingest", {})
    warnings: list[str] = []
    assert attempt(FIRST, warnings).config == FIRST and warnings == []
    assert attempt(CHANGED, warnings).config.dump() == FIRST.dump()
    [warning] = warnings
    assert "has been changed since this run began" in warning and str(root / "one" / "config.yaml") in warning
    assert load(parameters_of("one")["config"]).dump() == FIRST.dump() and parameters_of("one")["until"] == "train"


def test_a_run_whose_configuration_was_edited_in_its_folder_is_not_gone_on_with(root):
    config = root / "one" / "config.yaml"
    attempt(FIRST)
    (root / "one" / "results" / ".ingest.json.123").touch()  # as a kill leaves one that was being written
    attempt(load({}, {"training.learning_rate": 5e-6}))  # nothing is finished, so the newer one counts
    attempt(load(config)).run.finish("ingest", {})
    before = config.read_text()
    assert before.count("5.0e-06") == 1
    config.write_text(before.replace("5.0e-06", "0.00001"))
    with pytest.raises(UserError, match=r"config.yaml is not as it was when .* undo the edit, or begin a new run with"):
        attempt(load(config))
    config.write_text(before.replace("5.0e-06", "5e-6") + "# the same, written otherwise\n")
    assert attempt(load(config)).run.result("ingest") == {}


def test_before_anything_is_finished_a_changed_configuration_is_taken():
    attempt(FIRST)
    warnings: list[str] = []
    assert attempt(CHANGED, warnings).config == CHANGED and warnings == []
    assert load(parameters_of("one")["config"]).dump() == CHANGED.dump()


@pytest.mark.parametrize(("number", "words"), [(errno.ENOSPC, "No space left"), (errno.EROFS, "Read-only file system")])
def test_a_folder_that_cannot_be_written_to_is_one_sentence(monkeypatch, number, words):
    def full(*_):
        raise OSError(number, words)

    monkeypatch.setattr(runs, "write_whole", full)
    monkeypatch.setattr("tasks.config.write_whole", full)
    with pytest.raises(UserError, match=rf"the run folder \S+ cannot be written to \({words}.*\); free .* GRPO_RUNS"):
        begin("one", FIRST, print, "train")


def test_a_run_without_its_configuration_cannot_be_resumed(root):
    attempt(FIRST)
    (root / "one" / "config.yaml").write_text("")
    with pytest.raises(UserError, match="the run one has lost its configuration"):
        parameters_of("one")


def test_what_is_said_of_the_configured_model_is_not_meant_for_another():
    configured = {"model": {"name": "mine", "revision": "abc", "trust_remote_code": True}}
    other = load(configured, OF_ANOTHER_MODEL | {"model.name": "theirs"}).model
    assert (other.revision, other.trust_remote_code) == (None, False)
    assert load(configured, OF_ANOTHER_MODEL | {"model.trust_remote_code": True}).model.trust_remote_code


def test_the_version_that_an_alias_meant_when_a_run_began_stays_the_runs(root, monkeypatch):
    from flows import evaluate

    monkeypatch.setattr(evaluate, "flow_run", SimpleNamespace(id="one"))
    monkeypatch.setattr(evaluate, "fetch_version", lambda uri, registry: FetchedVersion(uri, "/somewhere"))
    alias, other = "models:/t@champion", "models:/t/2"
    assert evaluate._version(alias, FIRST.registry).uri == alias and not (root / "one").exists()
    (root / "one").mkdir()
    write_json(root / "one" / evaluate.MEANT, {alias: "models:/t/1"})
    assert evaluate._version(alias, FIRST.registry).uri == "models:/t/1"
    assert evaluate._version(other, FIRST.registry).uri == other


def test_what_was_judged_by_a_reward_that_has_been_changed_is_judged_again(root):
    reward = root / "rewards" / "mine.py"
    reward.parent.mkdir()
    reward.write_text("def mine(completions, **_):\n    return [1 / 0]\n")
    settings = load({"rewards": {"functions": [{"name": f"{reward}:mine"}]}})
    warnings: list[str] = []
    run = attempt(settings, warnings).run
    for stage in ("ingest", "check_rewards", "train"):
        run.finish(stage, {})
    (run.folder / "train").mkdir()
    (run.folder / "train" / "chosen.json").write_text("{}")
    sent = {"run_id": "x", "next": {}, "highest": {"baseline/reward": 0, "train/reward": 8}}
    (run.folder / "mlflow.json").write_text(json.dumps(sent))
    assert attempt(settings, warnings).run.result("check_rewards") == {} and warnings == []
    reward.write_text("def mine(completions, **_):\n    return [1.0 for _ in completions]\n")
    run = attempt(settings, warnings).run
    assert run.result("check_rewards") is None and run.result("ingest") == run.result("train") == {}
    assert warnings == [
        "a file of your rewards has been changed since this run began: check_rewards is done again, "
        "and training goes on with the rewards as they are now"
    ]
    assert not (run.folder / "train" / "chosen.json").exists()
    assert read_json(run.folder / "mlflow.json")["highest"] == {"train/reward": 8}
    run.finish("check_rewards", {})
    assert attempt(settings, warnings).run.result("check_rewards") == {} and len(warnings) == 1


def test_what_began_with_another_record_cannot_be_gone_on_with(root):
    run = attempt(FIRST).run
    for damage in ("", "[]", '{"until": "train"}'):
        (run.folder / "run.json").write_text(damage)
        with pytest.raises(UserError, match="run.json is damaged, so the run one cannot be gone on with"):
            attempt(FIRST)


def test_a_model_folder_that_is_gone_is_one_sentence(root, untrained_model):
    folder = shutil.copytree(untrained_model, root / "model")
    settings = load({"model": {"name": str(folder)}})
    attempt(settings).run.finish("preflight", {"model": {"path": str(folder), "identity": folder_digest(folder)}})
    shutil.rmtree(folder)
    (root / "one" / "results" / "preflight.json").write_text(
        json.dumps({"model": {"path": "/nowhere/model", "identity": "x"}})
    )
    with pytest.raises(UserError, match="the model of the run one is not in /nowhere/model any more; put it back"):
        attempt(settings)


def test_a_run_is_recorded_in_one_mlflow_alone(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@hots:5000")
    run = attempt(FIRST).run
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:5000")  # before the preflight it may have been mistyped
    attempt(FIRST)
    run.finish("preflight", {"model": {"path": "some/model", "identity": "x"}})
    attempt(FIRST)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(UserError, match=r"recorded in http://host:5000, but MLFLOW_TRACKING_URI .* means sqlite:\S+;"):
        attempt(FIRST)


def test_a_run_does_not_go_on_with_another_model(root, untrained_model):
    folder = shutil.copytree(untrained_model, root / "model")
    settings = load({"model": {"name": str(folder)}})
    attempt(settings).run.finish("preflight", {"model": {"path": str(folder), "identity": folder_digest(folder)}})
    attempt(settings)
    (folder / "README.md").write_text("a card")
    attempt(settings)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="the model in .* is another one than when the run one began; put that"):
        attempt(settings)


@pytest.mark.parametrize("given", ["one", "one/", "{root}/one", "{root}/one/"])
def test_a_run_is_named_by_its_id_or_its_folder(root, given):
    attempt(FIRST)
    assert _name(given.format(root=root)) == "one"


@pytest.mark.parametrize("given", ["../runs/one", "two/one", "/one", "", ".", ".."])
def test_what_only_looks_like_a_run_is_none(given):
    attempt(FIRST)
    with pytest.raises(UserError, match="no run"):
        parameters_of(_name(given))


def test_what_follows_the_preflight_takes_the_commit_that_it_found():
    named = Context(Run.open("one"), load({"model": {"name": "Qwen/Qwen2.5-1.5B-Instruct"}}))
    assert named.pinned({"revision": "abc"}).config.model.revision == "abc"
    assert named.pinned({"revision": None}).config == named.config
