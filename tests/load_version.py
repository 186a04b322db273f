"""Load a registered version as a user would, in a process that knows MLflow and transformers but not this project.

    MLFLOW_TRACKING_URI=… python tests/load_version.py models:/NAME/VERSION

Prints one line of JSON: what the version answers to its own input example, through mlflow and through transformers.
"""

import json
import sys
import tempfile
from pathlib import Path

import mlflow
from mlflow.artifacts import download_artifacts
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(uri: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        where = Path(download_artifacts(uri, dst_path=folder))
        example = json.loads((where / "input_example.json").read_text())
        prompt, limits = example["inputs"], example["params"]
        [by_mlflow] = mlflow.pyfunc.load_model(str(where)).predict(prompt, params=limits)
        tokenizer = AutoTokenizer.from_pretrained(where / "model")
        model = AutoModelForCausalLM.from_pretrained(where / "model")
        inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        ids = model.generate(**inputs, do_sample=False, **limits)[0, inputs["input_ids"].shape[1] :]
        by_transformers = tokenizer.decode(ids, skip_special_tokens=True)
    print(json.dumps({"prompt": prompt, "mlflow": by_mlflow, "transformers": by_transformers}))


if __name__ == "__main__":
    main(sys.argv[1])
