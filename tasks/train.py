"""Stage: train with GRPO in a child process, and send its metrics to MLflow by step."""

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tasks.checkpoints import newest_whole_checkpoint
from tasks.config import Config
from tasks.cpu import prepare_environment, waiting
from tasks.devices import only, visible_devices
from tasks.errors import UserError
from tasks.evaluate import QUIET
from tasks.memory import Relief, smaller_step, smaller_training_share
from tasks.run import Run, write_whole
from tasks.supervise import run_job
from tasks.tracking import Tracker
from tasks.vllm_server import Server, generation_server


def train(
    run: Run,
    config: Config,
    tracker: Tracker,
    *,
    data: Path,
    model: dict[str, str],
    on_line: Callable[[str], None],
) -> dict[str, Any]:
    """Train `model` on `data/train.parquet`, choosing on `data/validation.parquet`; give where the weights are.

    A second attempt finds the checkpoints of the first, and so does one with smaller batches where memory ran out.
    Raises UserError or WorkerFailed as `run_job` does.
    """
    folder = run.folder / "train"
    folder.mkdir(exist_ok=True)
    metrics = folder / "metrics.jsonl"
    on_cpu = config.training.on_cpu
    gpus = visible_devices(config.training.processes)

    def work(settings: Config) -> dict[str, Any]:
        with generation_server(run, settings, model, on_line) as server:
            return train_with(settings, server)

    if metrics.exists() and not list(folder.glob("checkpoint-*")):
        on_line("no checkpoint had been saved yet, so training begins again with its first step")

    def train_with(settings: Config, server: Server) -> dict[str, Any]:
        def tick() -> None:
            server.check()
            tracker.forward(metrics)

        job = {
            "config": settings.dump(),
            "server": server.settings,
            "train": str(data / "train.parquet"),
            "validation": str(data / "validation.parquet"),
            "model": model["path"],
            "folder": str(folder),
            # One for all processes of the job, which begins anew where there is none.
            "checkpoint": str(checkpoint) if (checkpoint := newest_whole_checkpoint(folder, on_line)) else None,
        }
        return run_job(
            "tasks.train_worker",
            job,
            folder,
            log=run.log_file("train"),
            on_line=on_line,
            launcher=launcher(settings, folder),
            # Else a single process would spread the model over all GPUs, those of the vLLM server among them.
            # torchrun, too, kills processes that take long to end, after half a minute if it is not told otherwise.
            environment=QUIET
            | {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(math.ceil(settings.training.grace) + 10)}
            | (prepare_environment(settings) | waiting(1, on_line) if on_cpu else only(gpus)),
            time_limit=settings.training.time_limit,
            limit_setting="training.time_limit",
            on_tick=tick,
            grace=settings.training.grace,
        )

    ways, apart = (smaller_step, smaller_training_share), config.training.vllm_server is not None
    result = Relief(folder / "memory.json", ways, vllm_apart=apart).run(config, work, on_line)
    tracker.forward(metrics, final=True)
    return result


def launcher(config: Config, folder: Path) -> list[str]:
    """The command line of `accelerate launch` up to the worker's module.

    It always names a configuration, one in `folder` where there is none of the user's for this run: accelerate would
    else take the answers that were once given to `accelerate config`.
    """
    training = config.training
    chosen = training.accelerate_config
    if chosen is None:
        chosen = folder / "accelerate.yaml"
        write_whole(chosen, yaml.safe_dump(_plain_launch(training.processes)))
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(chosen)]
    if training.on_cpu:
        command += ["--cpu", "--num_cpu_threads_per_process", str(_threads())]
    return [*command, "--num_processes", str(training.processes), "--module"]


def _threads() -> int:
    """Threads of a training on this machine's cores: `OMP_NUM_THREADS`, else one for each core."""
    asked = os.environ.get("OMP_NUM_THREADS")
    if not asked:
        return os.cpu_count() or 1
    first = asked.split(",")[0].strip()  # OpenMP takes a list, by level of nesting
    if not first.isdecimal() or int(first) < 1:
        raise UserError(f"OMP_NUM_THREADS is {asked!r}, but must be a number of threads; set one or unset it")
    return int(first)


def _plain_launch(processes: int) -> dict[str, Any]:
    """Processes on this machine, each with the whole model; precision is `GRPOConfig`'s."""
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU" if processes > 1 else "NO",
        "num_machines": 1,
        "num_processes": processes,
        "main_process_port": 0,  # a free one, since another run may train on other GPUs
        "mixed_precision": "no",
    }
