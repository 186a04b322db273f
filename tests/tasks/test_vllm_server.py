"""The vLLM server that training may have beside it: started, awaited, watched and ended, for real, on the CPU.

What it cannot show without two GPUs is the way of the weights from the trainer to the server, which goes by NCCL.
"""

from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tasks.config import Config, load
from tasks.errors import OutOfMemory, UserError, WorkerFailed
from tasks.memory import smaller_training_share
from tasks.models import resolve_model
from tasks.run import Run
from tasks.supervise import Worker
from tasks.vllm_server import generation_server

SERVED = {"use_vllm": True, "vllm_mode": "server", "vllm_server": {"gpus": 2}}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("GRPO_RUNS", str(tmp_path))
    return Run.open("served")


@pytest.mark.slow
@pytest.mark.alone
def test_the_server_answers_while_it_is_needed_and_leaves_nothing_behind(run, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = load(
        "deployments/demo.yaml", {"training.vllm_mode": "server", "training.vllm_server": {"start_seconds": 300}}
    )
    lines: list[str] = []
    model = resolve_model(config.model) | {"dtype": "float32"}
    before = set(psutil.Process().children(recursive=True))  # a vLLM inside this process, of another test, leaves some
    with generation_server(run, config, model, lines.append) as server:
        address = f"http://{server.settings['vllm_server_host']}:{server.settings['vllm_server_port']}"
        server.check()
        asked = {"model": model["path"], "prompt": "1 + 1 =", "max_tokens": 4, "temperature": 0}
        answer = httpx.post(f"{address}/v1/completions", json=asked, timeout=120)
        assert answer.status_code == 200 and answer.json()["choices"][0]["text"]
        family = set(psutil.Process().children(recursive=True)) - before
        assert any("vllm" in " ".join(one.cmdline()) for one in family)
    assert any("the vLLM server is ready after" in line for line in lines)
    _, alive = psutil.wait_procs(list(family), timeout=10)
    assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.slow
@pytest.mark.alone
def test_a_server_that_cannot_start_ends_the_wait_with_the_end_of_its_log(run, tmp_path):
    (tmp_path / "nothing").mkdir()
    config = load("deployments/demo.yaml", {"training.vllm_mode": "server", "training.vllm_server": {}})
    model = {"path": str(tmp_path / "nothing"), "identity": "", "dtype": "float32"}
    with (
        pytest.raises(WorkerFailed, match="tasks.vllm_server_worker ended with exit code"),
        generation_server(run, config, model, print),
    ):
        raise AssertionError("it cannot be ready")


def test_without_one_nothing_is_started(run):
    with generation_server(run, Config(), {"path": "", "identity": ""}, print) as server:
        assert server.settings == {}


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"vllm_server": {}}, "training.vllm_server needs training.use_vllm=true and training.vllm_mode=server"),
        ({"vllm_mode": "server"}, "training.vllm_mode is server, which needs training.use_vllm=true"),
        (SERVED | {"vllm_server_port": 8000}, "training.vllm_server_port is chosen by the pipeline"),
    ],
)
def test_a_server_that_is_asked_for_by_halves_is_refused(training, words):
    with pytest.raises(UserError, match=words):
        load({"training": training})


def test_where_its_memory_runs_out_it_gets_less_and_not_the_trainer(run, monkeypatch):
    class Lacking:
        def __init__(self, *_: object, **__: object) -> None: ...

        def give(self, job: dict) -> None: ...

        def check(self) -> None:
            raise OutOfMemory("tasks.vllm_server_worker: CUDA out of memory", 1)

        def end(self) -> None: ...

    monkeypatch.setattr("tasks.vllm_server.Worker", Lacking)
    model = {"path": "", "identity": "", "dtype": "bfloat16"}
    with (
        pytest.raises(OutOfMemory) as caught,
        generation_server(run, load({"training": SERVED}), model, print),
    ):
        raise AssertionError("it cannot be ready")
    assert caught.value.for_vllm
    assert smaller_training_share(load({"training": SERVED})) == {"training.vllm_server.memory": 0.533}


def test_a_server_that_does_not_take_the_weights_is_told_before_the_trainer_waits_for_ever(run, monkeypatch):
    """vLLM's engine logs that, and goes on."""

    class Saying(Worker):
        def __init__(self, _module: str, *arguments: Any, **how: Any) -> None:
            super().__init__("says", *arguments, **how)

    program = run.folder / "says.py"
    program.write_text(
        "import sys, time, pathlib\n"
        "while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.05)\n"
        "print('(EngineCore pid=6) ERROR 12-01 Invocation of update_weights method failed', flush=True)\n"
        "print('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB', flush=True)\n"
        "time.sleep(300)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(run.folder))
    monkeypatch.setattr("tasks.vllm_server.Worker", Saying)
    model = {"path": "", "identity": "", "dtype": "bfloat16"}
    with (
        pytest.raises(OutOfMemory, match="CUDA out of memory") as caught,
        generation_server(run, load({"training": SERVED}), model, print),
    ):
        raise AssertionError("it cannot be ready")
    assert caught.value.for_vllm
