"""Greedy and sampled generation for prompts given as token ids, by vLLM or by transformers.

Both engines take the same ids and give `Completion`s in the order of the prompts.
"""

import functools
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from tqdm import tqdm

from tasks import cpu
from tasks.adapters import served_rank, takes_adapters
from tasks.config import Config
from tasks.engine import choose_engine, is_refusal
from tasks.errors import UserError, first_line
from tasks.memory import is_out_of_memory
from tasks.merging import with_adapter, write_merged
from tasks.models import engine_arguments, load_architecture, load_model, pick_dtype

# A line every few seconds is what a log wants; the supervisor turns each redrawing into one.
progress_bar = functools.partial(tqdm, disable=False, mininterval=5, ncols=100, ascii=True, file=sys.stdout)


@dataclass(frozen=True)
class Completion:
    """What one prompt was continued with. `finished` is false where the token limit cut it off."""

    text: str
    ids: list[int]
    """The tokens as generated, with the end of the turn where it was reached."""
    finished: bool

    @property
    def tokens(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Sampling:
    """How prompts are continued: greedily at temperature 0, else by `n` completions of each."""

    max_new_tokens: int
    n: int = 1
    temperature: float = 0.0
    top_p: float = 1.0


class Engine(Protocol):
    """Something that continues prompts."""

    name: str

    def generate(self, prompts: Sequence[list[int]], sampling: Sampling) -> list[list[Completion]]:
        """`sampling.n` completions of each prompt."""
        ...


def runs_on_cpu(config: Config) -> bool:
    """Whether this machine has no GPU, or `training.use_cpu` leaves it alone."""
    return config.training.on_cpu or not torch.cuda.is_available()


class VLLMEngine:
    """vLLM's offline engine, with a LoRA adapter served beside the base weights or merged into them first."""

    def __init__(
        self,
        config: Config,
        path: str,
        adapter: Path | None,
        tokenizer: Any,
        max_tokens: int,
        *,
        on_cpu: bool,
        served_rank: int | None,
    ) -> None:
        """`max_tokens` is the longest prompt and completion together; with a `served_rank` the adapter is served."""
        if on_cpu:
            os.environ.update(cpu.prepare_environment(config))
        from vllm import LLM
        from vllm.lora.request import LoRARequest

        self.name = "vllm"
        self.tokenizer, self.on_cpu = tokenizer, on_cpu
        merged = adapter if served_rank is None else None
        self.request = LoRARequest("adapter", 1, str(adapter)) if served_rank else None
        with _merged(config, path, merged, tokenizer, on_cpu) if merged else nullcontext(path) as weights:
            arguments = vllm_arguments(config, weights, max_tokens, on_cpu=on_cpu, served_rank=served_rank)
            with self._refusals():
                self.llm = LLM(**arguments)

    def generate(self, prompts: Sequence[list[int]], sampling: Sampling) -> list[list[Completion]]:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        params = SamplingParams(
            n=sampling.n,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_new_tokens,
            detokenize=False,
        )
        with self._refusals():
            outputs = self.llm.generate(
                [TokensPrompt(prompt_token_ids=ids) for ids in prompts],
                params,
                lora_request=self.request,
                use_tqdm=progress_bar,
            )
        return [[self._completion(one) for one in output.outputs] for output in outputs]

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """What vLLM says that it cannot do as a UserError, since it would say so again."""
        try:
            yield
        except Exception as error:
            # Of an engine in a process of its own, as on a GPU, a RuntimeError says only that it has failed.
            refused = is_refusal(error) or (isinstance(error, RuntimeError) and self.on_cpu)
            if is_out_of_memory(error) or not refused:
                raise
            raise UserError(
                f"vLLM cannot serve this model as it should ({first_line(error, 300)}); correct the model, "
                "evaluation.max_new_tokens or evaluation.vllm_memory, or set evaluation.engine=transformers"
            ) from None

    def _completion(self, output: Any) -> Completion:
        text = self.tokenizer.decode(output.token_ids, skip_special_tokens=True)
        return Completion(text, list(output.token_ids), output.finish_reason == "stop")


def vllm_arguments(
    config: Config, weights: str, max_tokens: int, *, on_cpu: bool, served_rank: int | None
) -> dict[str, Any]:
    """Keyword arguments of `vllm.LLM` for an evaluation of the model at `weights`."""
    arguments: dict[str, Any] = engine_arguments(weights, config.model, on_cpu) | {
        "model": weights,
        "trust_remote_code": config.model.trust_remote_code,
        "load_format": "safetensors",
        "max_model_len": max_tokens,
        "seed": 0,
    }
    if on_cpu:  # where the memory is RAM, of which vllm_kv_cache_gib is the share that counts
        arguments |= {"gpu_memory_utilization": 0.5, "enforce_eager": True, "block_size": cpu.BLOCK_SIZE}
    else:
        arguments["gpu_memory_utilization"] = config.evaluation.vllm_memory
    if served_rank is not None:
        arguments |= {"enable_lora": True, "max_lora_rank": served_rank}
    return arguments


class TransformersEngine:
    """transformers' `generate` over batches of prompts sorted by length, so that little is padded.

    The model is one that has forgotten its own ways to generate (`tasks.models.forget_ways`).
    """

    def __init__(self, model: Any, tokenizer: Any, batch_size: int) -> None:
        self.name = "transformers"
        self.model, self.tokenizer, self.batch_size = model, tokenizer, batch_size
        ends = model.generation_config.eos_token_id
        self.ends = sorted({tokenizer.eos_token_id, *([ends] if isinstance(ends, int) else ends or [])})

    @torch.no_grad()  # not in inference mode: what FSDP gathers for the first time here, training goes on with
    def generate(self, prompts: Sequence[list[int]], sampling: Sampling) -> list[list[Completion]]:
        how: dict[str, Any] = {"do_sample": False}
        if sampling.temperature > 0:
            how = {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
            torch.manual_seed(0)
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        completions: dict[int, list[Completion]] = {}
        bar = progress_bar(total=len(prompts), desc="generating")
        at_a_time = max(1, self.batch_size // sampling.n)
        for start in range(0, len(order), at_a_time):
            batch = order[start : start + at_a_time]
            padded = self.tokenizer.pad({"input_ids": [prompts[i] for i in batch]}, return_tensors="pt")
            output = self.model.generate(
                **padded.to(self.model.device),
                **how,
                max_new_tokens=sampling.max_new_tokens,
                num_return_sequences=sampling.n,
                pad_token_id=self.tokenizer.pad_token_id,
                eos_token_id=self.ends,
            )[:, padded["input_ids"].shape[1] :]
            written = [self._completion(row) for row in output.tolist()]
            for place, index in enumerate(batch):
                completions[index] = written[place * sampling.n : (place + 1) * sampling.n]
            bar.update(len(batch))
        bar.close()
        return [completions[index] for index in range(len(prompts))]

    def _completion(self, row: list[int]) -> Completion:
        end = next((place for place, token in enumerate(row) if token in self.ends), None)
        ids = row if end is None else row[: end + 1]
        return Completion(self.tokenizer.decode(ids, skip_special_tokens=True), ids, end is not None)


def make_engine(config: Config, path: str, adapter: Path | None, tokenizer: Any, max_tokens: int) -> Engine:
    """The engine that `evaluation.engine` asks for, with the model loaded."""
    name, why = choose_engine(config)
    print(f"generating with {name}: {why}", flush=True)
    on_cpu = runs_on_cpu(config)
    if name == "vllm":
        # On a CPU vLLM's LoRA layers are many times slower than plain ones.
        serve = adapter and not on_cpu and takes_adapters(load_architecture(path, config.model))
        rank = served_rank(adapter) if adapter and serve else None
        return VLLMEngine(config, path, adapter, tokenizer, max_tokens, on_cpu=on_cpu, served_rank=rank)
    model = load_model(path, config.model, on_cpu)
    if adapter:
        model = with_adapter(model, adapter)
    return TransformersEngine(model.to("cpu" if on_cpu else "cuda").eval(), tokenizer, config.evaluation.batch_size)


@contextmanager
def _merged(config: Config, path: str, adapter: Path, tokenizer: Any, on_cpu: bool) -> Iterator[str]:
    """A temporary folder with the merged weights, for as long as an engine loads them."""
    with tempfile.TemporaryDirectory(prefix="merged-", dir=adapter.parent) as name:
        folder = Path(name) / "model"
        write_merged(path, config.model, adapter, tokenizer, folder, pick_dtype(config.model, on_cpu))
        yield str(folder)
