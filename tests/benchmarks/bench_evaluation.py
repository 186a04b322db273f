"""Evaluation against a bare `vllm.LLM.generate` on the same prompts, with the same model, in turns.

    GSM8K_DIR=… python tests/benchmarks/bench_evaluation.py [QUESTIONS]

Both generate greedily up to 64 tokens a question with SmolLM2-135M on the CPU. Tokens per second are those of
generating alone; the seconds are those of the whole process, with imports, loading and, for ours, scoring. Without
GSM8K_DIR the questions are made from templates.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

AIM = 0.97
TOKENS = 64
ROUNDS = 2

BARE = """
import json, sys, time
from transformers import AutoTokenizer
from vllm import LLM, SamplingParams
path, prompts, tokens = sys.argv[1], json.load(open(sys.argv[2])), int(sys.argv[3])
llm = LLM(model=path, dtype=sys.argv[4], max_model_len=int(sys.argv[5]), enforce_eager=True, gpu_memory_utilization=0.5)
started = time.perf_counter()
outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], SamplingParams(temperature=0, max_tokens=tokens))
seconds = time.perf_counter() - started
print(json.dumps({"tokens": sum(len(one.outputs[0].token_ids) for one in outputs), "seconds": seconds}))
import os; sys.stdout.flush(); os._exit(0)
"""

PREPARE = """
import json, sys
from tasks.config import load
from tasks.ingest import ingest
from tasks.dataset import Rows
from tasks.models import load_tokenizer, pick_dtype, resolve_model
from tasks.prompts import build_prompt, encode
from pathlib import Path
overrides, place, questions = json.loads(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
config = load("deployments/demo.yaml", overrides)
model = resolve_model(config.model)["path"]
rows = Path(ingest(config.data)["folder"]) / "test.parquet"
prompts = [build_prompt(row["question"], config.prompt) for row in Rows(rows)[:questions]]
ids = encode(prompts, load_tokenizer(model, config.model, config.prompt), config.prompt)
(place / "prompts.json").write_text(json.dumps(ids))
longest = max(map(len, ids)) + config.max_new_tokens
dtype = str(pick_dtype(config.model, use_cpu=True)).removeprefix("torch.")
print(json.dumps({"model": model, "rows": str(rows), "dtype": dtype, "longest": longest}))
"""

OURS = """
import json, sys
from pathlib import Path
from tasks.config import load
from tasks.evaluate import evaluate
from tasks.run import Run
run = Run.open(sys.argv[4])
config = load("deployments/demo.yaml", json.loads(sys.argv[1]))
done = evaluate(run, config, stage="evaluate", rows=Path(sys.argv[2]), model=sys.argv[3], adapter=None,
    folder=run.folder / "evaluate", on_line=lambda line: None)
print(json.dumps({"tokens": done["tokens"], "seconds": done["seconds"]}))
"""


def main(questions: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "2"}
        environment = os.environ | quiet | {"GRPO_RUNS": folder, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        overrides = {
            "evaluation.limit": questions,
            "training.max_completion_length": TOKENS,
            "evaluation.engine": "vllm",
        }
        gsm8k = os.environ.get("GSM8K_DIR")
        overrides |= {"data.path": gsm8k} if gsm8k else {"data.samples.test": questions, "data.samples.steps": 2}
        given = json.dumps(overrides)

        def run(program: str, *arguments: str) -> dict[str, float]:
            started = os.times().elapsed
            command = [sys.executable, "-c", program, *arguments]
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            return json.loads(done.stdout.splitlines()[-1]) | {"process": os.times().elapsed - started}

        made = run(PREPARE, given, folder, str(questions))
        prompts = str(Path(folder) / "prompts.json")
        found: dict[str, list[dict[str, float]]] = {"bare": [], "ours": []}
        for number in range(ROUNDS):
            bare = [str(made["model"]), prompts, str(TOKENS), str(made["dtype"]), str(made["longest"])]
            found["bare"].append(run(BARE, *bare))
            found["ours"].append(run(OURS, given, str(made["rows"]), str(made["model"]), f"round-{number}"))
    print(f"{questions} questions{'':8} {'tokens':>8} {'tokens/s':>9} {'process s':>10}")
    best = {}
    for name, rounds in found.items():
        best[name] = max(one["tokens"] / one["seconds"] for one in rounds)
        shortest = min(one["process"] for one in rounds)
        print(f"{name:20} {rounds[0]['tokens']:8.0f} {best[name]:9.1f} {shortest:10.1f}")
    ratio = best["ours"] / best["bare"]
    print(f"ratio {ratio:.2f} (aim: at least {AIM:g}), the best of {ROUNDS} rounds each")
    return 0 if ratio >= AIM else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
