"""torchvision's Swin, in pictures and clips, on maps with symbolic rows and columns.

``shifted_window_attention`` compares the map with the window in Python to decide whether windows
shift, and writes the mask of shifted windows by assigning slices: both freeze at the size of the
trace (a file traced at 32 pixels is silently 1.6e-2 off at 64). A copy gets the attention of
:mod:`vitpe_deploy.models.windows` instead, which decides both in the graph. The referee keeps
torchvision's own code.

A map smaller than the window is padded to one window in pictures; in clips the window shrinks to
the map and reads the first rows and columns of the index (``_get_relative_position_bias``), which
is the bias of its offsets along time alone. A single window does not shift.
"""

from __future__ import annotations

import dataclasses
import math
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitpe_deploy.models.windows import plan_windows
from vitpe_deploy.sources.timm_windows import windows_along

_LARGEST_LOGIT_SCALE = math.log(100.0)


def rewrite_torchvision(module: nn.Module) -> bool:
    """Give one module of a copy a traceable forward. False for modules of another kind."""
    names = ("window_size", "shift_size", "qkv", "proj", "get_relative_position_bias")
    if all(hasattr(module, n) for n in names):
        module.forward = MethodType(_window_attention, module)
        return True
    children = {n for n, _ in module.named_children()}
    if children == {"reduction", "norm"} and isinstance(module.reduction, nn.Linear):
        dim = getattr(module, "dim", None)
        if isinstance(dim, int) and module.reduction.in_features == 4 * dim:
            module.forward = MethodType(_patch_merging, module)
            return True
    if hasattr(module, "tuple_patch_size") and isinstance(getattr(module, "proj", None), nn.Conv3d):
        module.forward = MethodType(_tubelets, module)
        return True
    return False


def _window_attention(attention: Any, x: Tensor) -> Tensor:
    """[B, h, w, C] or [B, t, h, w, C] of the same shape."""
    batch, dim, sizes = x.shape[0], x.shape[-1], tuple(x.shape[1:-1])
    window, shift = tuple(attention.window_size), tuple(attention.shift_size)
    clip = len(window) == 3
    plan = plan_windows(sizes, window, shift, small_map="clamp" if clip else "pad")
    if plan.crop is not None:
        plan = dataclasses.replace(plan, crop=torch.arange(plan.crop.shape[0]))
    cut = plan.partition(x.reshape(batch, -1, dim))  # [B*W, n, C]
    heads = attention.num_heads
    scale_table = getattr(attention, "logit_scale", None)
    qkv = F.linear(cut, attention.qkv.weight, _qkv_bias(attention))
    qkv = qkv.reshape(cut.shape[0], cut.shape[1], 3, heads, dim // heads).permute(2, 0, 3, 1, 4)
    query, key, value = qkv.unbind(0)
    scale = (dim // heads) ** -0.5
    if scale_table is not None:
        learned = scale_table.clamp(max=_LARGEST_LOGIT_SCALE).exp()  # [M, 1, 1]
        query, key, scale = F.normalize(query, dim=-1) * learned, F.normalize(key, dim=-1), 1.0
    full = (
        attention.get_relative_position_bias(list(window))
        if clip
        else (attention.get_relative_position_bias())
    )
    bias = plan.bias(full, batch)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)
    out = attention.proj(out.transpose(1, 2).reshape(cut.shape))
    return plan.merge(out, batch).reshape(batch, *sizes, dim)


def _qkv_bias(attention: Any) -> Tensor | None:
    """Keys of Swin v2 have no bias, whatever the file says."""
    bias: Tensor | None = attention.qkv.bias
    if bias is None or not hasattr(attention, "logit_scale"):
        return bias
    third = bias.shape[0] // 3
    return torch.cat([bias[:third], torch.zeros_like(bias[:third]), bias[2 * third :]])


def _patch_merging(merging: Any, x: Tensor) -> Tensor:
    """2x2 patches become one, columns outermost: [..., h, w, C] -> [..., ceil(h/2), ceil(w/2), C'].

    Swin v1 normalises before the projection, Swin v2 after it.
    """
    *lead, h, w, dim = x.shape
    rows, columns = windows_along(h, 2), windows_along(w, 2)
    x = F.pad(x, (0, 0, 0, columns * 2 - w, 0, rows * 2 - h))
    x = x.reshape(-1, rows, 2, columns, 2, dim).permute(0, 1, 3, 4, 2, 5)
    x = x.reshape(*lead, rows, columns, 4 * dim)
    before = merging.reduction.in_features == math.prod(merging.norm.normalized_shape)
    merged: Tensor = (
        merging.reduction(merging.norm(x)) if before else merging.norm(merging.reduction(x))
    )
    return merged


def _tubelets(embed: Any, x: Tensor) -> Tensor:
    """A clip [B, C, T, H, W] padded to whole tubelets and cut: [B, t, h, w, D]."""
    ends: list[int] = []
    for n, step in zip(reversed(x.shape[2:]), reversed(embed.tuple_patch_size), strict=True):
        ends += [0, windows_along(n, step) * step - n]
    cut = embed.proj(F.pad(x, ends)).permute(0, 2, 3, 4, 1)
    embedded: Tensor = cut if embed.norm is None else embed.norm(cut)
    return embedded


def make_torchvision_traceable(network: nn.Module) -> nn.Module:
    """Rewrite all such modules of a copy in place and give it back."""
    for child in network.modules():
        rewrite_torchvision(child)
    return network
