"""Training on a CPU with vLLM: what `tasks.cpu` works around, and that the weights really arrive.

One trainer with SmolLM2-135M and a colocated vLLM. Each test of the module uses it as the one before left it.
"""

import math
from pathlib import Path

import pandas as pd
import pytest
import torch
from adapters import randomise_adapter
from safetensors.torch import load_file

from tasks import cpu
from tasks.colocated import tell_vllm
from tasks.config import load
from tasks.models import engine_arguments, load_arguments, load_tokenizer, resolve_model
from tasks.prompts import build_prompt
from tasks.training_arguments import grpo_config, lora_config
from tasks.training_callbacks import Validation

pytestmark = [pytest.mark.slow, pytest.mark.alone]

# Nats, the mean over the tokens of a completion. Both compute in float32; what is left is the order of additions.
TOLERANCE = 0.01


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    from datasets import Dataset

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_RUNS", str(tmp_path_factory.mktemp("runs")))
        changes = {"training.max_steps": 1, "rewards.functions": [{"name": "int"}], "model.dtype": "float32"}
        config = load("deployments/demo.yaml", changes)
        cpu.adapt_trl(config)
        path = resolve_model(config.model)["path"]
        tell_vllm(**engine_arguments(path, config.model, use_cpu=True))
        arguments = grpo_config(config, output_dir=str(tmp_path_factory.mktemp("train")))
        arguments.model_init_kwargs = load_arguments(path, config.model, torch.float32)
        question = "Nora has 4 pens and buys 5 more. How many pens does she have now?"
        yield cpu.trainer_class(config)(
            model=path,
            reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": [build_prompt(question, config.prompt)] * 16}),
            processing_class=load_tokenizer(path, config.model, config.prompt),
            peft_config=lora_config(config),
        )


def log_probabilities(trainer) -> tuple[list[float], list[float]]:
    """Of the same sampled tokens, by vLLM as it generated them and by the trainer's model."""
    tokenizer, generation = trainer.processing_class, trainer.vllm_generation
    prompt = trainer.train_dataset[0]["prompt"]
    [ids], _, _ = trainer._tokenize_prompts([prompt])
    torch.manual_seed(0)
    _, [completion], [theirs], _ = generation.generate([ids], None, 1)
    tokens = torch.tensor([[*ids, *completion]])
    with torch.no_grad():
        ours, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, tokens, torch.ones_like(tokens), len(completion)
        )
    assert tokenizer.decode(completion)
    return [entry[0] for entry in theirs], ours[0].tolist()


def difference(trainer) -> float:
    theirs, ours = log_probabilities(trainer)
    return sum(abs(one - other) for one, other in zip(theirs, ours, strict=True)) / len(ours)


def test_vllm_computes_in_the_trainers_precision_whatever_the_checkpoint_is_in(trainer):
    assert trainer.vllm_generation.llm.llm_engine.vllm_config.model_config.dtype == torch.float32
    saved = load_file(Path(trainer.model.get_base_model().name_or_path) / "model.safetensors")
    assert {weight.dtype for weight in saved.values()} == {torch.bfloat16}


def test_a_fresh_adapter_changes_nothing_so_both_agree_from_the_start(trainer):
    assert difference(trainer) < TOLERANCE


def test_after_the_sync_vllm_has_the_randomised_adapter_and_not_before(trainer):
    randomise_adapter(trainer.model, seed=1)
    assert difference(trainer) > 10 * TOLERANCE  # the sync left out: this is what it would be
    trainer.vllm_generation.sync_weights()
    assert difference(trainer) < TOLERANCE


def test_a_second_sync_replaces_the_first(trainer):
    randomise_adapter(trainer.model, seed=2)
    assert difference(trainer) > 10 * TOLERANCE
    trainer.vllm_generation.sync_weights()
    assert difference(trainer) < TOLERANCE


def test_validation_is_greedy_however_training_samples(trainer, tmp_path):
    """Otherwise the best weights would be chosen by another protocol than they are judged by."""
    rows = pd.DataFrame({"id": ["one"], "question": ["Nora has 4 pens and buys 5 more. How many does she have now?"]})
    validation = Validation(trainer, load("deployments/demo.yaml"), None, rows, tmp_path)
    [plain] = validation._generate_with_vllm(validation.ids, 24)
    sampling = {
        "repetition_penalty": 1.5,
        "top_p": 0.5,
        "generation_kwargs": {"bad_words": ["."], "min_tokens": 20},
        "structured_outputs_regex": "[a-c]+",
    }
    kept = {name: getattr(trainer.vllm_generation, name) for name in sampling}
    vars(trainer.vllm_generation).update(sampling)
    assert validation._generate_with_vllm(validation.ids, 24) == [plain]
    assert {name: getattr(trainer.vllm_generation, name) for name in sampling} == sampling
    vars(trainer.vllm_generation).update(kept)


def test_prompts_that_begin_alike_share_what_vllm_has_computed(trainer):
    """And still need the smaller blocks: by vLLM's default these prompts would share nothing."""
    engine, generation = trainer.vllm_generation.llm.llm_engine, trainer.vllm_generation
    assert engine.vllm_config.cache_config.block_size == cpu.BLOCK_SIZE
    prompt = trainer.train_dataset[0]["prompt"]
    [ids], _, _ = trainer._tokenize_prompts([prompt])
    assert cpu.BLOCK_SIZE < len(ids) < 128
    generation.llm.reset_prefix_cache()
    outputs = generation.llm.generate([{"prompt_token_ids": ids[:-1] + [last]} for last in ids[-3:]], use_tqdm=False)
    assert [out.num_cached_tokens for out in outputs][1:] == [len(ids) // cpu.BLOCK_SIZE * cpu.BLOCK_SIZE] * 2


def test_the_shortcut_in_the_log_probabilities_changes_no_value(trainer, monkeypatch):
    import trl.trainer.utils

    tokens = torch.randint(5, 1000, (2, 40), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(tokens)

    def values() -> torch.Tensor:
        with torch.no_grad():
            return trainer._get_per_token_logps_and_entropies(trainer.model, tokens, mask, 12)[0]

    shortened = values()
    monkeypatch.setattr(trl.trainer.utils, "_use_triton", lambda device: False)
    assert torch.allclose(shortened, values(), atol=1e-3)
    assert all(math.isfinite(value) for value in shortened.flatten().tolist())


def trl(trainer):
    """TRL's own way to score, without what is shared."""
    return super(type(trainer), trainer)._get_per_token_logps_and_entropies


def scores(trainer, score, tokens, mask) -> tuple[int, torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """How many tokens the model was given, log-probabilities, entropies and gradients."""
    given = []
    counter = trainer.model.register_forward_pre_hook(
        lambda model, arguments, named: given.append(named["input_ids"].numel()), with_kwargs=True
    )
    trainer.model.zero_grad()
    logps, entropies, _ = score(trainer.model, tokens, mask, 12, compute_entropy=True)
    counter.remove()
    (logps * torch.linspace(-1, 1, len(tokens))[:, None]).sum().backward()
    gradients = [values.grad for values in trainer.model.parameters() if values.requires_grad]
    return sum(given), logps.detach(), entropies.detach(), [values.clone() for values in gradients]


def group(*prompts: list[int], each: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`each` completions of 5 to 12 tokens for every prompt, mixed and padded as TRL does."""
    generator = torch.Generator().manual_seed(0)
    longest = max(map(len, prompts))
    rows, masks = [], []
    for number in range(each * len(prompts)):
        prompt = prompts[number % len(prompts)]
        length = 5 + number % 8
        completion = torch.randint(5, 1000, (length,), generator=generator).tolist()
        left, right = longest - len(prompt), 12 - length
        rows.append([0] * left + prompt + completion + [0] * right)
        masks.append([0] * left + [1] * (len(prompt) + length) + [0] * right)
    return torch.tensor(rows), torch.tensor(masks)


def test_prompts_computed_once_give_the_same_scores_and_gradients(trainer):
    tokens, mask = group(list(range(5, 45)), list(range(50, 83)), each=4)
    one, *expected = scores(trainer, trl(trainer), tokens, mask)
    other, *found = scores(trainer, trainer._get_per_token_logps_and_entropies, tokens, mask)
    assert (one, other) == (8 * (40 + 12), 2 * 39 + 8 * (1 + 12))
    scored = mask[:, -12:].bool()
    for before, after in zip(expected[:2], found[:2], strict=True):
        assert torch.allclose(before[scored], after[scored], atol=1e-3)
    for before, after in zip(expected[2], found[2], strict=True):
        assert (before - after).norm() <= 1e-3 * before.norm()
    assert sum(values.norm() for values in expected[2]) > 1


def test_prompts_that_all_differ_are_scored_as_trl_does(trainer):
    tokens, mask = group(list(range(5, 45)), list(range(50, 83)), each=1)
    one, *expected = scores(trainer, trl(trainer), tokens, mask)
    other, *found = scores(trainer, trainer._get_per_token_logps_and_entropies, tokens, mask)
    assert one == other and torch.equal(expected[0], found[0])


def test_with_dropout_each_completion_has_its_own_prompt(trainer, monkeypatch):
    monkeypatch.setattr(trainer.model.config, "attention_dropout", 0.1)
    trainer.model.train()
    tokens, mask = group(list(range(5, 45)), list(range(50, 83)), each=4)
    given, *_ = scores(trainer, trainer._get_per_token_logps_and_entropies, tokens, mask)
    assert given == 8 * (40 + 12)


def test_trl_still_needs_the_adapter():
    """Fails when TRL passes `enforce_eager` or `block_size`, or when its own sync leaves `load_weights` alone."""
    import trl.generation.vllm_generation

    source = Path(trl.generation.vllm_generation.__file__).read_text(encoding="utf-8")
    assert "enforce_eager" not in source and "block_size" not in source
    assert "model_runner.model.load_weights([(name, param)])" in source
