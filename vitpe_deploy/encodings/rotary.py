"""What the rotary encodings share: the rotation and the rows of leading tokens.

RoPE (Su et al. 2021, equation 34) turns channel pairs of queries and keys by an angle that grows
with the position. The rotation is written in real arithmetic: complex numbers have no ONNX type.
Tables hold one column per channel *pair*, the form that ONNX's RotaryEmbedding takes.

Letters used in shapes: B batch, M heads, N tokens, d head_dim, h and w patch grid.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from vitpe_deploy.encodings.base import Positions
from vitpe_deploy.errors import UsageError

Layout: TypeAlias = Literal["interleaved", "half"]
"""Which channels make a pair: (0,1)(2,3).. or (0,d/2)(1,d/2+1)..."""


def check_layout(layout: str) -> None:
    """Raise UsageError unless ``layout`` is a known pairing of channels."""
    if layout not in ("interleaved", "half"):
        raise UsageError(
            f"rotary layout {layout!r} is not known", hint="Choose interleaved or half."
        )


def check_head_dim(kind: str, head_dim: int, multiple: int) -> None:
    """Raise UsageError unless the channels of a head split evenly into axes and pairs."""
    if head_dim % multiple:
        raise UsageError(
            f"{kind} needs a head size that is a multiple of {multiple}, got {head_dim}",
            hint="Choose embed_dim and num_heads accordingly.",
        )


def rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """Turn every channel pair of ``x`` by its angle.

    Args:
        x: [B, M, N, d].
        cos: cosines, broadcastable to [B, M, N, d/2].
        sin: sines of the same shape.
        layout: ``interleaved`` pairs (x0, x1), (x2, x3)..; for d = 4 and ``half`` the pairs are
            (x0, x2), (x1, x3).

    Returns:
        [B, M, N, d], norms unchanged.
    """
    if layout == "half":
        a, b = x.chunk(2, dim=-1)  # 2 x [B, M, N, d/2]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
    a, b = x[..., ::2], x[..., 1::2]  # 2 x [B, M, N, d/2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


def with_leading_rows(cos: Tensor, sin: Tensor, leading: int) -> Positions:
    """Tables whose first ``leading`` rows leave a token as it is: cos 1, sin 0.

    That costs a few multiplications by one and saves a Slice and a Concat in every block.
    cos, sin: [..., h*w, d/2] -> [..., leading + h*w, d/2].
    """
    if leading:
        shape = (*cos.shape[:-2], leading, cos.shape[-1])
        cos = torch.cat([cos.new_ones(shape), cos], dim=-2)
        sin = torch.cat([sin.new_zeros(shape), sin], dim=-2)
    return {"cos": cos, "sin": sin}
