"""What training will need, before its first step: memory, and the time of a step.

Counted from the configuration, the model's own and the lengths of the prompts, with the usual arithmetic of
transformers (what a backward pass keeps of each layer: Korthikanti et al. 2022, arXiv 2205.05198, without dropout and
with attention that stores no scores). Both are logged beside what was measured, so that they can be judged.
"""

from dataclasses import dataclass

from tasks.config import Config
from tasks.cpu import takes_shortcuts
from tasks.errors import UserError
from tasks.memory import smaller_step

FRAMEWORK_GIB = 1.2  # torch, transformers and TRL themselves; on a GPU the CUDA context
TILE_TOKENS, TILE_WIDTH = 4096, 32768  # of TRL's fused head; on a CPU the whole vocabulary is one tile
PACKED_GIB = 2.0  # of weights on their way to a server, in two of vLLM's buffers
EFFICIENCY = 0.4  # of the speed of one large product, that a whole model reaches
FITS = 0.95  # of what is there, that an estimate may reach
# On a GPU a small model waits for its kernels to be launched: seconds per layer, of a decode step by vLLM's graphs, and
# of a batch forward and backward by torch without any. Orders of magnitude, to be judged by `measured/step_seconds`.
LAUNCH_DECODE, LAUNCH_LEARN = 1e-4, 4e-3

GIB = 2**30
SHARE, ON_CPU = "vLLM's share", "vLLM"


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
    """Of the dtype that is computed in."""
    bytes_per_held: int
    """Of the model's weights as the trainer holds them; more where a whole model is trained in 32 bits."""
    bytes_per_trained: int
    """Of a trained weight's gradient and Adam's two moments, of an adapter's weight itself, and of the copy in 16 bits
    that autocast makes of a trained weight in 32."""
    reward_weights: int = 0
    """Of all reward models, which are held as the model is."""


@dataclass(frozen=True)
class Machine:
    """What there is to compute on, as the preflight found it."""

    memory_gib: float
    """Of one GPU, or the RAM."""
    flops: float | None
    """Floating-point operations per second in the training's dtype, measured by a matrix product; None where there was
    no room to measure it."""
    bandwidth: float | None
    """Bytes per second that are read from memory, measured by a matrix-vector product; None as above."""


@dataclass(frozen=True)
class Estimate:
    """Of one process: GiB by what they are for, and seconds of a step. Of the parts only `SHARE` is a fixed amount."""

    held: dict[str, float]
    """What is there all the time, and certain."""
    generating: dict[str, float]
    learning: dict[str, float]
    """What comes on top while completions are generated, and while they are learned from; never both at once."""
    step_seconds: float | None
    """None where the machine's speed is not known."""

    @property
    def certain(self) -> dict[str, float]:
        """What there must be room for, whatever the batches: what is held, and vLLM's share while it is awake."""
        return self.held | {name: gib for name, gib in self.generating.items() if name == SHARE}

    @property
    def certain_gib(self) -> float:
        return sum(self.certain.values())

    @property
    def memory_gib(self) -> float:
        return sum(self.held.values()) + max(sum(self.generating.values()), sum(self.learning.values()))

    def __str__(self) -> str:
        parts = (self.held | self.generating | self.learning).items()
        listed = ", ".join(f"{what} {gib:.1f}" for what, gib in parts if gib >= 0.05)
        time = "" if self.step_seconds is None else f", and {self.step_seconds:.1f} s a step"
        return f"about {self.memory_gib:.1f} GiB ({listed}){time}"


def estimate(config: Config, architecture: Architecture, machine: Machine, prompt_tokens: int) -> Estimate:
    """What one training process needs, with prompts of `prompt_tokens` (the longest, of which memory depends)."""
    training = config.training
    completion = training.trl("max_completion_length")
    batch = config.training.device_batch
    kept = _kept_per_token(architecture, bool(training.trl("gradient_checkpointing")))
    held = {
        "framework": FRAMEWORK_GIB,
        "weights": architecture.weights * architecture.bytes_per_held / GIB,
        "gradients and Adam's moments": architecture.trained * architecture.bytes_per_trained / GIB,
    }
    if config.training.lora is None and training.trl("beta"):  # an adapter is switched off for it
        held["reference model"] = architecture.weights * architecture.bytes_per_held / GIB
    if architecture.reward_weights:
        held["reward models"] = architecture.reward_weights * architecture.bytes_per_held / GIB
    if config.training.vllm == "server":
        sent = architecture.weights * architecture.bytes_per_weight / GIB
        held["weights on their way to the server"] = min(PACKED_GIB, sent)
    vllm = _vllm(config, architecture, machine)
    sleeps = SHARE in vllm and training.trl("vllm_enable_sleep_mode")  # and gives its share back before a step
    if not sleeps:
        held |= vllm
    learning = {
        "activations": _learned_tokens(config, batch, prompt_tokens, completion) * kept / GIB
        + _shared_keys(config, architecture, batch * prompt_tokens) / GIB,
        "logits": _logits(config, architecture, batch * completion) / GIB,
    }
    generating = vllm if sleeps else {}
    if config.training.vllm is None:
        generating = {"KV cache": _kv_cache(config, architecture, prompt_tokens + completion)}
    seconds = _step_seconds(config, architecture, machine, prompt_tokens, completion)
    return Estimate(held, generating, learning, seconds)


def judge(config: Config, found: Estimate, machine: Machine) -> str | None:
    """A warning where training may well run out of memory; None where it should fit.

    Raises UserError where it cannot fit: where what it holds all the time is more than there is. What it needs on top
    is known less exactly, and where that runs out the batch is made smaller anyway (`tasks.memory`).
    """
    training = config.training
    if training.accelerate_config or training.trl("deepspeed") or training.trl("fsdp"):
        return None  # the weights may be divided among the processes
    where = "RAM" if training.on_cpu else "memory on each GPU"
    sentence = f"training needs {found}, but this machine has {machine.memory_gib:.1f} GiB of {where}"
    if found.certain_gib > machine.memory_gib:
        largest = max(found.certain, key=lambda part: found.certain[part])
        advice = "take a smaller model, or a larger machine"
        if largest == SHARE:
            asleep = training.trl("vllm_enable_sleep_mode")
            advice = "lower training.vllm_gpu_memory_utilization"
            advice += "" if asleep else ", or set training.vllm_enable_sleep_mode=true"
        elif largest == ON_CPU and config.evaluation.vllm_kv_cache_gib > machine.memory_gib / 2:
            advice = "lower evaluation.vllm_kv_cache_gib"
        raise UserError(f"{sentence}; {advice}")
    if found.memory_gib > FITS * machine.memory_gib:
        return f"{sentence}; if memory runs out, {_advice(config)}"
    return None


def _advice(config: Config) -> str:
    smaller = smaller_step(config)
    if smaller:
        return "set " + " and ".join(f"{name}={value}" for name, value in smaller.items())
    return "set training.gradient_checkpointing=true, or take a shorter training.max_completion_length"


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


def _shares_prompts(config: Config) -> bool:
    """Whether `tasks.shared_prompts` is in force."""
    training = config.training
    return takes_shortcuts(config) and not training.trl("gradient_checkpointing")


def _learned_tokens(config: Config, batch: int, prompt: int, completion: int) -> float:
    """Tokens that go through the model for `batch` completions, which TRL draws from the whole generation batch."""
    training = config.training
    if not _shares_prompts(config):
        return batch * (prompt + completion)
    group = training.trl("num_generations")
    prompts = training.generation_batch / group
    distinct = prompts * (1 - (1 - batch / training.generation_batch) ** group)
    return distinct * prompt + batch * completion


def _shared_keys(config: Config, of: Architecture, tokens: int) -> float:
    """Bytes of the keys and values that a shared prompt hands to each completion, with a head for each query."""
    return tokens * of.layers * 2 * of.hidden * of.bytes_per_weight if _shares_prompts(config) else 0.0


def _logits(config: Config, of: Architecture, tokens: int) -> float:
    """Bytes of the tile of logits that TRL's fused head holds at a time.

    On a GPU its kernels work in place, in the dtype, and what is held besides are gradients in 32 bits: of the hidden
    states, and of the head where that is trained. On a CPU it is the tile in the dtype, in 32 bits, and its gradient.
    """
    if config.training.on_cpu:
        return float(min(tokens, TILE_TOKENS) * of.vocabulary * (2 * of.bytes_per_weight + 4))
    tile = min(tokens, TILE_TOKENS) * min(of.vocabulary, TILE_WIDTH) * of.bytes_per_weight
    head = of.vocabulary * of.hidden * 4 if config.training.lora is None else 0
    return float(tile + tokens * of.hidden * 4 + head)


def _kv_cache(config: Config, of: Architecture, length: int) -> float:
    sequences = config.training.generation_batch / config.training.processes
    return sequences * length * of.layers * 2 * of.kv_width * of.bytes_per_weight / GIB


def _vllm(config: Config, of: Architecture, machine: Machine) -> dict[str, float]:
    if config.training.vllm != "colocate":
        return {}
    if config.training.on_cpu:
        # Twice the weights: it multiplies by packed copies. SmolLM2-135M takes 0.5 GiB in bfloat16, in float32 1.0.
        return {ON_CPU: 2 * of.weights * of.bytes_per_weight / GIB + config.evaluation.vllm_kv_cache_gib}
    return {SHARE: config.training.trl("vllm_gpu_memory_utilization") * machine.memory_gib}


def _step_seconds(config: Config, of: Architecture, machine: Machine, prompt: int, completion: int) -> float | None:
    """Generation and optimizer step, with completions of the greatest length.

    A product takes two operations per weight and token; the backward pass as many for the inputs, and again for the
    weights that are trained. TRL may score completions once more before, and once by the reference model. While a token
    is generated, all weights are read.
    """
    if machine.flops is None or machine.bandwidth is None:
        return None
    training = config.training
    flops = EFFICIENCY * machine.flops
    on_gpu = not training.on_cpu
    cycle = training.trl("num_iterations")
    scored = training.keeps_old_logps + bool(training.trl("beta"))
    sequences = training.generation_batch / training.processes
    prompts = sequences / training.trl("num_generations")
    prefill = 2 * of.weights * prompts * prompt / flops
    each = max(
        of.weights * (of.bytes_per_weight if training.vllm else of.bytes_per_held) / machine.bandwidth,
        2 * of.weights * sequences / flops,
        on_gpu * LAUNCH_DECODE * of.layers,
    )
    batches = sequences / training.device_batch
    tokens = batches * _learned_tokens(config, training.device_batch, prompt, completion)
    launch = on_gpu * batches * LAUNCH_LEARN * of.layers
    learned = max(tokens * (4 * of.weights + 2 * of.trained) / flops, launch)
    forward = max(tokens * 2 * of.weights / flops, launch / 3)
    return (prefill + completion * each + scored * forward + cycle * learned) / training.cycle_steps
