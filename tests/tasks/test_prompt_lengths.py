"""Prompts are counted in tokens, in a child, before anything is generated."""

import json
import os
import signal
from contextlib import closing

import pytest

from tasks.config import Config
from tasks.errors import UserError, WorkerFailed
from tasks.ingest import ingest
from tasks.preflight import PreflightWorker
from tasks.prompt_lengths import prompt_lengths, require_room
from tasks.run import Run


@pytest.fixture
def measure(runs, tmp_path, untrained_model):
    """Measure the prompts of 40 training and 10 test questions; the training row 7 is a long one."""
    source = tmp_path / "source"
    source.mkdir()
    for split, numbers in (("train", range(40)), ("test", range(40, 50))):
        rows = [{"question": f"How much is {n} and 1?" + " So?" * (60 * (n == 6)), "answer": "#### 1"} for n in numbers]
        (source / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = {"model": {"path": str(untrained_model), "identity": "tiny"}, "positions": 1024}
    said = []

    def run(training=None, **prompt):
        config = Config.model_validate({"data": {"path": str(source)}, "prompt": prompt, "training": training or {}})
        with closing(PreflightWorker(Run.open("a-run"), said.append)) as worker:
            return prompt_lengths(config, ingest(config.data), found, worker, said.append), said

    return run


def test_lengths_are_those_of_the_whole_prompt_and_the_long_ones_are_counted(measure):
    short, _ = measure(max_tokens=1000)
    assert short["train"]["prompts"] + short["validation"]["prompts"] == 40 and short["test"]["prompts"] == 10
    assert short["train"]["too_long"] == 0
    system, said = measure(max_tokens=100, system="You are good at sums.")
    assert system["test"]["min"] > short["test"]["min"]
    assert system["train"]["too_long"] == 1 and system["train"]["first"][0][0] == 7
    assert any("1 longer than 100" in line for line in said)


def test_a_long_prompt_stops_the_run_where_it_should_with_its_row(measure):
    with pytest.raises(
        UserError, match=r"train: 1 of 3\d prompts are longer than prompt\.max_tokens \(100\), the first row 7"
    ):
        measure(max_tokens=100, on_too_long="stop")


def test_a_limit_below_every_prompt_is_refused_with_the_shortest(measure):
    with pytest.raises(
        UserError, match=r"every prompt of train is longer than prompt\.max_tokens \(3\); the shortest has"
    ):
        measure(max_tokens=3)


def test_the_same_prompts_are_not_measured_again(measure, monkeypatch):
    first, _ = measure(max_tokens=1000)

    def refuse(worker, job, name):
        raise ChildProcessError("measured again")

    monkeypatch.setattr("tasks.supervise.Worker.give", refuse)
    assert measure(max_tokens=1000)[0] == first
    with pytest.raises(ChildProcessError, match="measured again"):
        measure(max_tokens=1000, system="Another.")


def test_fewer_prompts_than_one_generation_takes_would_train_nothing(measure):
    batch = {"num_generations": 2, "per_device_train_batch_size": 2, "save_strategy": "no"}
    with pytest.raises(UserError, match=r"train has \d\d prompts, but one generation batch takes 40 \(80 completions"):
        measure(batch | {"steps_per_generation": 40})
    measure(batch | {"steps_per_generation": 20})


@pytest.mark.parametrize(
    ("training", "more", "words"),
    [
        ({"max_completion_length": 100}, {}, None),
        (
            {"max_completion_length": 101},
            {},
            r"train: the longest prompt has 300 tokens and a completion up to 101, more than "
            r"training.vllm_max_model_length \(400\) holds; raise that to 401",
        ),
        ({"max_completion_length": 50}, {"evaluation": {"max_new_tokens": 120, "every_steps": 5}}, None),
        ({"max_completion_length": 50}, {"evaluation": {"max_new_tokens": 121}}, None),  # without validation
        (
            {"max_completion_length": 50},
            {"evaluation": {"max_new_tokens": 121, "every_steps": 5}},
            "validation: .* raise that to 401, or lower evaluation.max_new_tokens or prompt.max_tokens",
        ),
        (
            {"max_completion_length": 50},
            {"evaluation": {"max_new_tokens": 802}},
            "test: .* has room for 1100 in all; lower evaluation.max_new_tokens or",
        ),
        ({"max_completion_length": 200}, {"prompt": {"max_tokens": 200}}, None),
        ({"max_completion_length": 201, "use_vllm": False}, {}, None),
        ({"max_completion_length": 801, "use_vllm": False}, {}, "has room for 1100 in all; lower training.max_comp"),
    ],
    ids=str,
)
def test_a_prompt_and_its_completion_must_fit_together(training, more, words):
    vllm = {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 400}
    config = Config.model_validate({"training": vllm | training} | more)
    # Test questions are asked by an engine that is made for their length.
    lengths = {"train": {"max": 300}, "validation": {"max": 280}, "test": {"max": 299}}
    if words is None:
        require_room(config, lengths, 1100)
        return
    with pytest.raises(UserError, match=words):
        require_room(config, lengths, 1100)


def test_a_model_whose_room_is_not_known_is_believed_to_have_enough():
    lengths = {"train": {"max": 300}, "validation": {"max": 300}, "test": {"max": 300}}
    require_room(Config.model_validate({"training": {"max_completion_length": 10**6}}), lengths, None)


def test_vllm_cannot_be_given_more_room_than_the_model_has():
    lengths = {split: {"max": 300} for split in ("train", "validation", "test")}
    config = Config.model_validate({"training": {"use_vllm": True, "vllm_max_model_length": 2000}})
    with pytest.raises(UserError, match="vllm_max_model_length is 2000, but .* has room for 1100 tokens; lower it"):
        require_room(config, lengths, 1100)


def test_a_worker_that_was_killed_while_others_worked_is_started_again(measure, monkeypatch, runs):
    from tasks.supervise import Worker

    answer, started = Worker.answer, []

    def killed_first(worker, *arguments):
        started.append(worker)
        if len(started) == 1:
            os.kill(worker._process.pid, signal.SIGKILL)
        return answer(worker, *arguments)

    monkeypatch.setattr(Worker, "answer", killed_first)
    with closing(PreflightWorker(Run.open("another-run"), lambda _: None)) as worker:
        with pytest.raises(WorkerFailed, match="SIGKILL"):
            worker.ask("prompt_lengths", {})
        with pytest.raises(WorkerFailed, match="KeyError: 'config'"):
            worker.ask("prompt_lengths", {})
    assert len(set(map(id, started))) == 2 and all(worker.ended for worker in started)
