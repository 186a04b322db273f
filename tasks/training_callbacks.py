"""What is watched while TRL trains: the metrics by step, and greedy answers to validation questions."""

import math
import resource
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from accelerate.utils import broadcast_object_list, gather_object
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint
from trl.models import unwrap_model_for_generation

from tasks import metrics as metrics_file
from tasks.config import Config, WatchSettings
from tasks.errors import UserError
from tasks.generate import Completion, Sampling, TransformersEngine
from tasks.prompts import build_prompt, encode, fitting
from tasks.report import sparkline
from tasks.run import read_json, write_json
from tasks.scoring import Scorer
from tasks.sick_runs import Watch
from tasks.summary import scored, summary
from tasks.torn import first_torn


class MetricsFile(TrainerCallback):
    """One line of JSON per logged step, for the supervisor to send to MLflow, and one line for the eye.

    The trainer itself knows no MLflow, so a server that is away cannot disturb it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rewards: deque[float] = deque(maxlen=40)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if not state.is_world_process_zero or not logs:
            return
        metrics = {f"train/{name.removeprefix('train_')}": value for name, value in logs.items() if _is_number(value)}
        metrics_file.append(self.path, state.global_step, metrics)
        if "reward" in logs:
            self.rewards.append(logs["reward"])
            print(
                f"step {state.global_step}/{state.max_steps}  reward {logs['reward']:.3f} "
                f"±{logs.get('reward_std', math.nan):.2f}  loss {logs.get('loss', math.nan):.4f}  "
                f"{logs.get('completions/mean_length', math.nan):.0f} tokens  "
                f"{logs.get('step_time', math.nan):.1f} s  {sparkline(list(self.rewards))}",
                flush=True,
            )


class SaveBeforeEnd(TrainerCallback):
    """When the process is asked to end (SIGTERM), saves a checkpoint at the end of the step and stops.

    Only between two generation cycles, since TRL does not save what it has generated: so the run that goes on from it
    does what the uninterrupted one would have done. transformers' own `enable_jit_checkpoint` saves within a step.
    """

    def __init__(self, ends_cycle: Callable[[int], bool]) -> None:
        self.ends_cycle = ends_cycle
        self.asked = self.ended = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        def ask(*_: Any) -> None:
            self.asked = True

        signal.signal(signal.SIGTERM, ask)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # Every process must stop at the same step, though the signal may reach one of them later.
        asked = any(gather_object([self.asked])) if args.world_size > 1 else self.asked
        if asked and self.ends_cycle(state.global_step):
            control.should_save = control.should_training_stop = self.ended = True


class DiskBudget(TrainerCallback):
    """Stops before a checkpoint that the disk could not hold: a full disk would tear it, and whatever else is written.

    The newest one says how large the next will be.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        newest = get_last_checkpoint(str(self.folder)) if control.should_save else None
        if newest is None:
            return
        size = sum(path.stat().st_size for path in Path(newest).rglob("*") if path.is_file())
        free = shutil.disk_usage(self.folder).free
        if free < 2 * size:
            raise UserError(
                f"training was stopped at step {state.global_step}: only {free / 2**30:.2f} GiB are free on the disk "
                f"of {self.folder}, and a checkpoint takes {size / 2**30:.2f} GiB; free some and go on with python -m "
                f"flows.resume, or lower training.save_total_limit ({args.save_total_limit})"
            )


class PeakMemory(TrainerCallback):
    """The most memory that training has taken in all its attempts, as far as their last checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "peak.json"

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self.of_all_attempts(args)

    def of_all_attempts(self, arguments: Any) -> dict[str, float | None]:
        """`peak_ram_gib` and `peak_gpu_gib` of this process, and of those before it in its place."""
        before = read_json(self.path) if self.path.exists() and not first_torn([self.path]) else {}
        now = {
            "peak_ram_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            "peak_gpu_gib": _peak_gpu_gib(arguments),
        }
        most = {name: None if size is None else max(size, before.get(name) or 0) for name, size in now.items()}
        write_json(self.path, most)
        return most


def _peak_gpu_gib(arguments: Any) -> float | None:
    """The most that torch had allocated on this process's GPU, vLLM's share with it; 0 on a CPU, and None with vLLM's
    sleep mode, whose allocator counts as allocated what it has given back."""
    if arguments.use_cpu:
        return 0.0
    asleep = arguments.use_vllm and arguments.vllm_mode == "colocate" and arguments.vllm_enable_sleep_mode
    return None if asleep else torch.cuda.max_memory_allocated() / 2**30


class SickRun(TrainerCallback):
    """Warns of a run that goes wrong, and stops one that is hopeless; `diagnosis` then says why."""

    def __init__(self, settings: WatchSettings, scaled_gradients: bool) -> None:
        self.settings = settings
        self.watch = Watch(settings, scaled_gradients)
        self.diagnosis: str | None = None

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        numbers = {name: float(value) for name, value in (logs or {}).items() if _is_number(value)}
        if "reward" not in numbers:  # the summary at the end, or an evaluation
            return
        for finding in self.watch.see(state.global_step, numbers):
            if finding.hopeless and self.settings.stop:
                self.diagnosis = f"training was stopped at step {state.global_step}: {finding}"
                control.should_training_stop = True
            elif state.is_world_process_zero:
                print(f"WARNING {finding}", flush=True)


# What TRL's generation by vLLM is told while it answers validation questions, as an evaluation tells vLLM.
GREEDY: dict[str, Any] = {
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": None,
    "repetition_penalty": 1.0,
    "generation_kwargs": {},
    "structured_outputs_regex": None,
}


class Validation(TrainerCallback):
    """Greedy answers to held-out questions every so many steps; the best weights so far are kept in `chosen/`."""

    def __init__(self, trainer: Any, config: Config, scorer: Scorer, rows: pd.DataFrame, folder: Path) -> None:
        self.trainer, self.config, self.scorer, self.folder = trainer, config, scorer, folder
        prompts = [build_prompt(question, config.prompt) for question in rows["question"]]
        ids = encode(prompts, trainer.processing_class, config.prompt)
        kept = fitting(ids, config.prompt)[: config.evaluation.validation_limit]
        self.rows = rows.iloc[kept].reset_index(drop=True)
        self.prompts, self.ids = [prompts[place] for place in kept], [ids[place] for place in kept]
        self.best = _chosen(folder)
        self.last = -1

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.config.evaluation.every_steps and state.global_step == 0:
            self._evaluate(state.global_step, candidate=False)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        every = self.config.evaluation.every_steps
        if every and state.global_step % every == 0:
            self._evaluate(state.global_step, candidate=True)

    def choose(self) -> Path:
        """The folder of the chosen weights: the best by validation, or the last where nothing was compared."""
        step = self.trainer.state.global_step
        if self.config.evaluation.every_steps and self.last != step:
            self._evaluate(step, candidate=True)
        chosen = self.folder / "chosen"
        if self.best is None:
            self.trainer.save_model(str(chosen))
        else:
            print(f"chosen: step {self.best['step']} of {step}, by validation", flush=True)
        return chosen

    def _evaluate(self, step: int, candidate: bool) -> None:
        started = time.monotonic()
        completions = self._generate()
        result: dict[str, Any] = {}
        if self.trainer.accelerator.is_main_process:
            result = summary(self.scorer.score(self.rows, self.prompts, completions, self.trainer.state))
            metrics = {f"validation/{name}": value for name, value in result.items() if name != "n"}
            metrics_file.append(self.folder / "metrics.jsonl", step, metrics)
            shown = "  ".join(f"{name} {result[name]:.3f}" for name in ("accuracy", "reward") if name in result)
            print(f"validation at step {step}: {shown}  ({time.monotonic() - started:.1f} s)", flush=True)
        self.last = step
        [result] = broadcast_object_list([result])
        # On equal scores the earlier weights stay: they are closer to the start model.
        if candidate and (self.best is None or scored(result) > scored(self.best)):
            self.best = {"step": step} | result
            self.trainer.save_model(str(self.folder / "chosen"))
            if self.trainer.accelerator.is_main_process:
                write_json(self.folder / "chosen.json", self.best)

    def _generate(self) -> list[Completion]:
        """Greedy completions of all validation prompts, made by whatever makes the training completions."""
        trainer, tokens = self.trainer, self.config.max_new_tokens
        was_training = trainer.model.training
        with trainer.accelerator.split_between_processes(list(range(len(self.ids))), apply_padding=True) as places:
            ids = [self.ids[place] for place in places]
            if trainer.use_vllm:
                mine = self._generate_with_vllm(ids, tokens)
            else:
                arguments = trainer.args
                with (  # as TRL does
                    unwrap_model_for_generation(
                        trainer.model_wrapped,
                        trainer.accelerator,
                        gather_deepspeed3_params=arguments.ds3_gather_for_generation,
                        gradient_checkpointing_kwargs=arguments.gradient_checkpointing_kwargs,
                    ) as model,
                    trainer._dist.summon_full_params(trainer.model_wrapped, recurse=False),
                ):
                    model.eval()
                    engine = TransformersEngine(model, trainer.processing_class, self.config.evaluation.batch_size)
                    mine = [one for [one] in engine.generate(ids, Sampling(tokens))]
        trainer.model.train(was_training)
        # By its place: the padding, which repeats the last one, lies between the processes' shares.
        found = dict(gather_object(list(zip(places, mine, strict=True))))
        return [found[place] for place in range(len(self.ids))]

    def _generate_with_vllm(self, ids: list[list[int]], tokens: int) -> list[Completion]:
        trainer, generation = self.trainer, self.trainer.vllm_generation
        # TRL pushes weights only when the global step has changed since it last did; do so now, and tell it.
        generation.sync_weights()
        trainer._last_loaded_step = trainer.state.global_step
        meant = GREEDY | {"max_completion_length": tokens}
        kept = {name: getattr(generation, name) for name in meant}
        vars(generation).update(meant)
        try:
            _, completions, _, _ = generation.generate(prompts=ids, images=None, num_generations=1)
        finally:
            vars(generation).update(kept)
        texts = trainer.processing_class.batch_decode(completions, skip_special_tokens=True)
        return [
            Completion(text, list(row), bool(row) and row[-1] in trainer.eos_token_ids)
            for text, row in zip(texts, completions, strict=True)
        ]


def _chosen(folder: Path) -> dict[str, Any] | None:
    """What an earlier attempt chose and its scores, if it did so, and both are whole."""
    record = folder / "chosen.json"
    if not record.exists():
        return None
    if torn := first_torn([record, *(folder / "chosen").glob("*")]):
        print(f"WARNING the weights chosen so far are left out, since {torn.name} cannot be read", flush=True)
        return None
    best: dict[str, Any] = read_json(record)
    return best


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
