"""Random weights under which a wrong position shows: for the coverage table and for the tests."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

_TABLES = re.compile(
    r"(pos_embed\w*|bias_table|attention_biases|rel_pos_[hw]|cls_token|reg_token|dist_token|latent)$"
)
_GAINS = re.compile(r"(gamma\w*|\.ls\d\.gamma|layer_?scale\w*)$")


def redraw(module: nn.Module, seed: int = 0) -> Mapping[str, Tensor]:
    """A state dict with position tables N(0, 0.5^2) and layers that keep their input's size.

    Networks are initialised so that blocks and tables hardly matter (tables of standard deviation
    0.02, layer scales of 1e-5, heads of zeros): a comparison would pass with wrong positions.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn: dict[str, Tensor] = {}
    owners = dict(module.named_modules())
    for name, value in module.state_dict().items():
        noise = torch.randn(value.shape, generator=generator)
        owner = owners[name.rpartition(".")[0]]
        leaf = name.rpartition(".")[2]
        if not value.is_floating_point():
            new = value.clone()
        elif leaf == "running_var":
            new = 1 + 0.2 * noise.abs()
        elif leaf == "running_mean":
            new = 0.1 * noise
        elif _TABLES.search(name):
            new = 0.5 * noise
        elif _GAINS.search(name):
            new = 0.5 + 0.1 * noise
        elif leaf == "weight" and value.dim() == 1:
            new = 1 + 0.1 * noise
        elif value.dim() > 1 and isinstance(owner, (nn.Linear, nn.Conv2d, nn.Conv1d)):
            new = noise * value[0].numel() ** -0.5
        elif leaf == "bias" or value.dim() == 1:
            new = value + 0.1 * noise
        else:
            new = value.clone()
        drawn[name] = new.to(value.dtype)
    return drawn
