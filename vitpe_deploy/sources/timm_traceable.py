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
import torch.nn.functional as F
from torch import Tensor, nn

from vitpe_deploy.sources.pooling import pooled_to_a_grid, pools_to_a_grid
from vitpe_deploy.sources.timm_windows import (
    rewrite_padded_convolution,
    rewrite_padding_block,
    rewrite_window_block,
)


def make_traceable(module: nn.Module, *, symbolic: bool) -> nn.Module:
    """Change a copy in place and give it back.

    * Attention that timm computes by hand unless told otherwise calls torch's function, which the
      tracer writes as one node.
    * Windows of Swin are cut, masked and joined in closed form.
    * Rotary coordinates that timm divides by ``float(size)`` divide by a tensor: Python's float
      would freeze them at the size of the trace (DINOv3: right there, wrong everywhere else).
    * A pooling to a number of cells a side is two matrix products.
    * Decomposed relative positions (SAM) compare sizes in Python to decide whether a table fits;
      with a symbolic map the table is always resampled, which at its own size changes nothing.

    Args:
        module: a copy in eval mode.
        symbolic: whether height and width are symbolic in the trace.
    """
    for child in module.modules():
        if rewrite_window_block(child):
            continue
        if symbolic and pools_to_a_grid(child):
            child.forward = MethodType(pooled_to_a_grid, child)
        if symbolic and (rewrite_padding_block(child) or rewrite_padded_convolution(child)):
            continue
        if getattr(child, "fused_attn", None) is False:
            child.fused_attn = True  # type: ignore[assignment]
        if symbolic and _has_centred_rope(child):
            child._create_embed = MethodType(_centred_rope, child)  # type: ignore[assignment]
        if symbolic and _is_decomposed(child):
            child.forward = MethodType(_decomposed_attention, child)
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


def _is_decomposed(child: nn.Module) -> bool:
    names = ("rel_pos_h", "rel_pos_w", "qkv", "q_norm", "k_norm", "proj", "num_heads")
    return getattr(child, "use_rel_pos", False) and all(hasattr(child, n) for n in names)


def _decomposed_attention(attention: Any, x: Tensor) -> Tensor:
    """SAM's attention over a map [B, h, w, D] (Kirillov et al., "Segment Anything", 2023)."""
    batch, h, w, dim = x.shape
    heads, tokens = attention.num_heads, h * w
    qkv = attention.qkv(x.reshape(batch, tokens, dim)).view(batch, tokens, 3, heads, -1)
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # [B, M, h*w, D/M]
    q, k = attention.q_norm(q), attention.k_norm(k)
    rows = _distances(attention.rel_pos_h, h)  # [h, h, D/M]
    columns = _distances(attention.rel_pos_w, w)  # [w, w, D/M]
    grid = q.reshape(batch * heads, h, w, -1)
    by_row = torch.einsum("bhwc,hkc->bhwk", grid, rows)
    by_column = torch.einsum("bhwc,wkc->bhwk", grid, columns)
    bias = by_row[:, :, :, :, None] + by_column[:, :, :, None, :]  # [B*M, h, w, h, w]
    bias = bias.reshape(batch, heads, tokens, tokens)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    out = attention.proj(out.transpose(1, 2).reshape(batch, tokens, dim))
    dropped: Tensor = attention.proj_drop(out)
    return dropped.view(batch, h, w, dim)


def _distances(table: Tensor, n: int) -> Tensor:
    """Rows of a table [2*n0-1, C] for all pairs of n positions: [n, n, C]."""
    if not isinstance(n, int) or 2 * n - 1 != table.shape[0]:
        table = F.interpolate(table.t().unsqueeze(0), size=2 * n - 1, mode="linear")[0].t()
    places = torch.arange(n)
    return table[places[:, None] - places[None, :] + (n - 1)]
