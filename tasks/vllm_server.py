"""Generation by a vLLM server on GPUs of its own (`training.vllm_server`), beside the processes that train.

It is started before the trainer, awaited until it is healthy, watched while it is needed, and ended with all that it
started. The GPUs are divided: the first `training.processes` train, the next ones generate.
"""

import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tasks.config import Config
from tasks.cpu import prepare_environment
from tasks.devices import only, visible_devices
from tasks.errors import OutOfMemory, UserError
from tasks.evaluate import QUIET
from tasks.run import Run
from tasks.supervise import Worker

HOST = "127.0.0.1"
REASON = 1.0  # seconds for what it says next: why
# By the server's engine, which goes on. The trainer, if it was to send weights, would wait for it for ever.
_REFUSAL = re.compile(r"Invocation of \w+ method failed")


@dataclass(frozen=True)
class Server:
    """What the trainer is told, and how to see whether the server is still there."""

    settings: dict[str, Any]
    """Fields of `GRPOConfig` on top of the configuration's own."""
    check: Callable[[], None]
    """Raises WorkerFailed or OutOfMemory if the server has ended, or failed in what the trainer asked for."""


NONE = Server({}, lambda: None)


@contextmanager
def generation_server(
    run: Run, config: Config, model: dict[str, str], on_line: Callable[[str], None]
) -> Iterator[Server]:
    """A server for as long as training lasts, if the configuration asks for one.

    Raises UserError if it is not healthy within `start_seconds`, WorkerFailed or OutOfMemory if it ends by itself.
    """
    wanted = config.training.vllm_server
    if wanted is None:
        yield NONE
        return
    on_cpu = config.training.on_cpu
    gpus = visible_devices(wanted.gpus, after=config.training.processes)
    port, group_port = _free_port(), _free_port()
    arguments = {
        "model": model["path"],
        "revision": None if os.path.isdir(model["path"]) else config.model.revision,
        "host": HOST,
        "port": port,
        "tensor_parallel_size": wanted.gpus,
        "gpu_memory_utilization": wanted.memory,
        "dtype": model["dtype"],
        "max_model_len": config.training.trl("vllm_max_model_length"),
        "vllm_model_impl": config.training.trl("vllm_model_impl"),
        "enforce_eager": on_cpu,
        "trust_remote_code": config.model.trust_remote_code,
        "log_level": "warning",
    }
    refusals: list[str] = []

    def heard(line: str) -> None:
        if _REFUSAL.search(line):
            refusals.append(line.strip())
        on_line(line)

    worker = Worker(
        "tasks.vllm_server_worker",
        run.folder / "vllm_server",
        log=run.log_file("vllm_server"),
        on_line=heard,
        environment=QUIET | (prepare_environment(config) if on_cpu else only(gpus)),
    )

    def check() -> None:
        try:
            worker.check()
            if refusals:
                worker.hear(REASON)
                raise worker.failure(f"could not do what the trainer asked for ({refusals[0]})")
        except OutOfMemory as error:
            error.for_vllm = True  # smaller steps of the trainer's would not help
            raise

    try:
        worker.give({"on_cpu": on_cpu, "arguments": arguments})
        _await_health(check, port, wanted.start_seconds, on_line)
        told = {
            "vllm_mode": "server",
            "vllm_server_host": HOST,
            "vllm_server_port": port,
            "vllm_group_port": group_port,
        }
        yield Server(told, check)
    finally:
        worker.end()


def healthy(address: str) -> bool:
    """Whether a vLLM server answers there."""
    try:
        return httpx.get(f"{address}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def _await_health(check: Callable[[], None], port: int, seconds: float, on_line: Callable[[str], None]) -> None:
    started = time.monotonic()
    while not healthy(f"http://{HOST}:{port}"):
        check()
        if time.monotonic() - started > seconds:
            raise UserError(
                f"the vLLM server was not ready after training.vllm_server.start_seconds ({seconds:g}); raise it, or "
                "see its log in the run folder, logs/vllm_server.log"
            )
        time.sleep(1)
    on_line(f"the vLLM server is ready after {time.monotonic() - started:.0f} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
