"""The reference Vision Transformer in plain PyTorch (Dosovitskiy et al. 2021).

Any positional encoding of :mod:`vitpe_deploy.encodings` that names ``"vit"`` fits in. The network
asks its encoding once per forward pass for positions on the current grid and hands them to the
hooks; it has no positional code of its own.

Letters used in shapes: B batch, N tokens, D embed_dim, M heads, h and w patch grid.
"""

from __future__ import annotations

from typing import Self, TypeAlias

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
from vitpe_deploy.models.presets import ViTConfig

Features: TypeAlias = dict[str, Tensor]


class Attention(nn.Module):
    """Multi-head self-attention with a packed qkv projection."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.qkv = nn.Linear(config.embed_dim, 3 * config.embed_dim)
        self.proj = nn.Linear(config.embed_dim, config.embed_dim)

    def forward(
        self, x: Tensor, encoding: PositionEncoding, positions: Positions, layer: int
    ) -> Tensor:
        """x: [B, N, D] -> [B, N, D]."""
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))  # [B, N, 3, M, D/M]
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # 3 x [B, M, N, D/M]
        q, k = encoding.rotate(q, k, positions, layer)
        bias = encoding.attention_bias(positions, layer)
        query_bias = encoding.query_bias(q, positions, layer)
        if query_bias is not None:
            bias = query_bias if bias is None else bias + query_bias
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        out: Tensor = self.proj(x.transpose(1, 2).flatten(2))  # [B, N, D]
        return out


class Mlp(nn.Module):
    """Two linear layers with GELU between."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        hidden = int(config.embed_dim * config.mlp_ratio)
        self.fc1 = nn.Linear(config.embed_dim, hidden)
        self.fc2 = nn.Linear(hidden, config.embed_dim)
        self.drop = nn.Dropout(config.drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, N, D] -> [B, N, D]."""
        out: Tensor = self.drop(self.fc2(self.drop(F.gelu(self.fc1(x)))))
        return out


class LayerScale(nn.Module):
    """Multiply each channel by a learned factor."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(embed_dim))

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, N, D] -> [B, N, D]."""
        return x * self.gamma


class Block(nn.Module):
    """Pre-norm attention and MLP, each with a residual."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        dim = config.embed_dim
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(config)
        self.ls1 = LayerScale(dim) if config.layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(config)
        self.ls2 = LayerScale(dim) if config.layer_scale else nn.Identity()
        self.drop = nn.Dropout(config.drop_rate)

    def forward(
        self, x: Tensor, encoding: PositionEncoding, positions: Positions, layer: int
    ) -> Tensor:
        """x: [B, N, D] -> [B, N, D]."""
        x = x + self.drop(self.ls1(self.attn(self.norm1(x), encoding, positions, layer)))
        out: Tensor = x + self.ls2(self.mlp(self.norm2(x)))
        return out


class VisionTransformer(nn.Module):
    """Patch embedding, prefix tokens, blocks, final norm, head."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.embed_dim
        self.patch_embed = nn.Conv2d(config.in_channels, dim, config.patch_size, config.patch_size)
        self.prefix = (
            nn.Parameter(torch.zeros(1, config.prefix_tokens, dim))
            if config.prefix_tokens
            else None
        )
        self.registers = (
            nn.Parameter(torch.zeros(1, config.register_tokens, dim))
            if config.register_tokens
            else None
        )
        self.encoding: PositionEncoding = encodings.get(config.encoding).build(
            EncodingSpec(
                grid=config.grid,
                embed_dim=dim,
                num_heads=config.num_heads,
                depth=config.depth,
                prefix_tokens=config.prefix_tokens,
                register_tokens=config.register_tokens,
                params=config.encoding_params,
            )
        )
        self.pos_drop = nn.Dropout(config.drop_rate)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        heads = config.num_classes > 0
        self.head = nn.Linear(dim, config.num_classes) if heads else None
        self.head_dist = (
            nn.Linear(dim, config.num_classes) if heads and config.distillation_token else None
        )
        self.apply(_initialise)
        for tokens in (self.prefix, self.registers):
            if tokens is not None:
                nn.init.trunc_normal_(tokens, std=0.02)

    def resolve(self, grid: Grid | None) -> Self:
        """Decide positions for an export, in place: baked for a grid, symbolic for None."""
        resolve_encodings(self, grid)
        return self

    def embed(self, pixel_values: Tensor) -> tuple[Tensor, Positions, Grid]:
        """Tokens with absolute positions, the positions, the patch grid.

        pixel_values: [B, C, H, W] -> [B, prefix + registers + h*w, D].
        """
        patch = self.config.patch_size
        height, width = pixel_values.shape[-2:]
        torch._check(height % patch == 0, lambda: f"height {height} does not fit patch {patch}")
        torch._check(width % patch == 0, lambda: f"width {width} does not fit patch {patch}")
        grid = (height // patch, width // patch)
        x = self.patch_embed(pixel_values).flatten(2).transpose(1, 2)  # [B, h*w, D]
        batch = x.shape[0]
        if self.prefix is not None:
            x = torch.cat([self.prefix.expand(batch, -1, -1), x], dim=1)
        positions = self.encoding.positions(grid)
        x = self.pos_drop(self.encoding.tokens(x, positions))
        if self.registers is not None:
            split = self.config.prefix_tokens
            registers = self.registers.expand(batch, -1, -1)
            x = torch.cat([x[:, :split], registers, x[:, split:]], dim=1)
        return x, positions, grid

    def forward_features(self, pixel_values: Tensor) -> Features:
        """Named features: tokens [B, N, D], cls [B, D], pooled [B, D], feature-map [B, D, h, w]."""
        x, positions, grid = self.embed(pixel_values)
        for layer, block in enumerate(self.blocks):
            x = block(x, self.encoding, positions, layer)
            x = self.encoding.after_block(x, grid, layer)
        x = self.norm(x)
        leading = self.config.prefix_tokens + self.config.register_tokens
        patches = x[:, leading:]
        features = {"tokens": x, "feature-map": patches.transpose(1, 2).unflatten(2, grid)}
        if self.config.class_token:
            features["cls"] = x[:, 0]
        features["pooled"] = x[:, 0] if self.config.pool == "cls" else patches.mean(dim=1)
        return features

    def forward_head(self, features: Features) -> Tensor:
        """Logits [B, classes]."""
        if self.head is None:
            raise UsageError(
                "this model has no classification head", hint="Ask for pooled or tokens."
            )
        logits: Tensor = self.head(features["pooled"])
        if self.head_dist is not None:
            logits = (logits + self.head_dist(features["tokens"][:, 1])) / 2
        return logits

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Logits [B, classes], or pooled features [B, D] without a head."""
        features = self.forward_features(pixel_values)
        return features["pooled"] if self.head is None else self.forward_head(features)


def _initialise(module: nn.Module) -> None:
    """Weights at the scale of a trained network, so that every layer moves the result."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=module.in_features**-0.5)
        nn.init.normal_(module.bias, std=0.02)
    elif isinstance(module, nn.Conv2d):
        fan_in = module.weight[0].numel()
        nn.init.normal_(module.weight, std=fan_in**-0.5)
    elif isinstance(module, nn.LayerNorm):
        nn.init.normal_(module.weight, mean=1.0, std=0.05)
        nn.init.normal_(module.bias, std=0.05)
    elif isinstance(module, LayerScale):
        nn.init.normal_(module.gamma, mean=0.5, std=0.1)
