"""Adaptive average pooling to more than one cell a side, written for the tracer.

torch's exporter has no such operator for maps of symbolic size. A cell averages whole rows and
columns, so the pooling is separable: one matrix of weights for each axis, made of the size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def pools_to_a_grid(module: nn.Module) -> bool:
    """Whether a module averages a map into a number of cells other than one."""
    if not isinstance(module, nn.AdaptiveAvgPool2d):
        return False
    return tuple(_cells(module)) != (1, 1) and None not in _cells(module)


def pooled_to_a_grid(pool: Any, x: Tensor) -> Tensor:
    """[B, C, h, w] -> [B, C, rows, columns] cells."""
    rows, columns = _cells(pool)
    h, w = x.shape[-2:]
    by_row, by_column = _weights(rows, h), _weights(columns, w)
    return torch.matmul(torch.matmul(by_row, x), by_column.t())


def _cells(pool: nn.AdaptiveAvgPool2d) -> tuple[Any, Any]:
    size = pool.output_size
    return (size[0], size[1]) if isinstance(size, tuple) else (size, size)


def _weights(cells: int, n: int) -> Tensor:
    """[cells, n]: cell i averages places floor(i*n/cells) to ceil((i+1)*n/cells) - 1."""
    places, cell = torch.arange(n), torch.arange(cells)
    first = (cell * n) // cells
    behind = ((cell + 1) * n + cells - 1) // cells
    inside = (places >= first.unsqueeze(1)) & (places < behind.unsqueeze(1))
    return inside.float() / (behind - first).float().unsqueeze(1)
