"""What training will need, before its first step: memory, and the time of a step.

Counted from the configuration, the model's own and the lengths of the prompts, with the usual arithmetic of
transformers (what a backward pass keeps of each layer: Korthikanti et al. 2022, arXiv 2205.05198, without dropout and
with attention that stores no scores). Both are logged beside what was measured, so that they can be judged.
"""

from dataclasses import dataclass

from tasks.config import Config
from tasks.errors import UserError

FRAMEWORK_GIB = 1.2  # torch, transformers and TRL themselves; on a GPU the CUDA context
EFFICIENCY = 0.4  # of the speed of one large product, that a whole model reaches
FITS = 0.95  # of what is there, that an estimate may reach

GIB = 2**30


@dataclass(frozen=True)
class Architecture:
    """The sizes of a decoder, as its own configuration and an empty model of it give them."""

    layers: int
    hidden: int
    intermediate: int
    kv_width: int
    """Key-value heads times their size."""
    vocabulary: int
    weights: int
    trained: int
    adapted_inputs: int
    """The sum of the input widths of all modules with an adapter."""
    bytes_per_weight: int


@dataclass(frozen=True)
class Machine:
    """What there is to compute on, as the preflight found it."""

    memory_gib: float
    """Of one GPU, or the RAM."""
    flops: float
    """Floating-point operations per second in the training's dtype, measured by a matrix product."""
    bandwidth: float
    """Bytes per second that are read from memory, measured by a matrix-vector product."""


@dataclass(frozen=True)
class Estimate:
    """Of one process: GiB by what they are for, and seconds of a step."""

    parts: dict[str, float]
    step_seconds: float

    @property
    def memory_gib(self) -> float:
        return sum(self.parts.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{what} {gib:.1f}" for what, gib in self.parts.items() if gib >= 0.05)
        return f"about {self.memory_gib:.1f} GiB ({parts}), and {self.step_seconds:.1f} s a step"


def estimate(config: Config, architecture: Architecture, machine: Machine, prompt_tokens: int) -> Estimate:
    """What one training process needs, with prompts of `prompt_tokens` (the longest, of which memory depends)."""
    grpo = config.training.grpo
    completion = grpo.get("max_completion_length", 256)
    tokens = config.training.device_batch * (prompt_tokens + completion)
    size = architecture.bytes_per_weight
    parts = {
        "framework": FRAMEWORK_GIB,
        "weights": architecture.weights * size / GIB,
        "gradients and Adam's moments": architecture.trained * (4 + 4 + 8) / GIB,
        "activations": tokens * _kept_per_token(architecture, bool(grpo.get("gradient_checkpointing"))) / GIB,
        "logits": config.training.device_batch * completion * architecture.vocabulary * (size + 12) / GIB,
    }
    parts |= _generation(config, architecture, machine, prompt_tokens + completion)
    return Estimate(parts, _step_seconds(config, architecture, machine, prompt_tokens, completion))


def require_memory(config: Config, found: Estimate, machine: Machine) -> None:
    """Raise UserError with a setting that helps if training can hardly fit."""
    if found.memory_gib <= FITS * machine.memory_gib:
        return
    where = "RAM" if config.training.grpo.get("use_cpu") else "memory on each GPU"
    raise UserError(
        f"training needs {found}, but this machine has {machine.memory_gib:.1f} GiB of {where}; "
        f"{_advice(config, found)}"
    )


def _kept_per_token(of: Architecture, checkpointing: bool) -> float:
    """Bytes that the forward pass keeps of one token for the backward pass."""
    size = of.bytes_per_weight
    # Queries, repeated keys and values, and attention's output; gate, its activation and up of the MLP; and the inputs
    # of two norms, which compute in 32 bits. A frozen product keeps nothing.
    layer = size * (4 * of.hidden + 3 * of.intermediate) + 4 * 2 * of.hidden
    # What is trained keeps its input: an adapter a copy of its own, or else each of the seven products.
    inputs = of.adapted_inputs / of.layers or 4 * of.hidden + of.intermediate
    adapters = size * inputs
    if checkpointing:
        return of.layers * size * of.hidden + layer + adapters  # the layers' inputs, and one layer at a time
    return of.layers * (layer + adapters)


def _generation(config: Config, of: Architecture, machine: Machine, length: int) -> dict[str, float]:
    grpo = config.training.grpo
    if not grpo.get("use_vllm"):
        sequences = config.training.generation_batch / config.training.processes
        kv_cache = sequences * length * of.layers * 2 * of.kv_width * of.bytes_per_weight
        return {"KV cache of generation": kv_cache / GIB}
    if grpo.get("vllm_mode") == "server":
        return {}
    if grpo.get("use_cpu"):
        vllm = of.weights * of.bytes_per_weight / GIB + config.evaluation.vllm_kv_cache_gib
        return {"vLLM": vllm}
    if grpo.get("vllm_enable_sleep_mode"):
        return {}  # it gives its share back before the step
    return {"vLLM's share": grpo.get("vllm_gpu_memory_utilization", 0.3) * machine.memory_gib}


def _step_seconds(config: Config, of: Architecture, machine: Machine, prompt: int, completion: int) -> float:
    """Generation and optimizer step, with completions of the greatest length.

    A product takes two operations per weight and token; the backward pass as many for the inputs, and again for the
    weights that are trained. While a token is generated, all weights are read.
    """
    training = config.training
    flops = EFFICIENCY * machine.flops
    cycle = training.grpo.get("num_iterations", 1)
    sequences = training.generation_batch / training.processes
    prompts = sequences / training.grpo.get("num_generations", 8)
    prefill = 2 * of.weights * prompts * prompt / flops
    each = max(of.weights * of.bytes_per_weight / machine.bandwidth, 2 * of.weights * sequences / flops)
    learned = sequences * (prompt + completion) * (4 * of.weights + 2 * of.trained) / flops
    return (prefill + completion * each + cycle * learned) / training.cycle_steps


def _advice(config: Config, found: Estimate) -> str:
    grpo = config.training.grpo
    largest = max(found.parts, key=lambda part: found.parts[part])
    if largest == "vLLM's share":
        return "lower training.vllm_gpu_memory_utilization, or set training.vllm_enable_sleep_mode=true"
    if largest in ("activations", "logits") and config.training.device_batch > 1:
        half = config.training.device_batch // 2
        return (
            f"set training.per_device_train_batch_size={half} and training.gradient_accumulation_steps="
            f"{config.training.accumulation * 2}, which trains the same"
        )
    if largest == "activations" and not grpo.get("gradient_checkpointing"):
        return "set training.gradient_checkpointing=true"
    return "take a smaller model, or a larger machine"
