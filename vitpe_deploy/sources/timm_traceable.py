"""Parts of timm networks that torch's tracer does not take, written in a way that it does.

The network that is changed is a copy; the referee's is not touched, so each rewriting is proved by
parity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn


def make_traceable(module: nn.Module, *, symbolic: bool) -> nn.Module:
    """Change a copy in place and give it back.

    * Attention that timm computes by hand unless told otherwise calls torch's function, which the
      tracer writes as one node.
    * Rotary coordinates that timm divides by ``float(size)`` divide by a tensor: Python's float
      would freeze them at the size of the trace (DINOv3: right there, wrong everywhere else).

    Args:
        module: a copy in eval mode.
        symbolic: whether height and width are symbolic in the trace.
    """
    for child in module.modules():
        if getattr(child, "fused_attn", None) is False:
            child.fused_attn = True  # type: ignore[assignment]
        if symbolic and _has_centred_rope(child):
            child._create_embed = MethodType(_centred_rope, child)  # type: ignore[assignment]
    return module


def _has_centred_rope(child: nn.Module) -> bool:
    return all(hasattr(child, n) for n in ("_create_embed", "periods", "normalize_coords"))


def _centred_rope(rope: Any, shape: Sequence[int], no_aug: bool = False) -> Tensor:
    """timm's DINOv3 embedding [h*w, 2*D] (sine, then cosine) with sizes as tensors.

    Coordinates are patch centres from -1 to 1, angles 2 pi coordinate / period (Siméoni et al.,
    "DINOv3", 2025).
    """
    del no_aug  # coordinates are augmented in training only
    h, w = shape
    height, width = (torch.scalar_tensor(n, dtype=torch.float32) for n in (h, w))
    rule = rope.normalize_coords
    if rule == "separate":
        by_row, by_column = height, width
    else:
        by_row = by_column = (torch.maximum if rule == "max" else torch.minimum)(height, width)
    rows = ((torch.arange(h).float() + (0.5 + rope.grid_offset)) / by_row) * 2 - 1
    columns = ((torch.arange(w).float() + (0.5 + rope.grid_offset)) / by_column) * 2 - 1
    grid_rows = rows[:, None].expand(h, w)
    grid_columns = columns[None, :].expand(h, w)
    order = (grid_rows, grid_columns) if rope.grid_indexing == "ij" else (grid_columns, grid_rows)
    coordinates = torch.stack(order, dim=-1).reshape(-1, 2)  # [h*w, 2]
    periods = rope.periods.float()
    angles = 2 * math.pi * coordinates[:, :, None] / periods[None, None, :]
    angles = angles.flatten(1)  # [h*w, D/2]
    values = (angles.sin(), angles.cos())
    if rope.rotate_half:
        spread = [torch.cat([v, v], dim=-1) for v in values]
    else:
        spread = [v.repeat_interleave(2, dim=-1) for v in values]
    return torch.cat(spread, dim=-1)
