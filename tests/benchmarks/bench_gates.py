"""What the gates cost on GSM8K: ingest, validate and check_rewards, cold and then cached, each in a fresh process.

    GSM8K_DIR=… python tests/benchmarks/bench_gates.py

Without GSM8K_DIR as many problems are made from templates. Times are those of the stages, imports included.
"""

import json
import os
import subprocess
import sys
import tempfile

AIM_SECONDS = 1.0

STAGES = """
import json, os, sys, time
from pathlib import Path
started = time.perf_counter()
from tasks.check_rewards import check_rewards
from tasks.config import load
from tasks.ingest import ingest
from tasks.run import Run
from tasks.validate import validate

times = {"import": time.perf_counter() - started}

def timed(name, function, *arguments):
    started = time.perf_counter()
    result = function(*arguments)
    times[name] = time.perf_counter() - started
    return result

folder = os.environ.get("GSM8K_DIR")
source = {"data.path": folder} if folder else {
    "data.samples": {"train": 7473, "test": 1319, "steps": 2}, "data.expected_rows": None}
config = load("deployments/gsm8k.yaml", source)
run = Run.open(sys.argv[1])
data = timed("ingest", ingest, config.data)
checked = timed("validate", validate, run, data, config.data, config.validation)
timed("check_rewards", check_rewards, run, config, checked["data"])
print(json.dumps(times))
"""


def main() -> int:
    with tempfile.TemporaryDirectory() as runs:
        environment = os.environ | {"GRPO_RUNS": runs}
        times = {}
        for name in ("cold", "cached"):
            command = [sys.executable, "-c", STAGES, name]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            times[name] = json.loads(done.stdout.splitlines()[-1])
    print(f"{'':14} {'cold':>8} {'cached':>8}   seconds")
    for stage in times["cold"]:
        print(f"{stage:14} {times['cold'][stage]:8.2f} {times['cached'][stage]:8.2f}")
    cold, cached = (sum(seconds for stage, seconds in times[name].items() if stage != "import") for name in times)
    print(f"{'stages':14} {cold:8.2f} {cached:8.2f}   ratio {cold / cached:.0f} (aim: cached below {AIM_SECONDS:g} s)")
    return 0 if cached < AIM_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
