"""Windows of timm's networks on maps with symbolic rows and columns, written for the tracer.

timm writes the mask of shifted windows by assigning slices, pads by remainders and divides the
batch of windows by their number; each of these makes torch reason about nested divisions for
minutes (a DaViT of four blocks did not finish in eight). The same values in closed form: a map of
h rows has ceil(h / w) rows of windows, and two pixels of a shifted window attend to each other
when they come from the same side of the edge (Liu et al., "Swin Transformer", 2021, section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_APART = -100.0
"""What Swin adds to the logits of pixels that must not see each other."""


def rewrite_window_block(block: nn.Module) -> bool:
    """Give a Swin block a traceable attention. False for blocks of another kind."""
    names = ("_attn", "window_size", "shift_size", "get_attn_mask", "attn")
    if not all(hasattr(block, n) for n in names):
        return False
    attention = block.attn
    if hasattr(attention, "relative_position_bias_table") and hasattr(attention, "scale"):
        logits: Any = _plain
    elif all(hasattr(attention, n) for n in ("cpb_mlp", "logit_scale", "q_bias")):
        logits = _cosine
    else:
        return False

    def attend(self: Any, x: Tensor) -> Tensor:
        return _window_attention(self, x, logits)

    block._attn = MethodType(attend, block)  # type: ignore[assignment]
    return True


def windows_along(n: int, window: int) -> int:
    """Windows that cover n pixels."""
    return (n + window - 1) // window


def to_windows(x: Tensor, window: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
    """Pad a map [B, h, w, C] and cut it: [B, rows of windows, columns of windows, area, C]."""
    batch, h, w, dim = x.shape
    rows, columns = windows_along(h, window[0]), windows_along(w, window[1])
    x = F.pad(x, (0, 0, 0, columns * window[1] - w, 0, rows * window[0] - h))
    x = x.reshape(batch, rows, window[0], columns, window[1], dim).permute(0, 1, 3, 2, 4, 5)
    return x.reshape(batch, rows * columns, window[0] * window[1], dim), (rows, columns)


def from_windows(
    x: Tensor, window: tuple[int, int], counts: tuple[int, int], size: tuple[int, int]
) -> Tensor:
    """The inverse of :func:`to_windows`, padding cut off: [B, h, w, C]."""
    rows, columns = counts
    batch, dim = x.shape[0], x.shape[-1]
    x = x.reshape(batch, rows, columns, window[0], window[1], dim).permute(0, 1, 3, 2, 4, 5)
    x = x.reshape(batch, rows * window[0], columns * window[1], dim)
    return x[:, : size[0], : size[1]]


def shift_mask(counts: tuple[int, int], window: tuple[int, int], shift: tuple[int, int]) -> Tensor:
    """What shifted windows add to their logits: [windows, area, area]."""
    by_row = _sides(counts[0], window[0], shift[0]) * 3
    by_column = _sides(counts[1], window[1], shift[1])
    sides = by_row[:, None] + by_column[None, :]  # [h, w]
    cut, _ = to_windows(sides[None, :, :, None], window)
    cut = cut[0, :, :, 0]  # [windows, area]
    apart = cut[:, None, :] != cut[:, :, None]
    return torch.where(apart, _APART, 0.0)


def _sides(count: int, window: int, shift: int) -> Tensor:
    """Which part of the rolled map each row is from: inside, before the edge, behind it."""
    places = torch.arange(count * window)
    if shift == 0:
        return torch.zeros_like(places)
    last = (count - 1) * window
    return (places >= last).long() + (places >= last + window - shift).long()


def _window_attention(block: Any, x: Tensor, logits: Any) -> Tensor:
    batch, h, w, dim = x.shape
    window, shift = tuple(block.window_size), tuple(block.shift_size)
    if any(shift):
        x = torch.roll(x, shifts=(-shift[0], -shift[1]), dims=(1, 2))
    cut, counts = to_windows(x, window)  # [B, nW, A, C]
    number, area = cut.shape[1], cut.shape[2]
    query, key, value, scale, bias = logits(block.attn, cut.reshape(batch * number, area, dim))
    if any(shift):
        if getattr(block, "dynamic_mask", False) or block.attn_mask is None:
            mask = shift_mask(counts, window, shift)
        else:
            mask = block.attn_mask
        bias = bias + mask.unsqueeze(1)  # [nW, M, A, A]
        heads = bias.shape[1]
        bias = bias.unsqueeze(0).expand(batch, number, heads, area, area)
        bias = bias.reshape(batch * number, heads, area, area)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)
    out = block.attn.proj(out.transpose(1, 2).reshape(batch, number, area, -1))
    out = from_windows(block.attn.proj_drop(out), window, counts, (h, w))
    return torch.roll(out, shifts=shift, dims=(1, 2)) if any(shift) else out


def _split(attention: Any, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    count, area = qkv.shape[:2]
    parts = qkv.reshape(count, area, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    return parts[0], parts[1], parts[2]


def _plain(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor, float, Tensor]:
    """Query, key, value [n, M, A, D/M], scale and bias [1, M, A, A] of Swin v1."""
    query, key, value = _split(attention, attention.qkv(x))
    return query, key, value, float(attention.scale), attention._get_rel_pos_bias()


def _cosine(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor, float, Tensor]:
    """The same of Swin v2: cosines times a learned scale, a bias computed from log distances."""
    if attention.q_bias is None:
        qkv = attention.qkv(x)
    else:
        bias = torch.cat((attention.q_bias, attention.k_bias, attention.v_bias))
        qkv = F.linear(x, attention.qkv.weight, bias)
    query, key, value = _split(attention, qkv)
    scale = attention.logit_scale.clamp(max=math.log(1 / 0.01)).exp()  # [M, 1, 1]
    query = F.normalize(query, dim=-1) * scale
    area = attention.window_size[0] * attention.window_size[1]
    table = attention.cpb_mlp(attention.relative_coords_table).view(-1, attention.num_heads)
    bias = table[attention.relative_position_index.view(-1)].view(area, area, -1)
    bias = 16 * torch.sigmoid(bias.permute(2, 0, 1).unsqueeze(0))
    return query, F.normalize(key, dim=-1), value, 1.0, bias


def rewrite_padding_block(block: nn.Module) -> bool:
    """The same for blocks that pad to windows without shifting them."""
    window = getattr(block, "window_size", None)
    names = {n for n, _ in block.named_children()}
    reduction = getattr(block, "reduction", None)
    if "norm" in names and isinstance(reduction, nn.Linear):
        if reduction.in_features != 4 * getattr(block, "dim", 0):
            return False
        block.forward = MethodType(_patch_merging, block)
    elif isinstance(getattr(block, "ws", None), int) and names >= {"qkv", "proj"}:
        block.forward = MethodType(_grouped_attention, block)
    elif window is None or "attn" not in names or hasattr(block, "_attn"):
        return False
    elif names >= {"cpe1", "cpe2", "norm1"}:
        block.forward = MethodType(_davit_block, block)
    elif isinstance(window, int) and "local_conv" in names:
        block.forward = MethodType(_tiny_vit_block, block)
    elif isinstance(window, int) and window > 0 and hasattr(block.attn, "use_rel_pos"):
        block.forward = MethodType(_sam_block, block)
    else:
        return False
    return True


def _through_windows(
    attention: Callable[[Tensor], Tensor], x: Tensor, window: tuple[int, int]
) -> Tensor:
    """Attention inside the windows of a map [B, h, w, C]."""
    batch, h, w, dim = x.shape
    cut, counts = to_windows(x, window)  # [B, nW, A, C]
    number, area = cut.shape[1], cut.shape[2]
    out = attention(cut.reshape(batch * number, area, dim))
    return from_windows(out.reshape(batch, number, area, dim), window, counts, (h, w))


def _davit_block(block: Any, x: Tensor) -> Tensor:
    """DaViT's spatial block on a map [B, C, h, w] (Ding et al., "DaViT", 2022)."""
    first = block.cpe1(x).permute(0, 2, 3, 1)  # [B, h, w, C]
    attended = _through_windows(block.attn, block.norm1(first), tuple(block.window_size))
    out: Tensor = block.cpe2((first + block.drop_path1(attended)).permute(0, 3, 1, 2))
    if block.mlp is None:
        return out
    tokens = out.permute(0, 2, 3, 1)
    out = tokens + block.drop_path2(block.mlp(block.norm2(tokens)))
    return out.permute(0, 3, 1, 2)


def _tiny_vit_block(block: Any, x: Tensor) -> Tensor:
    """TinyViT's block on a map [B, h, w, C] (Wu et al., "TinyViT", 2022)."""
    window = (block.window_size, block.window_size)
    x = x + block.drop_path1(_through_windows(block.attn, x, window))
    x = block.local_conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    out: Tensor = x + block.drop_path2(block.mlp(x))
    return out


def _sam_block(block: Any, x: Tensor) -> Tensor:
    """SAM's windowed block on a map [B, h, w, C]; its attention reads maps, here of a window."""
    window = (block.window_size, block.window_size)

    def attend(cut: Tensor) -> Tensor:
        count, area, dim = cut.shape
        attended: Tensor = block.attn(cut.reshape(count, *window, dim))
        return attended.reshape(count, area, dim)

    x = x + block.drop_path1(block.ls1(_through_windows(attend, block.norm1(x), window)))
    out: Tensor = x + block.drop_path2(block.ls2(block.mlp(block.norm2(x))))
    return out


def _grouped_attention(attention: Any, x: Tensor, size: tuple[int, int]) -> Tensor:
    """Twins' attention inside windows of tokens [B, h*w, C] (Chu et al., "Twins", 2021)."""
    batch, tokens, dim = x.shape

    def attend(cut: Tensor) -> Tensor:
        query, key, value = _split(attention, attention.qkv(cut))
        out = F.scaled_dot_product_attention(query, key, value)
        return out.transpose(1, 2).flatten(2)

    window = (attention.ws, attention.ws)
    out = _through_windows(attend, x.reshape(batch, *size, dim), window)
    joined: Tensor = attention.proj(out.reshape(batch, tokens, dim))
    return joined


def _patch_merging(merging: Any, x: Tensor) -> Tensor:
    """Swin's merging of 2x2 patches, [B, h, w, C] -> [B, ceil(h/2), ceil(w/2), C']."""
    batch, h, w, dim = x.shape
    rows, columns = windows_along(h, 2), windows_along(w, 2)
    x = F.pad(x, (0, 0, 0, columns * 2 - w, 0, rows * 2 - h))
    x = x.reshape(batch, rows, 2, columns, 2, dim).permute(0, 1, 3, 4, 2, 5)
    x = x.reshape(batch, rows, columns, 4 * dim)
    before = merging.reduction.in_features == math.prod(merging.norm.normalized_shape)  # Swin v1
    merged: Tensor = (
        merging.reduction(merging.norm(x)) if before else merging.norm(merging.reduction(x))
    )
    return merged


def rewrite_padded_convolution(module: nn.Module) -> bool:
    """The same for convolutions that pad a map to whole strides first (DaViT's stem, merging)."""
    if not isinstance(getattr(module, "conv", None), nn.Conv2d) or not hasattr(module, "norm"):
        return False
    names = {n for n, _ in module.named_children()}
    if names != {"conv", "norm"}:
        return False
    if getattr(module, "even_k", False):
        module.forward = MethodType(_merge, module)
    elif isinstance(getattr(module, "stride", None), tuple):
        module.forward = MethodType(_stem, module)
    else:
        return False
    return True


def _stem(stem: Any, x: Tensor) -> Tensor:
    """[B, 3, H, W] -> [B, C, ceil(H / 4), ceil(W / 4)]."""
    embedded: Tensor = stem.norm(stem.conv(_padded(x, stem.stride)))
    return embedded


def _merge(merge: Any, x: Tensor) -> Tensor:
    """[B, C, h, w] -> [B, C', ceil(h / 2), ceil(w / 2)]."""
    merged: Tensor = merge.conv(_padded(merge.norm(x), tuple(merge.conv.kernel_size)))
    return merged


def _padded(x: Tensor, step: tuple[int, int]) -> Tensor:
    """A map [B, C, h, w] with zeros behind it, up to whole steps."""
    h, w = x.shape[-2:]
    rows, columns = windows_along(h, step[0]) * step[0], windows_along(w, step[1]) * step[1]
    return F.pad(x, (0, columns - w, 0, rows - h))
