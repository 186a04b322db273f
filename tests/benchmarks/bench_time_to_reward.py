"""How long training takes to a held-out reward: the demo as it comes, against the classic recipe, on the CPU.

    python tests/benchmarks/bench_time_to_reward.py [REWARD]

1. The demo: all linear layers, learning rate 2e-4, generation by vLLM, the shortcuts of `tasks/cpu.py`.
2. The same, but generation by transformers and no shortcuts: what vLLM and the shortcuts are worth.
3. The classic recipe of GSM8K (attention layers, 5e-6 with cosine, KL penalty 0.04) with transformers' generation.

SmolLM2-135M, the same word problems, the same validation every five steps. Time is from the start of the train stage
(loading and validation included) to the validation that reached REWARD; one that takes three times ours is ended.
"""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from tasks.metrics import series

AIM = 1 / 3
REWARD = 3.0
DEMO = Path(__file__).resolve().parent.parent.parent / "deployments" / "demo.yaml"

COMMON = ["training.max_steps=120", "evaluation.every_steps=5", "evaluation.validation_limit=32", "evaluation.limit=8"]
WITHOUT_VLLM = ["training.use_vllm=false", "training.cpu_shortcuts=false"]
CLASSIC = [
    "training.lora={r: 16, lora_alpha: 64, target_modules: [q_proj, k_proj, v_proj, o_proj]}",
    "training.learning_rate=5.0e-6",
    "training.lr_scheduler_type=cosine",
    "training.warmup_steps=0.1",
    "training.adam_beta1=0.9",
    "training.weight_decay=0.1",
    "training.max_grad_norm=0.1",
    "training.beta=0.04",
    "training.loss_type=grpo",
]


@dataclass(frozen=True)
class Reached:
    """Seconds of the train stage, and steps, until the reward was there or the time was over; the reward then."""

    seconds: float
    steps: int
    reward: float
    there: bool


def reach(name: str, settings: list[str], target: float, limit: float, folder: Path) -> Reached:
    """Train until validation gives `target`, for at most `limit` seconds."""
    runs = folder / name
    environment = os.environ | {"GRPO_RUNS": str(runs), "HF_HUB_OFFLINE": "1", "PREFECT_HOME": str(folder / "prefect")}
    command = [sys.executable, "-m", "flows.grpo", str(DEMO), *COMMON, *settings, "--until", "train"]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        while True:
            found = _so_far(runs)
            if found and (found.reward >= target or found.seconds >= limit):
                return Reached(found.seconds, found.steps, found.reward, found.reward >= target)
            if process.poll() is not None:
                raise SystemExit((folder / f"{name}.log").read_text()[-3000:])
            time.sleep(0.5)
    finally:
        if process.poll() is None:
            started = psutil.Process(process.pid).children(recursive=True)
            process.terminate()
            process.wait(60)
            psutil.wait_procs(started, timeout=60)


def _so_far(runs: Path) -> Reached | None:
    """The latest validation, with the time until then; between two of them the time goes on."""
    jobs = list(runs.glob("*/train/train_worker.job"))
    if not jobs:
        return None
    begun, metrics = jobs[0].stat().st_mtime, jobs[0].with_name("metrics.jsonl")
    validations = series(metrics, "validation/reward")
    if not validations:
        return None
    step, reward = validations[-1]
    return Reached(time.time() - begun, step, reward, False)


def main(target: float) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours = reach("ours", [], target, 1200, folder)
        if not ours.there:
            raise SystemExit(f"validation gave {ours.reward:.2f} after {ours.steps} steps; take a lower REWARD")
        limit = ours.seconds / AIM
        others = {
            "the same without vLLM and shortcuts": reach("same", WITHOUT_VLLM, target, limit, folder),
            "the classic recipe": reach("classic", [*WITHOUT_VLLM, *CLASSIC], target, limit, folder),
        }
    print(f"{'held-out reward ' + format(target, 'g'):36} {'seconds':>8} {'steps':>6} {'reward':>7}")
    for label, found in {"as it comes": ours, **others}.items():
        end = "" if found.there else "  ended"
        print(f"{label:36} {found.seconds:8.0f} {found.steps:6} {found.reward:7.2f}{end}")
    for label, found in others.items():
        words = f"{ours.seconds / found.seconds:.2f}" if found.there else f"less than {AIM:.2f}"
        print(f"ours takes {words} of the time of {label}")
    classic = others["the classic recipe"]
    print(f"aim: at most {AIM:.2f} of the classic recipe's")
    return 0 if not classic.there or ours.seconds <= AIM * classic.seconds else 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else REWARD))
