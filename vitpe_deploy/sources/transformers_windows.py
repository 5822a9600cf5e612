"""Windows of transformers' Swin networks, written for the tracer.

The library decides padding, shift and window in Python, from sizes; in a trace with symbolic sizes
that freezes them at those of the example. The same values in closed form: a map is padded to whole
windows, rolled, cut; two pixels attend to each other when they come from the same side of the edge
(Liu et al., "Swin Transformer", 2021, section 3.2). Swin and DonutSwin do not shift a map that is
one window high or wide, which here is a shift that the graph computes.
"""

from __future__ import annotations

import math
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitpe_deploy.sources.timm_windows import from_windows, to_windows, windows_along

_APART = -100.0
"""What the library adds to the logits of pixels that must not see each other."""


def rewrite_windows(module: nn.Module) -> bool:
    """Give a layer, a merging of patches or a patch embedding a traceable forward."""
    names = {n for n, _ in module.named_children()}
    if {"attention", "layernorm_before", "layernorm_after"} <= names and hasattr(
        module, "get_attn_mask"
    ):
        if not isinstance(module.window_size, int):
            return False
        module.forward = MethodType(_layer, module)
    elif {"reduction", "norm"} <= names and hasattr(module, "maybe_pad"):
        module.forward = MethodType(_merge, module)
    elif hasattr(module, "maybe_pad") and "projection" in names:
        module.maybe_pad = MethodType(_padded, module)  # type: ignore[assignment]
    else:
        return False
    return True


def _layer(layer: Any, x: Tensor, size: tuple[int, int], *more: Any, **named: Any) -> Any:
    """One block on tokens [B, h*w, C] of a map."""
    h, w = size
    batch, _, dim = x.shape
    cosine = hasattr(layer.attention, "self") and hasattr(layer.attention.self, "logit_scale")
    normed = x if cosine else layer.layernorm_before(x)
    whole = named.get("always_partition") or (len(more) > 1 and more[1])
    clamped = hasattr(layer, "set_shift_and_window_size") and not whole
    shift = _shift(int(layer.shift_size), layer.window_size, size, clamped=clamped)
    attended = _attention(layer, normed.reshape(batch, h, w, dim), shift, cosine=cosine)
    attended = attended.reshape(batch, h * w, dim)
    if cosine:
        x = x + layer.layernorm_before(attended)
        out = x + layer.layernorm_after(layer.output(layer.intermediate(x)))
    else:
        x = x + attended
        normed = layer.layernorm_after(x)
        out = x + (
            layer.mlp(normed) if hasattr(layer, "mlp") else layer.output(layer.intermediate(normed))
        )
    return (out, None)


def _shift(shift: int, window: int, size: tuple[int, int], *, clamped: bool) -> int | Tensor:
    """Pixels to roll by: none on a map that is one window high or wide."""
    if shift == 0 or not clamped:
        return shift
    if all(isinstance(n, int) for n in size):
        return shift if min(size) > window else 0
    h, w = (torch.scalar_tensor(n, dtype=torch.int64) for n in size)
    rolls = torch.minimum(h, w) > window
    return torch.where(rolls, shift, 0)


def _attention(layer: Any, x: Tensor, shift: int | Tensor, *, cosine: bool) -> Tensor:
    """Attention inside the windows of a map [B, h, w, C]."""
    batch, h, w, dim = x.shape
    window = int(layer.window_size)
    if all(isinstance(n, int) for n in (h, w)):
        window = min(window, h, w) if hasattr(layer, "set_shift_and_window_size") else window
    rows, columns = windows_along(h, window), windows_along(w, window)
    x = F.pad(x, (0, 0, 0, columns * window - w, 0, rows * window - h))
    shifted = not isinstance(shift, int) or shift > 0
    if shifted:
        x = _rolled(x, shift, 1)
    cut, counts = to_windows(x, (window, window))  # [B, nW, A, C]
    number, area = cut.shape[1], cut.shape[2]
    parts = _cosine if cosine else _plain
    query, key, value, scale, bias, project = parts(
        layer.attention, cut.reshape(batch * number, area, dim)
    )
    if shifted:
        # The second version of the library's Swin adds its mask twice.
        mask = _mask(counts, window, shift) * (2 if cosine else 1)  # [nW, A, A]
        bias = bias + mask.unsqueeze(1)  # [nW, M, A, A]
        heads = bias.shape[1]
        bias = bias.unsqueeze(0).expand(batch, number, heads, area, area)
        bias = bias.reshape(batch * number, heads, area, area)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)
    out = project(out.transpose(1, 2).reshape(batch, number, area, -1))
    padded = (rows * window, columns * window)
    out = from_windows(out, (window, window), counts, padded)
    if shifted:
        out = _rolled(out, shift, -1)
    return out[:, :h, :w]


def _rolled(x: Tensor, shift: int | Tensor, sign: int) -> Tensor:
    """A map [B, H, W, C] whose pixel (shift, shift) comes first, or the way back."""
    if isinstance(shift, int):
        return torch.roll(x, shifts=(-sign * shift, -sign * shift), dims=(1, 2))
    for axis in (1, 2):
        n = x.shape[axis]
        places = torch.arange(n) + sign * shift
        # torch.onnx has no remainder by a symbolic size.
        places = torch.where(places < 0, places + n, places)
        x = torch.index_select(x, axis, torch.where(places >= n, places - n, places))
    return x


def _mask(counts: tuple[int, int], window: int, shift: int | Tensor) -> Tensor:
    """What shifted windows add to their logits: [windows, area, area]."""
    by_row, by_column = (_sides(n * window, window, shift) for n in counts)
    sides = by_row[:, None] * 3 + by_column[None, :]  # [H, W]
    rows, columns = counts
    cut = sides.reshape(rows, window, columns, window).permute(0, 2, 1, 3)
    cut = cut.reshape(rows * columns, window * window)
    return torch.where(cut[:, None, :] != cut[:, :, None], _APART, 0.0)


def _sides(n: int, window: int, shift: int | Tensor) -> Tensor:
    """Which part of the rolled map each row is from: inside, before the edge, behind it."""
    places = torch.arange(n)
    return (places >= n - window).long() + (places >= n - shift).long()


def _heads(x: Tensor, count: int) -> Tensor:
    """[n, A, C] -> [n, M, A, C/M]."""
    return x.reshape(*x.shape[:2], count, -1).transpose(1, 2)


def _plain(attention: Any, x: Tensor) -> Any:
    """Query, key, value, scale, bias [1, M, A, A] and the projection of Swin's first version."""
    if hasattr(attention, "q_proj"):
        count = attention.num_attention_heads
        linear = (attention.q_proj, attention.k_proj, attention.v_proj)
        bias, project = attention.relative_position_bias(), attention.o_proj
        scale = float(attention.scaling)
    else:
        inner = attention.self
        count, linear = inner.num_attention_heads, (inner.query, inner.key, inner.value)
        bias, project = _gathered(inner, inner.relative_position_bias_table), attention.output.dense
        scale = 1.0 / math.sqrt(inner.attention_head_size)
    query, key, value = (_heads(layer(x), count) for layer in linear)
    return query, key, value, scale, bias, project


def _cosine(attention: Any, x: Tensor) -> Any:
    """The same of the second: cosines times a learned scale, a bias from log distances."""
    inner = attention.self
    count = inner.num_attention_heads
    query, key, value = (_heads(layer(x), count) for layer in (inner.query, inner.key, inner.value))
    scale = torch.clamp(inner.logit_scale, max=math.log(1.0 / 0.01)).exp()
    table = inner.continuous_position_bias_mlp(inner.relative_coords_table).view(-1, count)
    bias = 16 * torch.sigmoid(_gathered(inner, table))
    query = F.normalize(query, dim=-1) * scale
    return query, F.normalize(key, dim=-1), value, 1.0, bias, attention.output.dense


def _gathered(inner: Any, table: Tensor) -> Tensor:
    """Rows of a table for all pairs of a window: [1, M, A, A]."""
    area = inner.window_size[0] * inner.window_size[1]
    bias = table[inner.relative_position_index.reshape(-1)].reshape(area, area, -1)
    return bias.permute(2, 0, 1).unsqueeze(0)


def _merge(merging: Any, x: Tensor, size: tuple[int, int]) -> Tensor:
    """Merging of 2x2 patches: [B, h*w, C] -> [B, ceil(h/2)*ceil(w/2), C']."""
    h, w = size
    batch, _, dim = x.shape
    rows, columns = windows_along(h, 2), windows_along(w, 2)
    x = F.pad(x.reshape(batch, h, w, dim), (0, 0, 0, columns * 2 - w, 0, rows * 2 - h))
    x = x.reshape(batch, rows, 2, columns, 2, dim).permute(0, 1, 3, 4, 2, 5)
    x = x.reshape(batch, rows * columns, 4 * dim)
    first = merging.reduction.in_features == math.prod(merging.norm.normalized_shape)
    merged: Tensor = (
        merging.reduction(merging.norm(x)) if first else merging.norm(merging.reduction(x))
    )
    return merged


def _padded(embedding: Any, pixels: Tensor, height: int, width: int) -> Tensor:
    """Pixels [B, C, H, W] with zeros behind them, up to whole patches."""
    p, q = embedding.patch_size
    rows, columns = windows_along(height, p) * p, windows_along(width, q) * q
    return F.pad(pixels, (0, columns - width, 0, rows - height))
