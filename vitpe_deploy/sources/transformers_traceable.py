"""Parts of transformers' networks that torch's tracer does not take, written in a way that it does.

The network that is changed is a copy; the referee's is not touched, so each rewriting is proved by
parity.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Mapping
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitpe_deploy.sources.pooling import pooled_to_a_grid, pools_to_a_grid
from vitpe_deploy.sources.timm_windows import from_windows, to_windows, windows_along
from vitpe_deploy.sources.transformers_windows import rewrite_windows


def make_traceable(module: nn.Module, *, symbolic: bool) -> nn.Module:
    """Change a copy in place and give it back.

    * Relative positions of BEiT are indexed in closed form: the library writes slices of an index
      that it caches for the process, where tensors of a trace must not end up.
    * Rotary coordinates of DINOv3 are computed without such a cache.
    * Windows of Swin and ViTDet are padded, cut, masked and joined in closed form.
    * MAE's shuffle by ascending numbers is left out: it moves nothing.
    * MobileViT resizes its map to whole patches without asking whether it has to; the patches of
      its second version are joined without torch's fold.
    * A pooling to a number of cells a side is two matrix products.
    * Heads that compute a size with ``int`` keep it a symbol.

    Args:
        module: a copy in eval mode.
        symbolic: whether height and width are symbolic in the trace.
    """
    for child in module.modules():
        if hasattr(child, "generate_relative_position_index"):
            child.forward = MethodType(_relative_bias, child)
        elif hasattr(child, "inv_freq") and hasattr(child, "num_patches_h"):
            child.forward = MethodType(_centred_rope, child)
        elif hasattr(child, "random_masking") and _masks_nothing(child):
            child.random_masking = MethodType(_unmasked, child)  # type: ignore[assignment]
        elif {"qkv", "proj"} <= {n for n, _ in child.named_children()} and hasattr(
            child, "use_relative_position_embeddings"
        ):
            child.forward = MethodType(_decomposed_attention, child)
        if not symbolic:
            continue
        if rewrite_windows(child):
            continue
        if hasattr(child, "get_absolute_positions"):
            child.get_absolute_positions = MethodType(_absolute, child)  # type: ignore[assignment]
        elif {"norm1", "norm2", "attention", "mlp"} <= {n for n, _ in child.named_children()}:
            if isinstance(getattr(child, "window_size", None), int) and child.window_size:
                child.forward = MethodType(_vitdet_layer, child)
        elif hasattr(child, "unfolding") and hasattr(child, "patch_width"):
            if hasattr(child, "fusion"):
                child.unfolding = MethodType(_unfolding, child)  # type: ignore[assignment]
            else:
                child.unfolding = MethodType(_cut_patches, child)  # type: ignore[assignment]
                child.folding = MethodType(_join_patches, child)  # type: ignore[assignment]
        elif pools_to_a_grid(child):
            child.forward = MethodType(pooled_to_a_grid, child)
        elif "patch_height" in inspect.signature(child.forward).parameters:
            _read_again(child, "forward", {"int": _int_or_symbol})
        keep_sizes_symbolic(child)
    return module


def keep_sizes_symbolic(module: nn.Module) -> None:
    """Let a copy's ``interpolate_pos_encoding`` see symbolic sizes.

    The library passes sizes through its ``torch_int``, which is ``int`` outside torch.jit: in some
    families that freezes the grid of the trace. The method's own code runs here, on this object
    alone, with a ``torch_int`` that leaves symbols as they are.
    """
    _read_again(module, "interpolate_pos_encoding", {"torch_int": _int_or_symbol})


def _read_again(module: nn.Module, name: str, names: Mapping[str, Any]) -> None:
    """Run a method's own code, on this object alone, with other meanings of global names."""
    method = getattr(type(module), name, None)
    if not isinstance(method, types.FunctionType) or not set(names) & set(method.__code__.co_names):
        return
    known = {**method.__globals__, **names}
    own = types.FunctionType(
        method.__code__, known, method.__name__, method.__defaults__, method.__closure__
    )
    own.__kwdefaults__ = method.__kwdefaults__
    setattr(module, name, types.MethodType(own, module))


def _int_or_symbol(value: Any) -> Any:
    return value if isinstance(value, torch.SymInt) else int(value)


def _relative_bias(
    bias: Any, window_size: tuple[int, int], interpolate_pos_encoding: bool = False, **_more: Any
) -> Tensor:
    """BEiT's bias of a grid, three rows for the class token kept: [1, M, 1 + h*w, 1 + h*w]."""
    h, w = window_size
    old_h, old_w = (2 * n - 1 for n in bias.window_size)
    table = bias.relative_position_bias_table
    count = old_h * old_w
    # The library reads the table as [columns, rows], which is the same on a square.
    grid = table[:count].reshape(1, old_w, old_h, -1).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=(2 * h - 1, 2 * w - 1), mode="bilinear")
    rows = grid.permute(0, 2, 3, 1).reshape((2 * h - 1) * (2 * w - 1), -1)
    places = torch.arange(h * w)
    y = places // w
    x = places - y * w  # torch.onnx has no remainder by a symbolic size
    index = (y[:, None] - y[None, :] + (h - 1)) * (2 * w - 1) + (x[:, None] - x[None, :] + (w - 1))
    patches = rows[index]  # [h*w, h*w, M]
    from_class, to_class, both = (table[count + k].reshape(1, 1, -1) for k in range(3))
    below = torch.cat([to_class.expand(h * w, 1, -1), patches], dim=1)
    above = torch.cat([both, from_class.expand(1, h * w, -1)], dim=1)
    return torch.cat([above, below], dim=0).permute(2, 0, 1).unsqueeze(0)


def _centred_rope(rope: Any, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of DINOv3 at patch centres from -1 to 1: [h*w, D/M] each."""
    patch = rope.config.patch_size
    patch_h, patch_w = patch if isinstance(patch, (tuple, list)) else (patch, patch)
    h, w = pixels.shape[-2] // patch_h, pixels.shape[-1] // patch_w
    height, width = (torch.scalar_tensor(n, dtype=torch.float32) for n in (h, w))
    rows = 2.0 * ((torch.arange(h).float() + 0.5) / height) - 1.0
    columns = 2.0 * ((torch.arange(w).float() + 0.5) / width) - 1.0
    grid = torch.stack([rows[:, None].expand(h, w), columns[None, :].expand(h, w)], dim=-1)
    angles = 2 * math.pi * grid.reshape(h * w, 2)[:, :, None] * rope.inv_freq[None, None, :]
    angles = angles.flatten(1, 2).tile(2)
    return angles.cos(), angles.sin()


def _masks_nothing(child: Any) -> bool:
    return getattr(getattr(child, "config", None), "mask_ratio", None) == 0.0


def _unmasked(
    embeddings: Any, sequence: Tensor, noise: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [B, N, D] as they are, a mask of zeros, indices that ascend."""
    del embeddings, noise
    batch, count = sequence.shape[:2]
    return sequence, torch.zeros(batch, count), torch.arange(count).expand(batch, count)


def _absolute(
    embeddings: Any, table: Tensor, has_cls_token: bool, height: int, width: int
) -> Tensor:
    """ViTDet's table for a map [1, h, w, D]; resampling to its own size changes nothing."""
    del embeddings
    patches = table[:, 1:] if has_cls_token else table
    side = math.isqrt(patches.shape[1])
    grid = patches.reshape(1, side, side, -1).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=(height, width), mode="bicubic", align_corners=False)
    return grid.permute(0, 2, 3, 1)


def _vitdet_layer(layer: Any, x: Tensor, *more: Any, **named: Any) -> tuple[Tensor]:
    """A block with windows on a map [B, C, h, w] (Li et al., "ViTDet", 2022)."""
    del more, named
    x = x.permute(0, 2, 3, 1)
    batch, h, w, dim = x.shape
    window = (layer.window_size, layer.window_size)
    cut, counts = to_windows(layer.norm1(x), window)  # [B, nW, A, C]
    number, area = cut.shape[1], cut.shape[2]
    out = layer.attention(cut.reshape(batch * number, *window, dim))[0]
    x = x + from_windows(out.reshape(batch, number, area, dim), window, counts, (h, w))
    x = x + layer.mlp(layer.norm2(x))
    x = x.permute(0, 3, 1, 2)
    return (layer.residual(x) if layer.use_residual_block else x,)


def _decomposed_attention(attention: Any, x: Tensor, output_attentions: bool = False) -> Any:
    """ViTDet's attention over a map [B, h, w, C]: a bias from rows and one from columns."""
    del output_attentions
    batch, h, w, dim = x.shape
    heads, tokens = attention.num_heads, h * w
    qkv = attention.qkv(x.reshape(batch, tokens, dim)).view(batch, tokens, 3, heads, -1)
    query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # [B, M, h*w, D/M]
    bias = None
    if attention.use_relative_position_embeddings:
        grid = query.reshape(batch * heads, h, w, -1)
        by_row = torch.einsum("bhwc,hkc->bhwk", grid, _distances(attention.rel_pos_h, h))
        by_column = torch.einsum("bhwc,wkc->bhwk", grid, _distances(attention.rel_pos_w, w))
        bias = by_row[:, :, :, :, None] + by_column[:, :, :, None, :]
        bias = bias.reshape(batch, heads, tokens, tokens)
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=bias, scale=float(attention.scale)
    )
    out = attention.proj(out.transpose(1, 2).reshape(batch, tokens, dim))
    return (out.view(batch, h, w, dim),)


def _distances(table: Tensor, n: int) -> Tensor:
    """Rows of a table [2*n0-1, C] for all pairs of n positions: [n, n, C]."""
    if not isinstance(n, int) or 2 * n - 1 != table.shape[0]:
        table = F.interpolate(table.t().unsqueeze(0), size=2 * n - 1, mode="linear")[0].t()
    places = torch.arange(n)
    return table[places[:, None] - places[None, :] + (n - 1)]


def _cut_patches(layer: Any, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """MobileViTV2's patches of a map [B, C, h, w]: [B, C, area, patches]; the rest is left out."""
    p, q = layer.patch_height, layer.patch_width
    batch, channels, h, w = x.shape
    rows, columns = h // p, w // q
    x = x[:, :, : rows * p, : columns * q].reshape(batch, channels, rows, p, columns, q)
    return x.permute(0, 1, 3, 5, 2, 4).reshape(batch, channels, p * q, rows * columns), (h, w)


def _join_patches(layer: Any, patches: Tensor, output_size: tuple[int, int]) -> Tensor:
    """The way back; zeros where no patch was."""
    p, q = layer.patch_height, layer.patch_width
    h, w = output_size
    rows, columns = h // p, w // q
    batch, channels = patches.shape[:2]
    x = patches.reshape(batch, channels, p, q, rows, columns).permute(0, 1, 4, 2, 5, 3)
    x = x.reshape(batch, channels, rows * p, columns * q)
    return F.pad(x, (0, w - columns * q, 0, h - rows * p))


def _unfolding(layer: Any, features: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """MobileViT's patches of a map [B, C, h, w]: [B * area, patches, C]."""
    p, q = layer.patch_height, layer.patch_width
    batch, channels, h, w = features.shape
    rows, columns = windows_along(h, p), windows_along(w, q)
    x = F.interpolate(features, size=(rows * p, columns * q), mode="bilinear", align_corners=False)
    x = x.reshape(batch * channels * rows, p, columns, q).transpose(1, 2)
    x = x.reshape(batch, channels, rows * columns, p * q).transpose(1, 3)
    info = {
        "orig_size": (h, w), "batch_size": batch, "channels": channels, "interpolate": True,
        "num_patches": rows * columns, "num_patches_width": columns, "num_patches_height": rows,
    }  # fmt: skip
    return x.reshape(batch * p * q, rows * columns, channels), info
