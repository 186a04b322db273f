"""An evaluation by several processes, and by several completions of each question."""

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tasks import evaluate as evaluate_stage
from tasks.config import Config, load
from tasks.errors import UserError
from tasks.evaluate import baseline_key, evaluate, merged_folder
from tasks.run import Run, still_there

QUESTIONS = 7


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "test.parquet"
    questions = [f"What is {number} plus {number * number}?" for number in range(QUESTIONS)]
    answers = [str(number + number * number) for number in range(QUESTIONS)]
    ids = [f"question-{number}" for number in range(QUESTIONS)]
    pd.DataFrame({"id": ids, "question": questions, "answer": answers}).to_parquet(path)
    return path


@pytest.fixture
def score(runs: Path, rows: Path, untrained_model: Path):
    def score(
        name: str, model: Path = untrained_model, adapter: Path | None = None, merged: bool = True, **evaluation: Any
    ) -> dict[str, Any]:
        config = Config.model_validate(
            {
                "model": {"name": str(model), "dtype": "float32"},
                "registry": {"merged": merged},
                "prompt": evaluation.pop("prompt", {}),
                "training": {"use_cpu": True, "max_completion_length": 8},
                "evaluation": {"engine": "transformers", "batch_size": 4} | evaluation,
            }
        )
        run = Run.open(name)
        lines: list[str] = []
        return evaluate(
            run,
            config,
            stage="evaluate",
            rows=rows,
            model=str(model),
            adapter=adapter,
            folder=run.folder / "evaluate",
            on_line=lines.append,
        )

    return score


def test_processes_that_share_the_questions_give_the_table_of_one(score):
    one, three = score("one", samples=2), score("three", processes=3, samples=2)
    tables = [pd.read_parquet(found["results"]) for found in (one, three)]
    assert tables[0]["id"].tolist() == [f"question-{number}" for number in range(QUESTIONS)]
    pd.testing.assert_frame_equal(*tables)
    for name in ("n", "reward", "accuracy", "mean_tokens", "tokens"):
        assert one[name] == three[name]
    samples = pd.read_parquet(Path(three["results"]).with_name("samples.parquet"))
    assert samples["id"].tolist() == [f"question-{number}" for number in range(QUESTIONS) for _ in range(2)]
    left = {path.name for path in Path(three["results"]).parent.iterdir()}
    assert left == {
        "results.parquet",
        "samples.parquet",
        "evaluate_worker.job",
        "evaluate_worker.result",
        "share-1",
        "share-2",
    }


@pytest.fixture(scope="module")
def adapted(untrained_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model saved in bfloat16, and an adapter to it whose weights are no zeros."""
    from adapters import randomise_adapter
    from peft import LoraConfig, get_peft_model

    from tasks.models import load_model, load_tokenizer

    folder = tmp_path_factory.mktemp("adapted")
    settings = Config.model_validate({"model": {"name": str(untrained_model), "dtype": "bfloat16"}})
    model = load_model(str(untrained_model), settings.model, True)
    model.save_pretrained(folder / "base")
    load_tokenizer(str(untrained_model), settings.model, settings.prompt).save_pretrained(folder / "base")
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=4))
    randomise_adapter(model, seed=1, size=1.0)
    model.save_pretrained(folder / "adapter")
    return folder / "base", folder / "adapter"


def test_an_adapter_is_evaluated_as_the_model_that_will_be_registered(score, adapted):
    """Merged in the precision of the checkpoint, in which a part of the adapter is rounded away, and only once."""
    import torch
    from safetensors.torch import load_file

    base, adapter = adapted
    found, shared = (score(f"{count}", *adapted, processes=count) for count in (1, 2))
    weights = load_file(merged(found) / "model.safetensors")
    assert {one.dtype for one in weights.values()} == {torch.bfloat16}
    name = "model.layers.0.self_attn.q_proj.weight"
    lora = load_file(adapter / "adapter_model.safetensors")
    a, b = (lora[f"base_model.model.{name.replace('weight', '')}lora_{one}.weight"].float() for one in "AB")
    exact = load_file(base / "model.safetensors")[name].float() + 2 * b @ a
    assert not torch.equal(weights[name].float(), exact) and torch.allclose(weights[name].float(), exact, rtol=0.01)
    tables = [pd.read_parquet(one["results"]) for one in (found, shared, score("by itself", merged(found)))]
    for other in tables[1:]:
        pd.testing.assert_frame_equal(tables[0], other)
    assert answers(found) != answers(score("base", base))
    shutil.rmtree(merged(found))  # as the registration does
    assert still_there(found)  # or a run that goes on would evaluate once more


def test_an_adapter_that_will_be_registered_alone_is_evaluated_beside_its_base(score, adapted):
    found = score("alone", *adapted, merged=False)
    assert not merged(found).exists()
    assert answers(found) != answers(score("base", adapted[0]))


def merged(found: dict[str, Any]) -> Path:
    return merged_folder(Path(found["results"]).parent)


def answers(found: dict[str, Any]) -> list[str]:
    return pd.read_parquet(found["results"])["completion"].tolist()


def test_sampled_completions_differ_and_leave_the_greedy_ones_as_they_were(score):
    greedy, sampled = score("greedy"), score("sampled", samples=4, temperature=1.0)
    pd.testing.assert_frame_equal(*(pd.read_parquet(found["results"]) for found in (greedy, sampled)))
    assert not [name for name in greedy if name.startswith("sampled/")]
    assert {"sampled/accuracy", "sampled/pass_at_4", "sampled/majority_flexible_stderr"} <= set(sampled)
    samples = pd.read_parquet(Path(sampled["results"]).with_name("samples.parquet"))
    assert len(samples) == 4 * QUESTIONS
    assert samples.groupby("id")["completion"].nunique().min() > 1


def test_fewer_questions_than_processes_are_no_trouble_but_prompts_that_are_all_too_long_are(score):
    assert score("few", processes=5, limit=2)["n"] == 2
    with pytest.raises(UserError, match=r"every prompt is longer than prompt.max_tokens \(1\); raise it"):
        score("short", prompt={"max_tokens": 1})


def test_a_baseline_is_that_of_one_engine_protocol_and_model(runs, monkeypatch):
    def key(rows: str = "rows", model: str = "model", dtype: str = "bfloat16", **overrides: Any) -> str:
        return baseline_key(Run.open("one"), load({}, overrides), rows, {"identity": model, "dtype": dtype})

    monkeypatch.setattr(evaluate_stage, "choose_engine", lambda config: ("transformers", ""))
    monkeypatch.setattr(evaluate_stage, "vllm_version", lambda: "0.31.0")
    plain = key()
    same = {"evaluation.processes": 2, "evaluation.time_limit": 60, "training.learning_rate": 1e-3}
    assert key(**same) == plain
    others = [key(rows="others"), key(model="other"), key(**{"evaluation.limit": 8}), key(**{"prompt.system": "Hm."})]
    others.append(key(dtype="float16"))  # what auto means on an older GPU that shares the store
    monkeypatch.setattr(evaluate_stage, "choose_engine", lambda config: ("vllm", ""))
    others.append(key())
    monkeypatch.setattr(evaluate_stage, "vllm_version", lambda: "0.32.0")
    others.append(key())
    assert len({plain, *others}) == 1 + len(others)


def test_greedy_knows_no_penalty_and_no_other_way_of_the_models_own(untrained_model, tmp_path):
    import json

    import torch
    from transformers import AutoModelForCausalLM

    from tasks.generate import Sampling, TransformersEngine
    from tasks.models import load_model, load_tokenizer

    settings = Config.model_validate({"model": {"name": str(untrained_model), "dtype": "float32"}})
    tokenizer = load_tokenizer(str(untrained_model), settings.model, settings.prompt)
    ids = tokenizer("What is 3 plus 4?")["input_ids"]

    def greedy(folder: Path) -> list[int]:
        model = load_model(str(folder), settings.model, True)
        [[completion]] = TransformersEngine(model, tokenizer, 1).generate([ids], Sampling(max_new_tokens=24))
        return completion.ids

    plain = greedy(untrained_model)
    assert len(set(plain)) < len(plain)  # it repeats itself, which a penalty would not let it do
    for number, ways in enumerate(
        ({"repetition_penalty": 5.0, "no_repeat_ngram_size": 1}, {"suppress_tokens": plain[:1], "num_beams": 3})
    ):
        folder = shutil.copytree(untrained_model, tmp_path / str(number))
        config = folder / "generation_config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | ways))
        by_itself = AutoModelForCausalLM.from_pretrained(folder).generate(
            torch.tensor([ids]), do_sample=False, max_new_tokens=24
        )
        assert by_itself[0, len(ids) :].tolist()[: len(plain)] != plain
        assert greedy(folder) == plain
