"""Prompts: the same token ids in training, in its validation, in the baseline and in the evaluation."""

import pandas as pd
import pytest

from tasks.config import PromptSettings, SampleSettings, load
from tasks.models import load_tokenizer, resolve_model
from tasks.prompts import build_prompt, encode, template_arguments
from tasks.samples import make_problems


@pytest.fixture(scope="module")
def smol(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_RUNS", str(tmp_path_factory.mktemp("runs")))
        config = load("deployments/demo.yaml")
        path = resolve_model(config.model)["path"]
        yield config, load_tokenizer(path, config.model, config.prompt)


def test_the_opening_follows_the_generation_prompt_and_nothing_closes_the_turn(smol):
    config, tokenizer = smol
    [ids] = encode([build_prompt("How many are 2 and 3?", config.prompt)], tokenizer, config.prompt)
    text = tokenizer.decode(ids)
    assert text.endswith("<|im_start|>assistant\n<reasoning>\n")
    assert text.count("<|im_start|>assistant") == 2  # the example's turn and the open one


def test_the_template_without_the_argument_renders_as_it_did(smol):
    _, tokenizer = smol
    plain = tokenizer.apply_chat_template(
        [{"role": "user", "content": "x"}], add_generation_prompt=True, tokenize=False
    )
    assert plain.endswith("<|im_start|>assistant\n")


def test_trl_sees_the_token_ids_that_the_evaluation_sees(smol, tmp_path):
    """TRL's own tokenisation, with the very arguments that the trainer is given."""
    from trl import GRPOTrainer

    from tasks.train_worker import prompt_dataset
    from tasks.training_arguments import grpo_config

    config, tokenizer = smol
    problems = make_problems(SampleSettings(train=40, test=5))["train"]
    rows = pd.DataFrame({"id": range(40), "question": [one["question"] for one in problems], "answer": "1"})
    dataset, _ = prompt_dataset(rows, tokenizer, config)
    arguments = grpo_config(config, output_dir=str(tmp_path))

    class Trainer:
        _is_vlm = False
        environment_factories = None
        tools: list[object] = []
        chat_template = None
        processing_class = tokenizer
        chat_template_kwargs = arguments.chat_template_kwargs

    theirs, _, _ = GRPOTrainer._tokenize_prompts(Trainer(), list(dataset["prompt"]))
    assert theirs == encode(
        [build_prompt(question, config.prompt) for question in rows["question"]], tokenizer, config.prompt
    )
    assert template_arguments(config.prompt) == {"opening": "<reasoning>\n"}


def test_a_plain_prompt_is_the_text_alone():
    assert build_prompt("Sum up: x", PromptSettings(conversational=False)) == "Sum up: x"


def test_examples_are_earlier_turns_in_the_same_template():
    settings = PromptSettings(
        system="S", template="Q: {question}", examples=[{"question": "1+1?", "answer": "2"}], opening="<"
    )
    assert build_prompt("2+2?", settings) == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Q: 1+1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "Q: 2+2?"},
    ]


def test_prompts_over_the_limit_are_left_out_and_counted(smol):
    from tasks.train_worker import prompt_dataset

    config, tokenizer = smol
    rows = pd.DataFrame({"id": [1, 2], "question": ["How many?", "How many? " * 50], "answer": ["1", "2"]})
    limited = config.model_copy(update={"prompt": config.prompt.model_copy(update={"max_tokens": 120})})
    dataset, dropped = prompt_dataset(rows, tokenizer, limited)
    assert (list(dataset["id"]), dropped) == ([1], 1)
