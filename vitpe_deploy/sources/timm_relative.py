"""Relative positions of timm's global ViTs (BEiT, relpos) computed from a symbolic grid.

timm has no network of this kind that runs at more than one size: it makes one for each size, with
the table resampled by its loader. Both of its rules can be written in a graph:

* a table (``relative_position_bias_table``) is read linearly on BEiT's uneven grid, on each axis
  by itself. The ratio of that grid has no closed form, so where the old rows lie is stored for
  every number of patches up to :data:`LARGEST`, and the weights follow from one row of that;
* an MLP of log distances (``mlp``) is evaluated on the distances of the grid.

The reference stays the network that timm makes for each size.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitpe_deploy.encodings.geometric_grid import geometric_offsets
from vitpe_deploy.encodings.relative_index import gather_grid, with_leading_tokens

LARGEST = 256
"""Patches per axis up to which the uneven grid is stored; the engine refuses to read beyond."""


@dataclass
class Grid:
    """Rows and columns of patches of the picture that is on its way through the network."""

    rows: int = 0
    columns: int = 0


def writes_in_graph(network: nn.Module) -> bool:
    """Whether all that belongs to the size of a network are relative positions of these kinds."""
    embed = getattr(network, "patch_embed", None)
    if embed is None or not hasattr(embed, "strict_img_size"):
        return False
    if getattr(network, "pos_embed", None) is not None:
        return False
    owners = [
        m for m in network.modules() if getattr(m, "relative_position_index", None) is not None
    ]
    return bool(owners) and all(_bias_method(m) is not None for m in owners)


def _bias_method(module: Any) -> str | None:
    """The method that gives the bias, for modules whose window is the whole grid."""
    if hasattr(module, "rel_coords_log") and getattr(module, "mode", None) in ("swin", "cr"):
        return "get_bias"
    if getattr(module, "relative_position_bias_table", None) is None:
        return None
    for name in ("get_bias", "_get_rel_pos_bias"):
        if hasattr(module, name):
            return name
    # BEiT's shared table is a module whose forward gives the bias of all layers.
    return "forward" if not any(True for _ in module.children()) else None


def write_relative(network: Any) -> None:
    """Let a copy of a native network run at any grid."""
    grid = Grid()
    embed = network.patch_embed
    embed.strict_img_size = False
    ph, pw = embed.patch_size

    def look(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        grid.rows, grid.columns = inputs[0].shape[-2] // ph, inputs[0].shape[-1] // pw

    embed.register_forward_pre_hook(look)
    for module in network.modules():
        if getattr(module, "relative_position_index", None) is None:
            continue
        method = str(_bias_method(module))
        compute: Any = _from_mlp if hasattr(module, "rel_coords_log") else _from_table
        squeeze = method == "forward"

        def bias(self: Any, _compute: Any = compute, _squeeze: bool = squeeze) -> Tensor:
            found: Tensor = _compute(self, grid.rows, grid.columns)
            return found if _squeeze else found.unsqueeze(0)

        setattr(module, method, MethodType(bias, module))


def _from_table(module: Any, h: int, w: int) -> Tensor:
    """[M, L + h*w, L + h*w] from a table [(2h0-1)(2w0-1) + 3, M]."""
    h0, w0 = module.window_size
    table = module.relative_position_bias_table
    count = (2 * h0 - 1) * (2 * w0 - 1)
    heads = table.shape[1]
    picture = table[:count].reshape(2 * h0 - 1, 2 * w0 - 1, heads)
    height, width = (torch.scalar_tensor(n, dtype=torch.float32) for n in (h, w))
    native = (height == h0).float() * (width == w0).float()
    by_row, by_column = _uneven(h0, h, native), _uneven(w0, w, native)
    rows = (by_row @ picture.reshape(2 * h0 - 1, -1)).reshape(-1, 2 * w0 - 1, heads)
    fitted = torch.matmul(by_column, rows).permute(2, 0, 1)  # [M, 2h-1, 2w-1]
    leading = 1 if table.shape[0] > count else 0
    return with_leading_tokens(gather_grid(fitted, h, w), leading, table[count:])


def _uneven(n0: int, n: int, native: Tensor) -> Tensor:
    """Weights [2n-1, 2n0-1] of one axis; ``native`` is 1 where timm leaves the table alone."""
    stored = np.stack([geometric_offsets(2 * n0 - 1, 2 * m - 1) for m in range(1, LARGEST + 1)])
    every = torch.from_numpy(stored.astype(np.float32))  # [LARGEST, 2n0-1]
    place = torch.scalar_tensor(n - 1, dtype=torch.int64)
    knots = every.index_select(0, place.reshape(1))[0]
    target = torch.arange(2 * n - 1).float() - (n - 1)
    step = (knots[1:] - knots[:-1]).unsqueeze(0)
    left = (target.unsqueeze(1) - knots[:-1].unsqueeze(0)) / step
    right = (knots[1:].unsqueeze(0) - target.unsqueeze(1)) / step
    # Beyond the last row the table repeats: the outer neighbours never fall.
    left, right = F.pad(left, (1, 0), value=1.0), F.pad(right, (0, 1), value=1.0)
    weights = torch.minimum(left, right).clamp(0, 1)
    same = (target.unsqueeze(1) == torch.arange(2 * n0 - 1).float() - (n0 - 1)).float()
    return native * same + (1 - native) * weights


def _from_mlp(module: Any, h: int, w: int) -> Tensor:
    """[M, L + h*w, L + h*w] from the MLP on all distances of the grid."""
    by_row, by_column = (
        _log_distances(n, size, module.mode)
        for n, size in zip((h, w), module.pretrained_window_size, strict=True)
    )
    rows = by_row.unsqueeze(1).expand(2 * h - 1, 2 * w - 1)
    columns = by_column.unsqueeze(0).expand(2 * h - 1, 2 * w - 1)
    bias = module.mlp(torch.stack([rows, columns], dim=-1)).permute(2, 0, 1)  # [M, 2h-1, 2w-1]
    bias = module.bias_act(gather_grid(bias, h, w))
    if module.bias_gain is not None:
        bias = module.bias_gain * bias
    leading = int(module.prefix_tokens)
    return F.pad(bias, (leading, 0, leading, 0)) if leading else bias


def _log_distances(n: int, pretrained: int, mode: str) -> Tensor:
    """Distances of n patches on the scale of the mode: natural for ``cr``, 8 steps for ``swin``."""
    distance = torch.arange(2 * n - 1).float() - (n - 1)
    if mode == "cr":
        return distance.sign() * torch.log(1 + distance.abs())
    steps = pretrained - 1 if pretrained > 0 else torch.scalar_tensor(n - 1, dtype=torch.float32)
    distance = distance / steps * 8
    return distance.sign() * torch.log2(1 + distance.abs()) / 3
