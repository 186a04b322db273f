"""A language model small enough to be trained in a test: it can add two digits, but would rather not.

It is pre-trained on answers of which SHARE_RIGHT are right and the others one too high, all in the format that the
rewards ask for. Greedily it therefore answers wrongly, sampled it is right now and then, and all that GRPO has to find
is which of the two habits pays.
"""

import json
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SHARE_RIGHT = 0.3

NAMES = ["Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gwen", "Hal", "Ida", "Jon", "Kim", "Lou"]
THINGS = ["pens", "cups", "keys", "hats", "figs", "nuts", "eggs", "buns", "toys", "bags"]
QUESTIONS = (
    "{name} has {a} {things} and gets {b} more. How many {things} are there now?",
    "{name} finds {a} {things} and then {b} more. How many {things} is that?",
    "There are {a} {things} in a box. {name} adds {b}. How many {things} are in it?",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_problems(train: int, test: int, seed: int = 0) -> dict[str, list[dict[str, str]]]:
    """Distinct sums of two digits in GSM8K's form, under "train" and "test"; the same seed gives the same ones."""
    draw = random.Random(seed)
    problems: dict[str, dict[str, str]] = {}
    while len(problems) < train + test:
        question, a, b = _question(draw)
        problems[question] = {"question": question, "answer": f"{a} + {b} = {a + b}\n#### {a + b}"}
    rows = list(problems.values())
    return {"train": rows[:train], "test": rows[train:]}


def write_problems(folder: Path, train: int = 500, test: int = 250, seed: int = 0) -> Path:
    """The problems as train.jsonl and test.jsonl in `folder`, which it gives."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in make_problems(train, test, seed).items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def build(folder: Path, steps: int = 300, seed: int = 0) -> Path:
    """Pre-train the model and save it, with its tokenizer, as an ordinary model folder.

    A few steps less than the default, and it cannot add; with none it writes noise, which is enough where only the way
    through the pipeline matters.
    """
    draw = random.Random(seed)
    tokenizer = _tokenizer(draw)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=4,
                max_position_embeddings=1024,
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )
    _pretrain(model, tokenizer, draw, steps)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _question(draw: random.Random) -> tuple[str, int, int]:
    a, b = draw.randint(1, 9), draw.randint(1, 9)
    text = draw.choice(QUESTIONS).format(name=draw.choice(NAMES), things=draw.choice(THINGS), a=a, b=b)
    return text, a, b


def _completion(a: int, b: int, right: bool) -> str:
    result = a + b if right else a + b + 1
    return f"<reasoning>\n{a} + {b} = {result}\n</reasoning>\n<answer>\n{result}\n</answer>"


def _tokenizer(draw: random.Random) -> PreTrainedTokenizerFast:
    """Bytes, merged to whole words and numbers as far as the problems have them: any text can be encoded."""
    corpus = []
    for _ in range(3000):
        question, a, b = _question(draw)
        corpus += [question, _completion(a, b, draw.random() < 0.5)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|end|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        show_progress=False,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(corpus, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>")
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _pretrain(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, draw: random.Random, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=steps + 1)
    model.train()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more would not be faster for matrices so small, and add up in another order
    for _ in range(steps):
        texts, prompts = [], []
        for _ in range(64):
            question, a, b = _question(draw)
            prompts.append(f"<|user|>{question}<|end|><|assistant|>")
            texts.append(f"{prompts[-1]}{_completion(a, b, draw.random() < SHARE_RIGHT)}<|end|>")
        batch = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        for row, prompt in zip(labels, tokenizer(prompts)["input_ids"], strict=True):
            row[: len(prompt)] = -100
        loss = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    torch.set_num_threads(threads)
    model.eval()
