"""Adapters that change a model, as a fresh one does not."""

from typing import Any

import torch


def randomise_adapter(model: Any, seed: int, size: float = 0.05) -> None:
    """Give the LoRA adapter of `model` small random weights, where fresh ones are zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, values in model.named_parameters():
            if "lora_B" in name:
                values.copy_(size * torch.randn(values.shape, generator=generator))
