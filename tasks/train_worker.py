"""Worker: GRPO with TRL. Started by `tasks.train` through `accelerate launch`, one process per GPU."""

import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pandas as pd
from datasets import Dataset
from peft import PeftModel
from torch.distributed.tensor import DTensor
from transformers import PrinterCallback, Trainer, TrainerState

from tasks.checkpoints import checkpoint_before
from tasks.colocated import tell_vllm
from tasks.config import Config
from tasks.cpu import adapt_trl, trainer_class
from tasks.dataset import TRL_COLUMNS
from tasks.engine import is_refusal
from tasks.errors import UserError, first_line
from tasks.memory import is_out_of_memory
from tasks.models import copy_processors, engine_arguments, forget_ways, load_arguments, load_tokenizer
from tasks.prompts import build_prompt, encode, fitting
from tasks.reward_models import load_reward_model
from tasks.scoring import Scorer
from tasks.sick_runs import broken
from tasks.training_arguments import grpo_config, lora_config, weights_dtype
from tasks.training_callbacks import DiskBudget, MetricsFile, PeakMemory, SaveBeforeEnd, SickRun, Validation
from tasks.worker import leave, run_worker

ASSERTION = "device-side assert"  # by a kernel of the GPU, of a value that it cannot compute with
# By `config.training.vllm`.
WRITERS = {
    None: "by transformers; training.use_vllm=true would take vLLM",
    "colocate": "by vLLM in the trainer's process",
    "server": "by vLLM's server",
}


def train(job: dict[str, Any]) -> dict[str, Any]:
    """Train the model of `job`, going on from its checkpoint, if there is one; the chosen weights go to `chosen/`."""
    config = Config.model_validate(job["config"])
    folder = Path(job["folder"])
    arguments = grpo_config(config, output_dir=str(folder), **job["server"])
    if arguments.use_cpu:
        adapt_trl(config)
    if config.training.vllm == "colocate":
        tell_vllm(**engine_arguments(job["model"], config.model, config.training.on_cpu))
    dtype, trusted = weights_dtype(config), config.model.trust_remote_code
    arguments.model_init_kwargs = load_arguments(job["model"], config.model, dtype)
    tokenizer = load_tokenizer(job["model"], config.model, config.prompt)
    scorer = Scorer.of(config)
    rows = pd.read_parquet(job["train"])
    rewards = [load_reward_model(one, dtype, trusted) if isinstance(one, str) else one for one in scorer.functions]
    dataset, too_long = prompt_dataset(rows, tokenizer, config)
    try:
        trainer = trainer_class(config)(
            model=job["model"],
            reward_funcs=rewards,
            args=arguments,
            train_dataset=dataset,
            processing_class=tokenizer,
            peft_config=lora_config(config),
        )
    except Exception as error:
        if not refuses(error, config):
            raise
        raise UserError(f"training cannot begin with these settings: {error}; correct the section training") from None
    check_saving(trainer)
    forget_ways(trainer.model)
    trainer.remove_callback(PrinterCallback)  # MetricsFile prints a line that fits on one
    validation = Validation(trainer, config, scorer, pd.read_parquet(job["validation"]), folder)
    trainer.add_callback(MetricsFile(folder / "metrics.jsonl"))
    trainer.add_callback(validation)
    sick, saver = SickRun(config.watch, arguments.fp16), SaveBeforeEnd(config.training.ends_cycle)
    trainer.add_callback(sick)
    trainer.add_callback(saver)
    trainer.add_callback(DiskBudget(folder))
    peak = PeakMemory(folder)
    trainer.add_callback(peak)
    print(f"completions are written {WRITERS[config.training.vllm]}", flush=True)
    started = time.monotonic()
    try:
        _train_on(trainer, job["checkpoint"])
    except Exception as error:
        if isinstance(error, UserError) or is_out_of_memory(error):
            raise
        if refused_by_transformers(error, config):
            traceback.print_exc()
            raise UserError(
                f"transformers cannot generate with training.generation_kwargs ({first_line(error, 300)}); correct them"
            ) from None
        if refused_by_vllm(error):
            raise UserError(
                f"vLLM cannot generate with these settings ({first_line(error, 300)}); correct the section training, "
                "above all generation_kwargs and vllm_structured_outputs_regex"
            ) from None
        if not isinstance(error, RuntimeError) or not diverged(trainer.model, error):
            raise
        step, reason = trainer.state.global_step, first_line(error, 300)
        finding = broken(reason, certain=ASSERTION not in reason)
        raise UserError(f"training was stopped at step {step}: {finding}") from None
    if saver.ended:
        print(f"asked to end: saved checkpoint-{trainer.state.global_step}", flush=True)
        leave(128 + signal.SIGTERM)
    if sick.diagnosis:
        raise UserError(sick.diagnosis)
    best = validation.choose()
    if config.training.lora is None and trainer.accelerator.is_main_process:
        copy_processors(job["model"], config.model, best)
    return {
        "adapter": str(best) if config.training.lora is not None else None,
        "model": None if config.training.lora is not None else str(best),
        "base": job["model"],
        "base_revision": config.model.revision,
        "steps": trainer.state.global_step,
        "step": validation.best["step"] if validation.best else trainer.state.global_step,
        "validation": validation.best,
        "seconds": round(time.monotonic() - started, 1),
        "prompts": len(dataset),
        "prompts_too_long": too_long,
        **peak.of_all_attempts(arguments),
    }


def refuses(error: Exception, config: Config) -> bool:
    """Whether `error` is how TRL, or what it calls, refuses a combination of settings as the trainer is made."""
    if is_out_of_memory(error):  # which vLLM says by a ValueError, where it finds less than its share
        return False
    if isinstance(error, RuntimeError) and not isinstance(error, NotImplementedError):
        return config.training.vllm == "colocate" and config.training.on_cpu  # vLLM's, of sizes that it has no code for
    return isinstance(error, ValueError | TypeError | AttributeError | ImportError | NotImplementedError)


def refused_by_vllm(error: Exception) -> bool:
    """Whether vLLM does not take a setting, in its own words, or since TRL hands it one that it does not know."""
    last = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    if isinstance(error, TypeError):
        return last.name == "vllm_generation.py"
    vllm = sys.modules.get("vllm")
    return is_refusal(error) and vllm is not None and last.is_relative_to(vllm.__path__[0])


def refused_by_transformers(error: Exception, config: Config) -> bool:
    """Whether transformers, as it generates completions, does not take one of `training.generation_kwargs`."""
    if config.training.vllm or not config.training.trl("generation_kwargs"):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, ValueError | TypeError) and any(frame.name == "_generate_single_turn" for frame in frames)


def check_saving(trainer: Any) -> None:
    """Raise UserError where the trained weights would be saved in shards, from which no model can be loaded."""
    state = trainer.accelerator.state
    lost = "saves weights in shards, so training would leave no model; set"
    if trainer.is_fsdp_enabled and "FULL_STATE_DICT" not in str(state.fsdp_plugin.state_dict_type):
        raise UserError(
            f"FSDP {lost} fsdp_state_dict_type: FULL_STATE_DICT in the file of training.accelerate_config, or "
            "state_dict_type in training.fsdp_config"
        )
    if trainer.is_deepspeed_enabled and not isinstance(trainer.model, PeftModel):
        zero = state.deepspeed_plugin.deepspeed_config.get("zero_optimization", {})
        if zero.get("stage") == 3 and not zero.get("stage3_gather_16bit_weights_on_model_save"):
            raise UserError(
                f"ZeRO-3 {lost} zero3_save_16bit_model: true in the file of training.accelerate_config, or "
                "stage3_gather_16bit_weights_on_model_save in DeepSpeed's own file"
            )


def _train_on(trainer: Trainer, checkpoint: str | None) -> None:
    """Train from the start or from a checkpoint to the last step, unless the checkpoint is that of the last step:
    transformers would do one more."""
    if checkpoint is None:
        trainer.train()
        return
    state = TrainerState.load_from_json(str(Path(checkpoint) / "trainer_state.json"))
    if state.global_step < state.max_steps:
        trainer.train(resume_from_checkpoint=checkpoint)
    elif trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:  # which divide the model only as training begins
        before = checkpoint_before(Path(checkpoint))
        where = before.name if before else "the first step"
        print(f"WARNING the model was not kept yet; training goes on from {where} for it", flush=True)
        trainer.train(resume_from_checkpoint=str(before) if before else None)
    else:
        trainer._load_from_checkpoint(checkpoint)
        trainer.state = state


def prompt_dataset(rows: pd.DataFrame, tokenizer: Any, config: Config) -> tuple[Dataset, int]:
    """The training prompts with all columns for the rewards, and how many were too long and left out."""
    prompts = [build_prompt(question, config.prompt) for question in rows["question"]]
    too_long = 0
    if config.prompt.max_tokens is not None:
        ids = encode(prompts, tokenizer, config.prompt)
        kept = fitting(ids, config.prompt)
        too_long = len(rows) - len(kept)
        assert kept, "the data gate lets no run begin without a prompt that is short enough"
        rows, prompts = rows.iloc[kept].reset_index(drop=True), [prompts[place] for place in kept]
        print(f"{len(rows)} prompts of {min(map(len, ids))} to {max(map(len, ids))} tokens, {too_long} too long")
    columns = [name for name in rows if name not in TRL_COLUMNS]
    return Dataset.from_dict({"prompt": prompts} | {str(name): rows[name].tolist() for name in columns}), too_long


def diverged(model: Any, error: RuntimeError) -> bool:
    """Whether training failed with `error` because trained weights are no numbers any more: sampling from those fails
    with an error of its own. On a GPU that is an assertion, after which it does not even let us look at the weights."""
    if ASSERTION in str(error):
        return True
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    # Of weights that FSDP has divided only our own share: the other processes may not be asking.
    own = [weight.to_local() if isinstance(weight, DTensor) else weight for weight in trained]
    return not all(bool(weight.isfinite().all()) for weight in own)


if __name__ == "__main__":
    run_worker(train)
