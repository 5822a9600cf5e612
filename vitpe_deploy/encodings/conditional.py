"""Conditional positions: a depth-wise convolution over the patch grid (Chu et al. 2021, CPVT).

The zero padding of the convolution tells a patch where the border is, and from there where it
stands. Nothing depends on the size, so there is nothing to fit. CPVT and Twins apply it once,
after the first block.
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
    positional_noise,
)
from vitpe_deploy.errors import UsageError


class Conditional(PositionEncoding):
    """The positional encoding generator (PEG): patches + conv(patches); other tokens untouched.

    Args of the encoding:
        kernel_size: odd, in patches.
        after: index of the block whose output it acts on.
        std: standard deviation of the initial kernel.
    """

    kind: ClassVar[str] = "conditional"
    networks: ClassVar[tuple[Network, ...]] = ("vit",)

    def __init__(
        self, spec: EncodingSpec, *, kernel_size: int = 3, after: int = 0, std: float = 0.5
    ) -> None:
        super().__init__(spec)
        if kernel_size % 2 == 0 or kernel_size < 1:
            raise UsageError(
                f"conditional needs an odd kernel_size, got {kernel_size}", hint="Use 3."
            )
        if not 0 <= after < spec.depth:
            raise UsageError(
                f"conditional cannot act after block {after} of {spec.depth}",
                hint=f"Choose 0 to {spec.depth - 1}.",
            )
        self.after = after
        self.weight = positional_noise(spec.embed_dim, 1, kernel_size, kernel_size, std=std)
        self.bias = nn.Parameter(torch.zeros(spec.embed_dim))

    def positions(self, grid: Grid) -> Positions:
        """Empty: positions arise from the padding."""
        return {}

    def fit(self, grid: Grid) -> Positions:
        """Empty."""
        return {}

    def in_graph(self, h: int, w: int) -> Positions:
        """Empty."""
        return {}

    def after_block(self, x: Tensor, grid: Grid, layer: int) -> Tensor:
        """x: [B, N, D] -> the same shape, patches convolved on their grid after one block."""
        if layer != self.after:
            return x
        leading = self.spec.leading_tokens
        patches = torch.unflatten(x[:, leading:].transpose(1, 2), 2, grid)  # [B, D, h, w]
        mixed = F.conv2d(
            patches,
            self.weight,
            self.bias,
            padding=self.weight.shape[-1] // 2,
            groups=self.spec.embed_dim,
        )
        patches = (patches + mixed).flatten(2).transpose(1, 2)
        return torch.cat([x[:, :leading], patches], dim=1) if leading else patches

    def describe(self) -> EncodingDescription:
        """Kernel and block; the same weights at every size."""
        return EncodingDescription(
            self.kind,
            None,
            self.spec.leading_tokens,
            None,
            {"kernel_size": self.weight.shape[-1], "after": self.after},
        )


ENCODING = Conditional
