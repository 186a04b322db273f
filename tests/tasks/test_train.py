"""How the trainer is launched."""

import json
import os
import subprocess

import pytest
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from sandbox import PROJECT

from tasks.config import load
from tasks.devices import only, visible_devices
from tasks.errors import UserError
from tasks.train import launcher

TELL = "import json, os; print(json.dumps(dict(os.environ)))"


def test_trainer_and_server_see_gpus_of_their_own(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert (visible_devices(2), visible_devices(1, after=2)) == (["0", "1"], ["2"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,7")
    assert (only(visible_devices(1)), only(visible_devices(2, after=1))) == (
        {"CUDA_VISIBLE_DEVICES": "4"},
        {"CUDA_VISIBLE_DEVICES": "6,7"},
    )


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


def test_several_processes_on_a_cpu_are_refused():
    with pytest.raises(UserError, match="training.processes is 2, but training.use_cpu .* set training.processes=1"):
        load({"training": {"use_cpu": True, "processes": 2}})
