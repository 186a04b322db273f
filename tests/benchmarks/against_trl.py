"""What `bench_training.py` and `gpu_check.py` share: the same training by a bare TRL script and by the flow."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

SYSTEM = "Reason, then give the number."
REWARDS = [{"name": "int"}, {"name": "length", "target": 60, "weight": 0.01}]

# As somebody would write it who has only TRL: no gates, no record, no registry.
BARE = """
import json, os, sys
import pandas as pd, torch
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer
from rewards import int_reward_func, length_reward_func

given = json.loads(sys.argv[1])
training = given["training"]
lora = training.pop("lora")
rows = pd.read_parquet(given["rows"])
prompts = [[{"role": "system", "content": given["system"]}, {"role": "user", "content": question}]
           for question in rows["question"]]

def length(completions, **columns):
    return length_reward_func(prompts=None, completions=completions, target=60)

trainer = GRPOTrainer(
    model=given["model"],
    reward_funcs=[int_reward_func, length],
    args=GRPOConfig(**training, output_dir=given["folder"], report_to=[], logging_steps=1, disable_tqdm=True,
        reward_weights=[1.0, 0.01], bf16=given["dtype"] == "bfloat16", fp16=given["dtype"] == "float16",
        gradient_checkpointing=False, model_init_kwargs={"dtype": given["dtype"]}),
    train_dataset=Dataset.from_dict({"prompt": prompts}),
    peft_config=LoraConfig(task_type="CAUSAL_LM", **lora),
)
trainer.train()
trainer.save_model(given["folder"])
steps = [one for one in trainer.state.log_history if "reward" in one]
print(json.dumps({"rewards": [one["reward"] for one in steps], "steps": [one["step_time"] for one in steps]}))
sys.stdout.flush()
os._exit(0)  # what vLLM and CUDA take to be cleared away is no training
"""

PREPARE = """
import json, sys
from pathlib import Path
from tasks.config import load
from tasks.ingest import ingest
from tasks.models import pick_dtype, resolve_model
config = load(sys.argv[1])
if config.training.vllm:
    import vllm  # once, before anything is timed: from then on its many modules are compiled
print(json.dumps({"model": resolve_model(config.model)["path"],
    "rows": str(Path(ingest(config.data)["folder"]) / "train.parquet"),
    "dtype": str(pick_dtype(config.model, config.training.on_cpu)).removeprefix("torch.")}))
"""


@dataclass(frozen=True)
class Timed:
    """One training: seconds of the whole process or stage, and reward and seconds of each step."""

    seconds: float
    rewards: list[float]
    steps: list[float]

    @property
    def step(self) -> float:
        """Seconds of a step, without the first one, which warms up."""
        later = self.steps[1:] or self.steps
        return sum(later) / len(later)


@dataclass(frozen=True)
class FlowTimed(Timed):
    """The same by the flow: also the seconds of each stage, and what MLflow was told."""

    stages: dict[str, float]
    around: float
    """Seconds of everything but training and the baseline, from the command to its end."""
    run: Path


def settings(training: Mapping[str, Any], model: str, dtype: str = "auto", questions: int = 400) -> dict[str, Any]:
    """A configuration that a bare script can follow: no opening, no validation in between, one question scored."""
    return {
        "data": {"samples": {"train": questions, "test": 20, "steps": 1, "seed": 0}},
        "prompt": {"system": SYSTEM},
        "rewards": {"gold_template": None, "functions": REWARDS},
        "model": {"name": model, "dtype": dtype},
        "training": dict(training),
        "evaluation": {"limit": 1, "validation_limit": 1, "engine": "transformers"},
    }


def write(path: Path, values: Mapping[str, Any], **training: Any) -> Path:
    """The configuration as a file, with some other settings of its section training."""
    path.write_text(yaml.safe_dump({**values, "training": values["training"] | training}))
    return path


def run_bare(config: Path, training: Mapping[str, Any], environment: Mapping[str, str]) -> Timed:
    """The training of `config` by a bare TRL script with the same arguments."""
    prepared = last_line(_python(PREPARE, [str(config)], environment))
    given = prepared | {"training": dict(training), "system": SYSTEM, "folder": str(config.with_suffix(".bare"))}
    started = time.perf_counter()
    found = last_line(_python(BARE, [json.dumps(given)], environment))
    return Timed(time.perf_counter() - started, found["rewards"], found["steps"])


def run_flow(config: Path, environment: Mapping[str, str], until: str = "train") -> FlowTimed:
    """The same by the flow, with the seconds of its stages by its log."""
    command = [sys.executable, "-m", "flows.grpo", str(config), "--until", until]
    started = time.perf_counter()
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(done.stderr)
    stages, begun = {}, {}
    for line in done.stderr.splitlines():
        if found := re.match(r"(\S+) \| \w+ +\| Task run '(\w+)-\w+' - (\w+ begins|Finished in state)", line):
            at = datetime.strptime(found[1], "%H:%M:%S.%f")
            if found[3] == "Finished in state":
                stages[found[2]] = (at - begun[found[2]]).total_seconds() % 86400
            else:
                begun[found[2]] = at
    said = re.search(r"run folder: (\S+)", done.stderr)
    assert said
    run = Path(said[1])
    lines = [json.loads(line)["metrics"] for line in (run / "train" / "metrics.jsonl").read_text().splitlines()]
    logged = [line for line in lines if "train/reward" in line]
    return FlowTimed(
        seconds=stages["train"],
        rewards=[line["train/reward"] for line in logged],
        steps=[line["train/step_time"] for line in logged],
        stages=stages,
        around=seconds - stages["train"] - stages["baseline"] - stages.get("evaluate", 0.0),
        run=run,
    )


def _python(program: str, arguments: list[str], environment: Mapping[str, str]) -> str:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=dict(environment), stdout=subprocess.PIPE, text=True, check=True).stdout


def last_line(text: str) -> dict[str, Any]:
    """The last line that is a JSON object; libraries print others."""
    found: dict[str, Any] = json.loads([line for line in text.splitlines() if line.startswith('{"')][-1])
    return found
