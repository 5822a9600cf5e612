"""Random weights under which a wrong position shows: for the coverage table and for the tests."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

_TABLES = re.compile(
    r"(pos_embed\w*|position_embeddings?|position_embedding\.weight|positional_embedding"
    r"|pos_embedding|bias_table|attention_biases|rel_pos_[hw]|class_pos_embed|latent"
    r"|(cls|reg|dist|class|distillation|register|detection)_(token|tokens|embedding))$"
)
_GAINS = re.compile(r"(gamma\w*|lambda_?\d?|layer_?scale\w*(\.\w+)?|\.ls\d\.gamma)$")
_KEPT = re.compile(r"(freqs|inv_freq|periods|logit_scale|logit_bias|temperature)$")
"""Parts of a closed form: other values would be another encoding."""

_TRANSPOSED = re.compile(r"(^|\.)(proj|text_projection)$")
"""Bare matrices that multiply from the right: their rows are the inputs."""


def redraw(module: nn.Module, seed: int = 0) -> Mapping[str, Tensor]:
    """A state dict with position tables N(0, 0.5^2) and layers that keep their input's size.

    Networks are initialised so that blocks and tables hardly matter (tables of standard deviation
    0.02, layer scales of 1e-5, heads of zeros): a comparison would pass with wrong positions.
    """
    generator = torch.Generator().manual_seed(seed)
    owners = dict(module.named_modules())
    buffers = {n for n, _ in module.named_buffers()}
    return {
        name: _drawn(name, value, owners[name.rpartition(".")[0]], name in buffers, generator)
        for name, value in module.state_dict().items()
    }


def _drawn(
    name: str, value: Tensor, owner: nn.Module, buffer: bool, generator: torch.Generator
) -> Tensor:
    noise, leaf = torch.randn(value.shape, generator=generator), name.rpartition(".")[2]
    if leaf == "running_var":
        new = 1 + 0.2 * noise.abs()
    elif leaf == "running_mean":
        new = 0.1 * noise
    elif buffer or not value.is_floating_point() or _KEPT.search(name):
        new = value.clone()
    elif _TABLES.search(name):
        new = 0.5 * noise
    elif _GAINS.search(name):
        new = 0.5 + 0.1 * noise
    elif leaf.endswith("bias"):
        new = 0.1 * noise
    elif value.dim() < 2:
        new = 1 + 0.1 * noise
    elif _TRANSPOSED.search(name):
        new = noise * value.shape[0] ** -0.5
    elif leaf.endswith("weight") and not isinstance(owner, nn.Embedding):
        new = noise * value[0].numel() ** -0.5
    else:  # a class may leave memory as it found it
        new = 0.5 * noise
    return new.to(value.dtype)
