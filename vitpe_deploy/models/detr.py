"""The reference detection-style encoder in plain PyTorch (Carion et al. 2020, "DETR", section 3.2).

A strided convolution makes a feature map, its cells are the tokens, and every layer adds the
positions again: to what queries and keys are projected from, never to the values. Layers are
post-norm. The placement is the network's: an absolute encoding answers its ``tokens`` hook as in
any other network, here asked once per layer, so every encoding that names ``"detr"`` fits in, and
one with a bias or a rotation (hybrid) acts in the attention as well.

Letters used in shapes: B batch, N tokens = h*w, D embed_dim, M heads, h and w feature map.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitpe_deploy import encodings
from vitpe_deploy.encodings.base import (
    EncodingSpec,
    Grid,
    PositionEncoding,
    Positions,
    resolve_encodings,
)
from vitpe_deploy.errors import UsageError
from vitpe_deploy.models.attention import attend
from vitpe_deploy.models.initialise import initialise
from vitpe_deploy.models.presets import DetrConfig
from vitpe_deploy.models.vit import Features


class DetrLayer(nn.Module):
    """Attention and MLP, each with a residual and a norm after it."""

    def __init__(self, config: DetrConfig) -> None:
        super().__init__()
        dim = config.embed_dim
        self.num_heads = config.num_heads
        self.qk = nn.Linear(dim, 2 * dim)  # both read tokens with positions
        self.v = nn.Linear(dim, dim)  # tokens without
        self.proj = nn.Linear(dim, dim)
        self.norm1 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.fc1 = nn.Linear(dim, config.feedforward_dim)
        self.fc2 = nn.Linear(config.feedforward_dim, dim)
        self.norm2 = nn.LayerNorm(dim, eps=config.norm_eps)

    def forward(
        self, x: Tensor, encoding: PositionEncoding, positions: Positions, layer: int
    ) -> Tensor:
        """x: [B, N, D] -> [B, N, D]."""
        q, k = self.qk(encoding.tokens(x, positions)).chunk(2, dim=-1)
        attended = attend(
            q,
            k,
            self.v(x),
            num_heads=self.num_heads,
            encoding=encoding,
            positions=positions,
            layer=layer,
        )
        x = self.norm1(x + self.proj(attended))
        out: Tensor = self.norm2(x + self.fc2(F.relu(self.fc1(x))))
        return out


class DetrEncoder(nn.Module):
    """Embedding, post-norm layers with positions in each, head on the mean token."""

    def __init__(self, config: DetrConfig) -> None:
        super().__init__()
        self.config = config
        dim, patch = config.embed_dim, config.patch_size
        self.patch_embed = nn.Conv2d(config.in_channels, dim, patch, patch)
        self.encoding: PositionEncoding = encodings.get_for(config.encoding, "detr").build(
            EncodingSpec(
                grid=config.grid,
                embed_dim=dim,
                num_heads=config.num_heads,
                depth=config.depth,
                prefix_tokens=0,
                params=_as_published(config),
            )
        )
        self.blocks = nn.ModuleList(DetrLayer(config) for _ in range(config.depth))
        self.head = nn.Linear(dim, config.num_classes) if config.num_classes else None
        for module in (self.patch_embed, self.blocks, self.head):
            if module is not None:
                module.apply(initialise)

    def resolve(self, grid: Grid | None) -> Self:
        """Decide positions for an export, in place: baked for a grid, symbolic for None."""
        resolve_encodings(self, grid)
        return self

    def forward_features(self, pixel_values: Tensor) -> Features:
        """Named features: tokens [B, h*w, D], pooled [B, D], feature-map [B, D, h, w].

        pixel_values: [B, C, H, W], H and W multiples of the patch size.
        """
        patch = self.config.patch_size
        height, width = pixel_values.shape[-2:]
        torch._check(height % patch == 0, lambda: f"height {height} does not fit patch {patch}")
        torch._check(width % patch == 0, lambda: f"width {width} does not fit patch {patch}")
        grid = (height // patch, width // patch)
        x = self.patch_embed(pixel_values).flatten(2).transpose(1, 2)  # [B, h*w, D]
        positions = self.encoding.positions(grid)
        for layer, block in enumerate(self.blocks):
            x = block(x, self.encoding, positions, layer)
            x = self.encoding.after_block(x, grid, layer)
        return {
            "tokens": x,
            "pooled": x.mean(dim=1),
            "feature-map": x.transpose(1, 2).unflatten(2, grid),
        }

    def forward_head(self, features: Features) -> Tensor:
        """Logits [B, classes] of the mean token."""
        if self.head is None:
            raise UsageError(
                "this model has no classification head", hint="Ask for pooled or tokens."
            )
        logits: Tensor = self.head(features["pooled"])
        return logits

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Logits [B, classes], or pooled features [B, D] without a head."""
        features = self.forward_features(pixel_values)
        return features["pooled"] if self.head is None else self.forward_head(features)


def _as_published(config: DetrConfig) -> Mapping[str, Any]:
    """The encoding's options, with DETR's own sinusoids where the config does not say."""
    params = config.encoding_params
    if config.encoding == "sincos-2d":
        return {"layout": "detr", **params}
    if config.encoding == "hybrid" and params.get("absolute", "sincos-2d") == "sincos-2d":
        layout = {"layout": "detr", **(params.get("absolute_params") or {})}
        return {**params, "absolute": "sincos-2d", "absolute_params": layout}
    return params
