"""Continuous relative bias of a window: a small MLP of the log offset.

From Liu et al. 2022, "Swin Transformer V2", section 3.3.

An offset d along an axis becomes ``sign(x) * log2(1 + |x|) / log2(8)`` with ``x = 8 d / (p - 1)``,
where p is the *pretrained* window on that axis, whatever the window is now: offsets keep their
meaning, and those beyond the pretrained window extrapolate gently. The MLP's answer z becomes
``16 * sigmoid(z)``. (torchvision normalises by the current window: the same as long as the window
is the pretrained one, and another model when it is not.)
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitpe_deploy.encodings.base import (
    EncodingDescription,
    EncodingSpec,
    Grid,
    Network,
    PositionEncoding,
    Positions,
)
from vitpe_deploy.encodings.relative_index import gather_grid

BOUND = 16.0
"""Largest bias; the sigmoid keeps it from growing without end (section 3.2 of the paper)."""


def log_offsets(size: int, pretrained: int, device: torch.device | None = None) -> Tensor:
    """The coordinates -(size-1)..size-1 on Swin V2's log scale; +-log2(9)/3 at the pretrained ends.

    Args:
        size: tokens of the window along this axis; may be a ``torch.SymInt``.
        pretrained: tokens of the window that the MLP was trained with.
        device: where the result lives.

    Returns:
        float32 [2*size - 1].
    """
    offset = torch.arange(2 * size - 1, device=device, dtype=torch.float32) - (size - 1)
    offset = offset * 8 / max(pretrained - 1, 1)
    return torch.sign(offset) * torch.log2(offset.abs() + 1) / 3


class LogCPB(PositionEncoding):
    """An MLP 2 -> hidden -> M over log offsets, gathered and added to the scaled logits."""

    kind: ClassVar[str] = "log-cpb"
    networks: ClassVar[tuple[Network, ...]] = ("swin",)

    def __init__(self, spec: EncodingSpec, *, hidden: int = 512) -> None:
        super().__init__(spec)
        self.hidden = hidden
        self.fc1 = nn.Linear(2, hidden)
        self.fc2 = nn.Linear(hidden, spec.num_heads, bias=False)
        for layer in (self.fc1, self.fc2):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)

    def _bias(self, h: int, w: int) -> Positions:
        device = self.fc1.weight.device
        rows = log_offsets(h, self.spec.grid[0], device).unsqueeze(1).expand(-1, 2 * w - 1)
        columns = log_offsets(w, self.spec.grid[1], device).unsqueeze(0).expand(2 * h - 1, -1)
        offsets = torch.stack([rows, columns], dim=-1)  # [2h-1, 2w-1, 2]
        table = BOUND * torch.sigmoid(self.fc2(F.relu(self.fc1(offsets))))  # [2h-1, 2w-1, M]
        return {"bias": gather_grid(table.permute(2, 0, 1), h, w).unsqueeze(0)}

    def positions(self, grid: Grid) -> Positions:
        """The MLP on every offset of a window."""
        return self._bias(*grid)

    def fit(self, grid: Grid) -> Positions:
        """Bias [1, M, h*w, h*w]: the MLP leaves the file."""
        with torch.no_grad():
            return self._bias(*grid)

    def in_graph(self, h: int, w: int) -> Positions:
        """The same expression, its offsets from Range."""
        return self._bias(h, w)

    def attention_bias(self, positions: Positions, layer: int) -> Tensor:
        """[1, M, h*w, h*w]."""
        return positions["bias"]

    def describe(self) -> EncodingDescription:
        """The pretrained window; there is no table to resample."""
        return EncodingDescription(self.kind, self.spec.grid, 0, None, {"hidden": self.hidden})


ENCODING = LogCPB
