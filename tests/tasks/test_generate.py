"""vLLM's offline engine on the CPU: what is generated is the adapter's, served beside the weights or merged into them.

Each engine has a process of its own, since vLLM gives back neither its memory nor its settings.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tasks.config import Config, load
from tasks.errors import UserError

pytestmark = [pytest.mark.slow, pytest.mark.alone]

QUESTION = "Nora has 4 pens and buys 5 more. How many pens does she have now?"
TOKENS = 24
# Nats, the mean over the tokens of a completion; in float32 what is left is the order of additions.
TOLERANCE = 0.01


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Config:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_RUNS", str(tmp_path_factory.mktemp("runs")))
        from tasks.models import resolve_model

        changes = {"model.dtype": "float32", "training.max_completion_length": TOKENS}
        config = load("deployments/demo.yaml", changes)
        return load("deployments/demo.yaml", changes | {"model.name": resolve_model(config.model)["path"]})


@pytest.fixture(scope="module")
def adapter(settings: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with random weights: a fresh one changes nothing, and would prove nothing."""
    from adapters import randomise_adapter
    from peft import get_peft_model

    from tasks.models import load_model
    from tasks.training_arguments import lora_config

    model = get_peft_model(load_model(settings.model.name, settings.model, True), lora_config(settings))
    randomise_adapter(model, seed=1)
    folder = tmp_path_factory.mktemp("adapter")
    model.save_pretrained(str(folder))
    return folder


def in_a_process(function: Any, *arguments: Any) -> Any:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def by_vllm(values: dict[str, Any], adapter: Path | None, serve: bool) -> dict[str, Any]:
    """The prompt's ids, a sampled continuation with its log-probabilities, and eight completions by the engine."""
    from vllm import SamplingParams

    from tasks.adapters import served_rank
    from tasks.generate import Sampling, VLLMEngine
    from tasks.models import load_tokenizer
    from tasks.prompts import build_prompt, encode

    config = Config.model_validate(values)
    tokenizer = load_tokenizer(config.model.name, config.model, config.prompt)
    [ids] = encode([build_prompt(QUESTION, config.prompt)], tokenizer, config.prompt)
    engine = VLLMEngine(
        config,
        config.model.name,
        adapter,
        tokenizer,
        len(ids) + TOKENS,
        on_cpu=True,
        served_rank=served_rank(adapter) if adapter and serve else None,
    )
    wanted = SamplingParams(temperature=1.0, max_tokens=TOKENS, logprobs=0, seed=0)
    [answer] = engine.llm.generate([{"prompt_token_ids": ids}], wanted, lora_request=engine.request, use_tqdm=False)
    [written] = answer.outputs
    chances = [found[token].logprob for token, found in zip(written.token_ids, written.logprobs, strict=True)]
    greedy, sampled = (
        engine.generate([ids, ids], how) for how in (Sampling(TOKENS), Sampling(TOKENS, n=4, temperature=1.0))
    )
    texts = [[[one.text for one in group] for group in groups] for groups in (greedy, sampled)]
    return {"ids": ids, "tokens": list(written.token_ids), "chances": chances, "greedy": texts[0], "sampled": texts[1]}


def by_transformers(values: dict[str, Any], adapter: Path | None, ids: list[int], tokens: list[int]) -> list[float]:
    """The log-probabilities of the same tokens."""
    import torch
    from peft import PeftModel

    from tasks.models import load_model

    config = Config.model_validate(values)
    model = load_model(config.model.name, config.model, True)
    if adapter:
        model = PeftModel.from_pretrained(model, str(adapter))
    with torch.no_grad():
        logits = model(torch.tensor([[*ids, *tokens]])).logits[0, len(ids) - 1 : -1]
    chances = torch.log_softmax(logits.float(), dim=-1)
    return chances.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()


def apart(ours: list[float], theirs: list[float]) -> float:
    return sum(abs(one - other) for one, other in zip(ours, theirs, strict=True)) / len(ours)


@pytest.mark.parametrize("serve", [True, False], ids=["served", "merged"])
def test_what_vllm_generates_is_the_adapters(serve: bool, settings: Config, adapter: Path):
    values = settings.dump()
    found = in_a_process(by_vllm, values, adapter, serve)
    with_adapter, without = (by_transformers(values, one, found["ids"], found["tokens"]) for one in (adapter, None))
    assert apart(found["chances"], with_adapter) < TOLERANCE
    assert apart(found["chances"], without) > 10 * TOLERANCE  # the adapter left out: this is what it would be
    assert [len(group) for group in found["greedy"]] == [1, 1] and found["greedy"][0] == found["greedy"][1]
    assert [len(group) for group in found["sampled"]] == [4, 4]
    assert len({text for group in found["sampled"] for text in group}) > 4


def generate_once(values: dict[str, Any], model: str) -> None:
    from tasks.generate import Sampling, make_engine
    from tasks.models import load_tokenizer

    config = Config.model_validate(values)
    tokenizer = load_tokenizer(model, config.model, config.prompt)
    make_engine(config, model, None, tokenizer, 64).generate([[5, 6, 7]], Sampling(4))


def test_a_model_that_vllm_has_no_code_for_here_is_refused_with_the_other_engine(
    settings: Config, untrained_model: Path
):
    """The tiny model's heads are smaller than those that vLLM's attention on a CPU is written for."""
    with pytest.raises(UserError, match=r"vLLM cannot serve .* \(.*head_dim=16.*set evaluation.engine=transformers"):
        in_a_process(generate_once, settings.dump(), str(untrained_model))
