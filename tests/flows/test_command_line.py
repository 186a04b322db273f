"""A user's mistake costs seconds and gives one sentence; what is well starts, and what is asked for is done."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sandbox import PROJECT, Sandbox, Server, free_port, write_config

# The gates alone need no model, so a mistake in the data shows within a second or two.
GATES = ("--until", "check_rewards")

# What is given beside a good configuration, and what the sentence must say. `{folder}` holds the files of `spoil`.
REFUSED_GRPO: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "a missing path": (("data.path={folder}/nowhere", *GATES), ("data.path", "{folder}/nowhere")),
    "an empty file": (("data.path={folder}/empty.jsonl", *GATES), ("{folder}/empty.jsonl", "is empty")),
    "broken JSON": (("data.path={folder}/broken.jsonl", *GATES), ("{folder}/broken.jsonl", "line 3", "not valid JSON")),
    "a missing column": (
        ("data.path={folder}/renamed.jsonl", *GATES),
        ("{folder}/renamed.jsonl", "'answer'", "'answers'"),
    ),
    "an answer without a gold": (("data.path={folder}/markless.jsonl", *GATES), ("####", "row 2")),
    "a reward that is not there": (
        ("rewards.functions=[{{name: corectness}}]", *GATES),
        ("corectness", "did you mean correctness?"),
    ),
    "a file of rewards that is not there": (
        ("rewards.functions=[{{name: correctness}}, {{name: nowhere.py:exact}}]",),
        ("error: preflight: rewards.functions.1.name", "no file", "nowhere.py"),
    ),
    "cases that are not there": (
        ("rewards.cases=nowhere.jsonl",),
        ("error: preflight: rewards.cases", "nowhere.jsonl"),
    ),
    "an unknown folder as the model": (("model.name=./no/such/model",), ("model.name", "./no/such/model")),
    "an unknown model on the hub": (("model.name=nobody/no-such-model",), ("model.name", "nobody/no-such-model")),
    "a GPU that is not there": (("training.use_cpu=false",), ("no GPU", "training.use_cpu=true")),
    "a LoRA target that the model lacks": (
        ("training.lora.target_modules=[nowhere_proj]",),
        ("training.lora", "nowhere_proj"),
    ),
    "an MLflow server that does not answer": (
        ("registry.tracking_uri=http://127.0.0.1:{port}",),
        ("MLflow server http://127.0.0.1:{port}", "does not answer"),
    ),
    "a misspelt setting": (
        ("training.learnin_rate=1e-5",),
        ("training.learnin_rate", "did you mean training.learning_rate"),
    ),
    "a misspelt section": (("trainin.learning_rate=1e-5",), ("trainin", "training")),
    "a name of an older recipe": (
        ("training.max_prompt_length=256",),
        ("training.max_prompt_length", "prompt.max_tokens"),
    ),
    "an impossible value": (("training.learning_rate=fast",), ("training.learning_rate", "fast")),
    "a value out of bounds": (("registry.significance=2",), ("registry.significance", "2")),
    "a group that does not divide the batch": (
        ("training.num_generations=7",),
        ("training.num_generations (7)", "64"),
    ),
    "an override without a value": (("training.learning_rate",), ("training.learning_rate", "=")),
}

# A user's own reward, which lies beside the configuration, right and with planted bugs.
REWARD = """
from rewards import extract_xml_answer, parse_number
from rewards.completion import texts
from rewards.traits import declare


@declare(maximum=1.0, gold_column="answer")
def exact(prompts, completions, answer, **columns):
    return [{value} for text, gold in zip(texts(completions), answer, strict=True)]
"""
REWARDS = {
    "right": "float(parse_number(extract_xml_answer(text)) == parse_number(gold))",
    "raising": "1 / 0",
    "literal": "float(extract_xml_answer(text) == gold)",
    "generous": "1.0",
    "endless": "float('inf')",
}


@dataclass
class Outcome:
    code: int
    stdout: str
    stderr: str

    @property
    def sentence(self) -> str:
        """The one line for the user, which is the last; checks that there is no other, and no traceback."""
        assert "Traceback" not in self.stdout + self.stderr, self.stderr
        *before, last = self.stderr.rstrip("\n").splitlines()
        said = [line for line in before if line.startswith("error: ")]
        if last.startswith("error: "):
            assert said == [], self.stderr
            return last
        [first] = said  # a gate names one thing a line
        return self.stderr[self.stderr.index(first) :]


def spoil(folder: Path) -> None:
    """The data files that something is wrong with."""
    rows = [{"question": f"What is {n} plus one?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"} for n in range(60)]
    lines = [json.dumps(row) for row in rows]
    (folder / "empty.jsonl").write_text("")
    (folder / "broken.jsonl").write_text("\n".join([*lines[:2], lines[2][:-5], *lines[3:]]))
    (folder / "renamed.jsonl").write_text("\n".join(lines).replace('"answer"', '"answers"'))
    (folder / "markless.jsonl").write_text("\n".join([lines[0], lines[1].replace("####", "so"), *lines[2:]]))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, prefect_server: Server) -> Sandbox:
    """One sandbox for all, where nothing may be left of a run that was refused."""
    variables = {"PREFECT_API_URL": f"{prefect_server.uri}/api", "CUDA_VISIBLE_DEVICES": ""}
    return Sandbox(tmp_path_factory.mktemp("command-line"), variables)


@pytest.fixture(scope="module")
def config(place: Sandbox, tiny_settings: dict[str, Any], untrained_model: Path) -> Path:
    settings = tiny_settings | {"model": {"name": str(untrained_model), "dtype": "float32"}}
    return write_config(place.folder / "good.yaml", settings)


@pytest.fixture(scope="module")
def filled_in(place: Sandbox) -> dict[str, Any]:
    """What stands for the placeholders in REFUSED_GRPO."""
    return {"folder": place.folder, "port": free_port()}


@pytest.fixture(scope="module")
def outcomes(
    place: Sandbox, config: Path, tiny_settings: dict[str, Any], filled_in: dict[str, Any]
) -> dict[str, Outcome]:
    """What became of each command line; they run one after the other in one process."""
    spoil(place.folder)
    for name, value in REWARDS.items():
        (place.folder / f"{name}.py").write_text(REWARD.format(value=value))
        functions = [{"name": f"{name}.py:exact"}, {"name": "soft_format"}]
        write_config(place.folder / f"{name}.yaml", tiny_settings | {"rewards": {"functions": functions}})
    cases = {
        name: ["flows.grpo", str(config), *(word.format(**filled_in) for word in arguments)]
        for name, (arguments, _) in REFUSED_GRPO.items()
    }
    cases["a missing configuration"] = ["flows.grpo", str(place.folder / "nowhere.yaml")]
    cases["a version that is not registered"] = ["flows.evaluate", str(config), "--model", "models:/nobody@champion"]
    # What is said of training is not for a model that is only scored: no server, and no adapter that must fit it.
    of_training = ["training.use_vllm=true", "training.vllm_mode=server", "training.lora={target_modules: [nowhere]}"]
    too_long = ["evaluation.max_new_tokens=5000", "training.per_device_train_batch_size=8000"]
    cases["an evaluation that is too long"] = ["flows.evaluate", str(config), *of_training, *too_long]
    cases["a version without its number"] = ["flows.evaluate", str(config), "--model", "models:/nobody"]
    cases["all well up to the gates"] = ["flows.grpo", str(config), *GATES]
    cases |= {f"check {name}": ["flows.check", str(place.folder / f"{name}.yaml")] for name in REWARDS}
    (place.folder / "cases.json").write_text(json.dumps(cases))
    done = place.run("tests/flows/command_lines.py", *(str(place.folder / f"{name}.json") for name in ("cases", "out")))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    found = json.loads((place.folder / "out.json").read_text())
    return {name: Outcome(**outcome) for name, outcome in found.items()}


@pytest.mark.parametrize("case", REFUSED_GRPO)
def test_a_mistake_gives_one_sentence_that_names_it(case, outcomes, filled_in):
    outcome = outcomes[case]
    assert outcome.code in (1, 2)
    for words in REFUSED_GRPO[case][1]:
        assert words.format(**filled_in) in outcome.sentence


def test_a_configuration_that_is_not_there_is_named(outcomes, place):
    outcome = outcomes["a missing configuration"]
    assert outcome.code == 2
    assert str(place.folder / "nowhere.yaml") in outcome.sentence


def test_a_version_that_is_not_registered_is_not_scored(outcomes):
    outcome = outcomes["a version that is not registered"]
    assert outcome.code == 1
    assert "models:/nobody@champion is not in the registry" in outcome.sentence


def test_an_evaluation_is_held_to_the_models_room_and_not_to_the_settings_of_training(outcomes):
    outcome = outcomes["an evaluation that is too long"]
    assert outcome.code == 1
    assert "test: the longest prompt has " in outcome.sentence and "lower evaluation.max_new_tokens" in outcome.sentence


def test_a_version_without_its_number_is_asked_for_with_it(outcomes):
    assert (
        "models:/nobody names no version; write models:/nobody/1 or"
        in outcomes["a version without its number"].sentence
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "127.0.0.1,localhost,0.0.0.0"),
        ({"NO_PROXY": "example.org"}, "example.org,127.0.0.1,localhost,0.0.0.0"),
        ({"no_proxy": "localhost,127.0.0.1"}, "localhost,127.0.0.1,0.0.0.0"),
        ({"no_proxy": "*"}, "*"),
    ],
)
def test_what_runs_on_this_machine_is_asked_past_any_proxy(given, told):
    environment = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"} | given
    program = "import flows, os; print(os.environ['no_proxy'], os.environ['NO_PROXY'])"
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=True).stdout
    assert said.split() == [told, told]


def test_what_is_well_runs_as_far_as_asked(outcomes):
    outcome = outcomes["all well up to the gates"]
    assert outcome.code == 0, outcome.stderr
    last = outcome.stdout.splitlines()[-1]
    assert re.fullmatch(
        r"stopped after check_rewards, as asked; to go on: python -m flows.resume \S+ --until register", last
    )


def test_nothing_is_trained_or_recorded_after_a_mistake(outcomes, place):
    assert place.mlflow_runs() == []
    assert not place.runs.joinpath("mlflow.db").exists() or place.mlflow.search_registered_models() == []
    assert [path for run in place.runs.iterdir() for name in ("train", "baseline") for path in run.glob(name)] == []


def test_check_passes_rewards_of_the_users_own_from_a_file_beside_the_configuration(outcomes):
    outcome = outcomes["check right"]
    assert outcome.code == 0, outcome.stderr
    assert "data gate passed" in outcome.stdout and "reward gate passed" in outcome.stdout


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ("raising", "exact: raised ZeroDivisionError"),
        ("literal", "exact gives 0 instead of 1 to"),
        ("generous", "exact gives its full 1 to a wrong answer"),
        ("endless", "exact: returned inf"),
    ],
)
def test_check_refuses_a_reward_with_a_planted_bug_and_says_which(outcomes, reward, said):
    outcome = outcomes[f"check {reward}"]
    assert outcome.code == 2
    assert said in outcome.sentence
    assert "data gate passed" in outcome.stdout and "reward gate passed" not in outcome.stdout


def test_without_an_answer_of_the_prefect_server_nothing_starts(sandbox, config):
    sandbox.variables["PREFECT_API_URL"] = f"http://127.0.0.1:{free_port()}/api"
    done = sandbox.grpo(config)
    assert done.returncode == 2
    assert f"the Prefect server at {sandbox.variables['PREFECT_API_URL']} does not answer" in sentence_of(done)
    sandbox.variables["PREFECT_API_URL"] = ""
    done = sandbox.grpo(config)
    assert done.returncode == 2
    assert "PREFECT_API_URL is set but empty; unset it to run without a Prefect server" in sentence_of(done)
    assert not sandbox.runs.exists()


def test_a_disk_that_is_too_small_is_refused_before_anything_is_done(sandbox, config):
    """On a file system of 16 MiB, or, where this user may mount none, on the real one with an absurd demand."""
    sandbox.runs.mkdir()
    namespace = next((one for one in NAMESPACES if may_mount(one, sandbox.runs)), None)
    if namespace:
        done = sandbox.run("-m", "flows.grpo", str(config), inside=[*namespace, "sh", "-c", MOUNTED, "sh"])
    else:
        done = sandbox.run("-c", f"import tasks.preflight as p; p.LEAST_GIB = 1e9; {GRPO}", str(config))
    assert done.returncode == 1
    for words in ("a run needs about", f"GiB on the disk of {sandbox.runs}", "GiB are free", "GRPO_RUNS"):
        assert words in sentence_of(done)
    assert sandbox.mlflow_runs() == []


# Mount points of its own for one command and its children, as root and as any user.
NAMESPACES = (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"])
MOUNTED = 'mount -t tmpfs -o size=16m tmpfs "$GRPO_RUNS" && exec "$@"'
GRPO = "import runpy; runpy.run_module('flows.grpo', run_name='__main__', alter_sys=True)"


def may_mount(namespace: list[str], folder: Path) -> bool:
    command = [*namespace, "mount", "-t", "tmpfs", "tmpfs", str(folder)]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


def sentence_of(done: subprocess.CompletedProcess[str]) -> str:
    return Outcome(done.returncode, done.stdout, done.stderr).sentence
