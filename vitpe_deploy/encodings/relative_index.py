"""Where a pair of patches reads a relative table, vectorised.

The offset of a pair is query minus key, shifted by n - 1 so that it starts at 0. On three patches:

    query / key   0  1  2
        0          2  1  0
        1          3  2  1
        2          4  3  2

Letters used in shapes: K independent biases (heads, or layers times heads), h and w patch grid,
L leading tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


def offset_index(count: int, device: torch.device | None = None) -> Tensor:
    """Shifted offsets on one axis: [n, n] with values 0..2n-2, ``n - 1`` on the diagonal."""
    index = torch.arange(count, device=device)
    return index.unsqueeze(1) - index + (count - 1)


def grid_index(h: int, w: int, device: torch.device | None = None) -> Tensor:
    """Rows of a flat table for all pairs of a grid, as Swin and BEiT number them.

    The pair with row offset a and column offset b (both shifted) reads row ``a (2w - 1) + b``.

    Returns:
        [h*w, h*w] with values 0..(2h-1)(2w-1)-1.
    """
    axes = torch.meshgrid(
        torch.arange(h, device=device), torch.arange(w, device=device), indexing="ij"
    )
    row, column = (axis.flatten() for axis in axes)  # [h*w]
    rows = row.unsqueeze(1) - row + (h - 1)
    columns = column.unsqueeze(1) - column + (w - 1)
    return rows * (2 * w - 1) + columns


def gather_line(table: Tensor, count: int) -> Tensor:
    """Spread a distance table over all pairs of a line: [K, 2n-1] -> [K, n, n]."""
    index = offset_index(count, table.device).flatten()
    return torch.unflatten(table.index_select(1, index), 1, (count, count))


def gather_grid(table: Tensor, h: int, w: int) -> Tensor:
    """Spread a table over all pairs of a grid, one axis after the other.

    Rows first, where whole lines of the table are copied; a single Gather by
    :func:`grid_index` would need that [h*w, h*w] index in the graph.

    Args:
        table: [K, 2h-1, 2w-1].
        h: rows, may be a ``torch.SymInt``.
        w: columns, may be a ``torch.SymInt``.

    Returns:
        [K, h*w, h*w].
    """
    device = table.device
    pairs = table.index_select(1, offset_index(h, device).flatten())  # [K, h*h, 2w-1]
    pairs = pairs.index_select(2, offset_index(w, device).flatten())  # [K, h*h, w*w]
    pairs = torch.unflatten(torch.unflatten(pairs, 2, (w, w)), 1, (h, h))  # [K, h, h, w, w]
    return pairs.transpose(2, 3).reshape(-1, h * w, h * w)


def with_leading_tokens(bias: Tensor, leading: int, values: Tensor) -> Tensor:
    """Frame the bias of patch pairs with that of the tokens in front of them.

    Args:
        bias: [K, N, N] between patches.
        leading: L, the number of tokens in front.
        values: [3, K]: leading query to patch, patch to leading key, leading to leading.

    Returns:
        [K, L + N, L + N].
    """
    if not leading:
        return bias
    count = bias.shape[-1]
    to_patch, from_patch, between = values.unsqueeze(-1).unsqueeze(-1)  # 3 x [K, 1, 1]
    top = torch.cat(
        [between.expand(-1, leading, leading), to_patch.expand(-1, leading, count)], dim=2
    )
    bottom = torch.cat([from_patch.expand(-1, count, leading), bias], dim=2)
    return torch.cat([top, bottom], dim=1)
