"""How the trainer is launched."""

import importlib.util
import json
import os
import subprocess
import types
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from peft import LoraConfig, get_peft_model
from sandbox import PROJECT

from tasks.config import load
from tasks.devices import VLLM_ON_GPUS, only, visible_devices
from tasks.errors import UserError
from tasks.train import launcher
from tasks.train_worker import check_saving, diverged, refused_by_vllm

TELL = "import json, os; print(json.dumps(dict(os.environ)))"


def test_trainer_and_server_see_gpus_of_their_own(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert (visible_devices(2), visible_devices(1, after=2)) == (["0", "1"], ["2"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,7")
    seen = [only(gpus)["CUDA_VISIBLE_DEVICES"] for gpus in (visible_devices(1), visible_devices(2, after=1), [])]
    assert seen == ["4", "6,7", ""]


def test_vllm_on_a_gpu_is_told_what_it_needs_to_start_unless_the_user_says_otherwise(monkeypatch):
    for name in ("VLLM_WORKER_MULTIPROC_METHOD", "VLLM_LORA_DISABLE_PDL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_USE_FLASHINFER_SAMPLER", "1")
    told = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_USE_FLASHINFER_SAMPLER": "1"}
    told |= {"VLLM_LORA_DISABLE_PDL": "1"}
    assert only(["0"]) == told | {"CUDA_VISIBLE_DEVICES": "0"}
    known = Path(importlib.util.find_spec("vllm").origin).with_name("envs.py").read_text()
    assert all(f'"{name}": ' in known for name in VLLM_ON_GPUS)


def test_what_was_once_answered_to_accelerate_config_is_not_this_run(tmp_path, monkeypatch):
    answers = tmp_path / "accelerate" / "default_config.yaml"
    answers.parent.mkdir()
    answers.write_text(
        yaml.safe_dump(
            {
                "compute_environment": "LOCAL_MACHINE",
                "distributed_type": "NO",
                "mixed_precision": "bf16",
                "num_machines": 1,
                "num_processes": 1,
                "use_cpu": False,
            }
        )
    )
    (tmp_path / "tell.py").write_text(TELL)
    environment = os.environ | {"HF_HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    environment.pop("ACCELERATE_MIXED_PRECISION", None)

    def precision(command: list[str]) -> str:
        done = subprocess.run([*command, "tell"], env=environment, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["ACCELERATE_MIXED_PRECISION"]

    command = launcher(load({}), tmp_path)
    assert precision(command) == "no"
    place = command.index("--config_file")
    assert precision([*command[:place], *command[place + 2 :]]) == "bf16"  # what it would be


@pytest.mark.parametrize("processes", [1, 2])
def test_accelerate_reads_the_launch_as_it_is_meant(processes, tmp_path):
    config = load({"training": {"processes": processes}})
    _, _, _, *arguments = launcher(config, tmp_path)
    given, _, _ = _validate_launch_command(launch_command_parser().parse_args([*arguments, "tasks.train_worker"]))
    assert (given.multi_gpu, given.num_processes, given.num_machines) == (processes > 1, processes, 1)
    assert (given.mixed_precision, given.dynamo_backend, given.main_process_port) == ("no", "no", 0)
    assert given.module and given.gpu_ids == "all"


def test_the_users_own_configuration_is_taken_with_the_processes_of_the_run(tmp_path):
    (tmp_path / "mine.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 8\n")
    config = load({"training": {"processes": 4, "accelerate_config": str(tmp_path / "mine.yaml")}})
    command = launcher(config, PROJECT / "not written to")
    assert command[command.index("--config_file") + 1] == str(tmp_path / "mine.yaml")
    assert command[command.index("--num_processes") + 1] == "4"


@pytest.mark.parametrize(("asked", "threads"), [("3", "3"), ("4,2", "4"), ("", str(os.cpu_count()))])
def test_a_training_on_the_cpu_has_the_threads_that_openmp_was_told(asked, threads, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    command = launcher(load({"training": {"use_cpu": True}}), tmp_path)
    assert command[command.index("--num_cpu_threads_per_process") + 1] == threads


@pytest.mark.parametrize("asked", ["all", "0", "-1"])
def test_threads_that_are_no_number_are_refused(asked, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    with pytest.raises(UserError, match=f"OMP_NUM_THREADS is '{asked}', but must be a number of threads"):
        launcher(load({"training": {"use_cpu": True}}), tmp_path)


def test_several_processes_on_a_cpu_are_refused():
    with pytest.raises(UserError, match="training.processes is 2, but training.use_cpu .* set training.processes=1"):
        load({"training": {"use_cpu": True, "processes": 2}})


def test_weights_that_are_no_numbers_are_told_from_what_may_heal():
    model = torch.nn.Linear(2, 2)
    assert not diverged(model, RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert diverged(model, RuntimeError("CUDA error: device-side assert triggered"))  # as sampling from NaN leads to
    frozen = torch.nn.Linear(2, 2).requires_grad_(False)
    frozen.weight[0] = torch.nan
    assert not diverged(frozen, RuntimeError("probability tensor contains either `inf`, `nan` or element < 0"))
    model.weight.data[0] = torch.nan
    assert diverged(model, RuntimeError("probability tensor contains either `inf`, `nan` or element < 0"))


def fsdp(state_dict_type: str) -> SimpleNamespace:
    state = SimpleNamespace(fsdp_plugin=SimpleNamespace(state_dict_type=f"StateDictType.{state_dict_type}"))
    accelerator = SimpleNamespace(state=state)
    return SimpleNamespace(is_fsdp_enabled=True, is_deepspeed_enabled=False, accelerator=accelerator, model=None)


def deepspeed(stage: int, gathers: bool, model: object = None) -> SimpleNamespace:
    zero = {"stage": stage, "stage3_gather_16bit_weights_on_model_save": gathers}
    plugin = SimpleNamespace(deepspeed_config={"zero_optimization": zero})
    accelerator = SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=plugin))
    return SimpleNamespace(is_fsdp_enabled=False, is_deepspeed_enabled=True, accelerator=accelerator, model=model)


def test_a_launch_that_would_leave_weights_in_shards_is_refused_before_the_first_step():
    with pytest.raises(UserError, match="FSDP saves .* set fsdp_state_dict_type: FULL_STATE_DICT in the file of"):
        check_saving(fsdp("SHARDED_STATE_DICT"))
    with pytest.raises(UserError, match="ZeRO-3 saves .* set zero3_save_16bit_model: true in the file of"):
        check_saving(deepspeed(3, gathers=False))
    layer = get_peft_model(torch.nn.Sequential(torch.nn.Linear(2, 2)), LoraConfig(target_modules=["0"]))
    for whole in (
        fsdp("FULL_STATE_DICT"),
        deepspeed(3, gathers=True),
        deepspeed(2, gathers=False),
        deepspeed(3, gathers=False, model=layer),  # of an adapter the trainer gathers the weights itself
        SimpleNamespace(is_fsdp_enabled=False, is_deepspeed_enabled=False, accelerator=SimpleNamespace(state=None)),
    ):
        check_saving(whole)


def test_torchrun_has_more_patience_than_we(monkeypatch):
    from torch.distributed.launcher.api import LaunchConfig

    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "130")
    assert LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=1).shutdown_timeout == 130  # the name is right


def test_what_vllm_refuses_while_it_generates_is_told_from_other_errors():
    from vllm import SamplingParams

    with pytest.raises((TypeError, ValueError)) as unknown:
        SamplingParams(foo=4)
    with pytest.raises(Exception, match="temperature must be non-negative") as wrong:
        SamplingParams(temperature=-1.0)
    with pytest.raises(ValueError) as other:
        int("x")
    assert refused_by_vllm(wrong.value) and not refused_by_vllm(other.value)
    assert not refused_by_vllm(unknown.value)  # of a name the caller hears, which in training is TRL
    caller = types.FunctionType(
        compile("def call(f): f(foo=4)", "/x/trl/generation/vllm_generation.py", "exec").co_consts[0], {}
    )
    with pytest.raises((TypeError, ValueError)) as unknown:
        caller(SamplingParams)
    assert refused_by_vllm(unknown.value)
