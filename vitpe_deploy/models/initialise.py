"""Random weights at the scale of a trained network, so that every layer moves the result."""

from __future__ import annotations

from torch import nn


def initialise(module: nn.Module) -> None:
    """Draw the parameters of one layer from the global torch generator; for ``Module.apply``."""
    if isinstance(module, nn.Linear | nn.Conv2d | nn.Conv3d):
        nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
        if module.bias is not None:
            nn.init.normal_(module.bias, std=0.02)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=0.5)
    elif isinstance(module, nn.LayerNorm):
        nn.init.normal_(module.weight, mean=1.0, std=0.05)
        nn.init.normal_(module.bias, std=0.05)
