"""Stage: train with GRPO in a child process, and send its metrics to MLflow by step."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.config import Config
from tasks.cpu import prepare_environment
from tasks.evaluate import QUIET
from tasks.memory import Relief, smaller_step, smaller_training_share
from tasks.run import Run
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
    on_cpu = bool(config.training.grpo.get("use_cpu"))

    def work(settings: Config) -> dict[str, Any]:
        with generation_server(run, settings, model, on_line) as server:
            return train_with(settings, server)

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
        }
        return run_job(
            "tasks.train_worker",
            job,
            folder,
            log=run.log_file("train"),
            on_line=on_line,
            launcher=launcher(settings),
            environment=QUIET | (prepare_environment(settings) if on_cpu else {}) | server.environment,
            time_limit=settings.training.time_limit,
            limit_setting="training.time_limit",
            on_tick=tick,
            grace=settings.training.grace,
        )

    result = Relief(folder / "memory.json", (smaller_step, smaller_training_share)).run(config, work, on_line)
    tracker.forward(metrics, final=True)
    return result


def launcher(config: Config) -> list[str]:
    """The command line of `accelerate launch` up to the worker's module."""
    training = config.training
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    if training.accelerate_config:
        command += ["--config_file", str(training.accelerate_config)]
    else:
        command += ["--num_machines", "1", "--dynamo_backend", "no", "--mixed_precision", "no"]
        if training.processes > 1:
            command += ["--multi_gpu"]
    if training.grpo.get("use_cpu"):
        threads = os.environ.get("OMP_NUM_THREADS") or max(1, (os.cpu_count() or 1) // training.processes)
        command += ["--cpu", "--num_cpu_threads_per_process", str(threads)]
    return [*command, "--num_processes", str(training.processes), "--module"]
