"""What encodings with a learned bias per head share: layers, placement, the attention hook."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from vitpe_deploy.encodings.base import EncodingSpec, PositionEncoding, Positions
from vitpe_deploy.errors import UsageError

Placement: TypeAlias = Literal["after", "scaled"]
"""Where the bias joins q k^T: ``after`` the division by sqrt(d), or ``scaled`` together with it."""


class RelativeBias(PositionEncoding):
    """Positions ``bias`` [layers, M, N, N]: one per network when shared, else one per layer.

    Args of the encodings:
        shared: one table for all layers. A bias is made once per table, and baked once per table.
        placement: ``after`` adds the bias to the scaled logits (Swin, BEiT);
            ``scaled`` to q k^T, so that it is divided by sqrt(head_dim) as well.
    """

    def __init__(self, spec: EncodingSpec, *, shared: bool, placement: Placement) -> None:
        super().__init__(spec)
        if placement not in ("after", "scaled"):
            raise UsageError(
                f"bias placement {placement!r} is not known", hint="Choose after or scaled."
            )
        self.shared = shared
        self.placement: Placement = placement
        self.layers = 1 if shared else spec.depth

    def placed(self, bias: Tensor) -> Positions:
        """Positions from biases [layers * M, N, N], scaled where the placement asks for it."""
        bias = torch.unflatten(bias, 0, (self.layers, self.spec.num_heads))
        return {"bias": bias * self.spec.head_dim**-0.5 if self.placement == "scaled" else bias}

    def attention_bias(self, positions: Positions, layer: int) -> Tensor | None:
        """[1, M, N, N], heads first."""
        bias = positions["bias"]
        return bias if self.shared else bias[layer].unsqueeze(0)
