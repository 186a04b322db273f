"""Whether the gates grow with the rows as they should: time linearly, memory not at all.

    python tests/benchmarks/bench_million_rows.py [ROWS]

Ingest, validate and check_rewards run on ROWS rows (a million by default) and on a quarter of them, each stage in a
process of its own, whose peak memory is that of it and its children. The rows are random words with a sum each.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

AIM_TIME = 4.4
AIM_MEMORY = 1.1

STAGE = """
import json, resource, sys, time
from pathlib import Path
from tasks.check_rewards import check_rewards
from tasks.config import load
from tasks.ingest import ingest
from tasks.run import Run
from tasks.validate import validate

folder, stage = sys.argv[1:]
config = load({"data": {"path": folder}, "rewards": {"time_limit": 3600}})
run = Run.open(stage)
seconds = []
steps = [lambda _: ingest(config.data)]
if stage != "ingest":
    steps.append(lambda data: validate(run, data, config.data, config.validation)["data"])
if stage == "check_rewards":
    steps.append(lambda data: check_rewards(run, config, data))
found = None
for step in steps:
    started = time.perf_counter()
    found = step(found)
    seconds.append(time.perf_counter() - started)
peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(json.dumps({"seconds": seconds[-1], "mib": peak / 1024}))
"""


def main(rows: int) -> int:
    sizes = (rows // 4, rows)
    found: dict[int, dict[str, dict[str, float]]] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory() as place:
            write_rows(Path(place) / "data", size)
            environment = os.environ | {"GRPO_RUNS": f"{place}/runs"}
            found[size] = {}
            for stage in ("ingest", "validate", "check_rewards"):
                command = [sys.executable, "-c", STAGE, f"{place}/data", stage]
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                found[size][stage] = json.loads(done.stdout.splitlines()[-1])
                print(f"{size:>9,} rows: {stage:14} {found[size][stage]['seconds']:7.1f} s", flush=True)
    print(f"\n{'':14} {'seconds':>16} {'ratio':>7}   {'peak MiB':>14} {'ratio':>7}")
    kept = True
    for stage in found[rows]:
        small, large = (found[size][stage] for size in sizes)
        time_ratio, memory_ratio = large["seconds"] / small["seconds"], large["mib"] / small["mib"]
        kept &= time_ratio <= AIM_TIME and memory_ratio <= AIM_MEMORY
        print(
            f"{stage:14} {small['seconds']:7.1f} {large['seconds']:8.1f} {time_ratio:7.2f}   "
            f"{small['mib']:6.0f} {large['mib']:7.0f} {memory_ratio:7.2f}"
        )
    print(f"for 4 times the rows (aim: time at most {AIM_TIME:g} times as long, memory {AIM_MEMORY:g} times as much)")
    return 0 if kept else 1


def write_rows(folder: Path, rows: int) -> None:
    draw = random.Random(0)
    words = [f"word{number}" for number in range(5000)]
    folder.mkdir()
    for split, count in (("train", rows), ("test", 1000)):
        with (folder / f"{split}.jsonl").open("w") as file:
            for number in range(count):
                a, b = draw.randint(1, 999), draw.randint(1, 999)
                question = f"{split} {number} {' '.join(draw.choices(words, k=40))}?"
                answer = f"{' '.join(draw.choices(words, k=30))} <<{a}+{b}={a + b}>>\n#### {a + b}"
                file.write(json.dumps({"question": question, "answer": answer}) + "\n")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
