"""What happens between two steps of a training: what stops it, and validation."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from sandbox import PROJECT

from tasks import training_callbacks
from tasks.config import load
from tasks.errors import UserError
from tasks.models import load_tokenizer
from tasks.run import read_json, write_json
from tasks.training_callbacks import DiskBudget


@pytest.mark.parametrize(("free", "stops"), [(3 << 20, True), (5 << 20, False)])
def test_a_checkpoint_that_the_disk_could_not_hold_is_not_begun(tmp_path, monkeypatch, free, stops):
    for step in (4, 12):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "optimizer.pt").write_bytes(b"x" * (step << 18))  # 1 and 3 MiB
    monkeypatch.setattr(training_callbacks.shutil, "disk_usage", lambda _: SimpleNamespace(free=2 * free - (1 << 20)))
    step = SimpleNamespace(global_step=16), SimpleNamespace(should_save=True)
    arguments = SimpleNamespace(save_total_limit=3)
    if not stops:
        DiskBudget(tmp_path).on_step_end(arguments, *step)
        return
    with pytest.raises(UserError, match="stopped at step 16: only 0.00 GiB are free .* python -m flows.resume"):
        DiskBudget(tmp_path).on_step_end(arguments, *step)
    DiskBudget(tmp_path).on_step_end(arguments, step[0], SimpleNamespace(should_save=False))


def test_the_first_checkpoint_is_always_begun(tmp_path):
    DiskBudget(tmp_path).on_step_end(
        SimpleNamespace(save_total_limit=3), SimpleNamespace(global_step=1), SimpleNamespace(should_save=True)
    )


def test_a_validation_prompt_that_is_too_long_is_left_out_and_another_takes_its_place(untrained_model, tmp_path):
    config = load({"prompt": {"max_tokens": 60}, "evaluation": {"validation_limit": 2}})
    tokenizer = load_tokenizer(str(untrained_model), config.model, config.prompt)
    questions = ["How much is 1 and 1?", "So?" * 100, "How much is 2 and 2?", "How much is 3 and 3?"]
    rows = pd.DataFrame({"id": range(4), "question": questions})
    trainer = SimpleNamespace(processing_class=tokenizer)
    validation = training_callbacks.Validation(trainer, config, None, rows, tmp_path)
    assert list(validation.rows["id"]) == [0, 2]
    assert len(validation.ids) == len(validation.prompts) == 2 and max(map(len, validation.ids)) <= 60


@pytest.mark.parametrize("torn", [None, "chosen.json", "chosen/adapter_model.safetensors"])
def test_a_choice_of_an_earlier_attempt_counts_if_it_is_whole(torn, tmp_path, capsys):
    (tmp_path / "chosen").mkdir()
    save_file({"a": torch.ones(100)}, tmp_path / "chosen" / "adapter_model.safetensors")
    write_json(tmp_path / "chosen.json", {"step": 3, "reward": 1.0})
    if torn:
        whole = (tmp_path / torn).read_bytes()
        (tmp_path / torn).write_bytes(whole[: len(whole) // 2])
    assert training_callbacks._chosen(tmp_path) == (None if torn else {"step": 3, "reward": 1.0})
    left_out = f"WARNING the weights chosen so far are left out, since {Path(torn).name} cannot be read" if torn else ""
    assert capsys.readouterr().out.strip() == left_out


@pytest.mark.parametrize(("before", "most"), [('{"peak_ram_gib": 900.5, "peak_gpu_gib": 0.0}', 900.5), ("{", None)])
def test_the_most_memory_is_that_of_all_attempts(before, most, tmp_path):
    (tmp_path / "peak.json").write_text(before)
    peak = training_callbacks.PeakMemory(tmp_path)
    peak.on_save(SimpleNamespace(use_cpu=True), SimpleNamespace(is_world_process_zero=True), None)
    found = read_json(tmp_path / "peak.json")
    assert found == peak.of_all_attempts(SimpleNamespace(use_cpu=True)) and found["peak_gpu_gib"] == 0
    assert found["peak_ram_gib"] == most if most else 0 < found["peak_ram_gib"] < 900


SHARED_VALIDATION = """
from types import SimpleNamespace
import torch
from accelerate import Accelerator
from tasks.generate import Completion
from tasks.training_callbacks import Validation


accelerator = Accelerator(cpu=True)


class Echo(Validation):
    def __init__(self, ids):
        model = torch.nn.Linear(1, 1)
        self.trainer = SimpleNamespace(model=model, accelerator=accelerator, use_vllm=True)
        self.config, self.ids = SimpleNamespace(max_new_tokens=1), ids

    def _generate_with_vllm(self, ids, tokens):
        return [Completion(f"{self.trainer.accelerator.process_index}", one, True) for one in ids]


for count in (1, 2, 3, 4, 5, 7):
    ids = [[place] for place in range(count)]
    answers = Echo(ids)._generate()
    assert [answer.ids for answer in answers] == ids, (count, answers)
processes = {answer.text for answer in answers}
assert processes == {"0", "1", "2"}, processes
accelerator.wait_for_everyone()
accelerator.end_training()
"""


def test_several_processes_share_the_validation_questions_and_each_answer_stays_with_its_question(tmp_path):
    program = tmp_path / "validate.py"
    program.write_text(SHARED_VALIDATION)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "3", str(program)]
    environment = os.environ | {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
