"""The core of attention, shared by networks that project queries, keys and values differently.

Letters used in shapes: B batch, N tokens, D embed_dim, M heads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitpe_deploy.encodings.base import PositionEncoding, Positions


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    num_heads: int,
    encoding: PositionEncoding,
    positions: Positions,
    layer: int,
    mask: Tensor | None = None,
) -> Tensor:
    """Multi-head scaled dot-product attention with the encoding's rotation and bias.

    Args:
        q: queries [B, N, D].
        k: keys [B, N, D].
        v: values [B, N, D].
        num_heads: M, a divisor of D.
        encoding: turns q and k, and says the bias of the logits.
        positions: what the encoding said about the current grid.
        layer: index of the layer, for encodings with one set of parameters per layer.
        mask: added to the logits beside the bias, 0 or -inf, [1|B, 1|M, N, N].

    Returns:
        [B, N, D], heads joined, before the output projection.
    """
    q, k, v = (
        torch.unflatten(t, -1, (num_heads, -1)).transpose(1, 2) for t in (q, k, v)
    )  # [B, M, N, D/M]
    q, k = encoding.rotate(q, k, positions, layer)
    parts = (
        encoding.attention_bias(positions, layer),
        encoding.query_bias(q, positions, layer),
        mask,
    )
    bias: Tensor | None = None
    for part in parts:
        if part is not None:
            bias = part if bias is None else bias + part
    x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    return x.transpose(1, 2).flatten(2)  # [B, N, D]
