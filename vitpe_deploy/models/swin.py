"""The reference Swin Transformer, both versions, in plain PyTorch (Liu et al. 2021 and 2022).

Any image size: the picture is padded to whole patches, every map to whole windows and every merge
to even sides, with zeros at the right and at the bottom. All movement of tokens is in
:mod:`vitpe_deploy.models.windows`.

Version 1 norms before each branch and attends with scaled dot products. Version 2 norms after each
branch, attends with cosines times a learned scale, and its keys have no bias.

Letters used in shapes: B batch, N tokens of a map, D width of a stage, M heads, W windows, n tokens
of a window, h and w the map.
"""

from __future__ import annotations

import math
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitpe_deploy import encodings
from vitpe_deploy.encodings.base import EncodingSpec, Grid, PositionEncoding, Resolved
from vitpe_deploy.errors import UsageError
from vitpe_deploy.models.initialise import initialise
from vitpe_deploy.models.presets import SwinConfig
from vitpe_deploy.models.vit import Features
from vitpe_deploy.models.windows import (
    BakedPlan,
    WindowPlan,
    gather_tokens,
    merge_index,
    plan_windows,
)

MAX_LOGIT_SCALE = math.log(100.0)
"""Cosines are multiplied by at most 100 (Swin V2, section 3.2)."""


class WindowAttention(nn.Module):
    """Attention inside windows, with the encoding that belongs to it."""

    def __init__(self, config: SwinConfig, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.window = config.window
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.cosine = config.version == 2
        if self.cosine:
            self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), math.log(10.0)))
            keep = torch.ones(3, dim)
            keep[1] = 0.0  # keys have no bias
            self.bias_mask: Tensor
            self.register_buffer("bias_mask", keep.flatten(), persistent=False)
        encoding = encodings.get_for(config.encoding, "swin")
        self.encoding: PositionEncoding | Resolved = encoding.build(
            EncodingSpec(
                grid=config.pretrained_window or config.window,
                embed_dim=dim,
                num_heads=num_heads,
                depth=1,
                prefix_tokens=0,
                params=config.encoding_params,
            )
        )

    def forward(self, x: Tensor, plan: WindowPlan) -> Tensor:
        """x: [B, N, D] -> [B, N, D]."""
        batch = x.shape[0]
        x = plan.partition(x)  # [B*W, n, D]
        bias = self.qkv.bias * self.bias_mask if self.cosine else self.qkv.bias
        qkv = F.linear(x, self.qkv.weight, bias).reshape(*x.shape[:2], 3, self.num_heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # 3 x [B*W, M, n, D/M]
        logit_scale: float | None = None
        if self.cosine:
            factor = self.logit_scale.clamp(max=MAX_LOGIT_SCALE).exp()
            q, k = F.normalize(q, dim=-1) * factor, F.normalize(k, dim=-1)
            logit_scale = 1.0
        relative = self.encoding.attention_bias(self.encoding.positions(self.window), 0)
        x = F.scaled_dot_product_attention(
            q, k, v, attn_mask=plan.bias(relative, batch), scale=logit_scale
        )
        # Padding leaves before the projection, which then has nothing to do for it.
        out: Tensor = self.proj(plan.merge(x.transpose(1, 2).flatten(2), batch))
        return out


class Block(nn.Module):
    """Window attention and MLP, each with a residual; the version says where the norms are."""

    def __init__(self, config: SwinConfig, dim: int, num_heads: int) -> None:
        super().__init__()
        self.post_norm = config.version == 2
        self.norm1 = nn.LayerNorm(dim)
        self.attn = WindowAttention(config, dim, num_heads)
        self.norm2 = nn.LayerNorm(dim)
        hidden = int(dim * config.mlp_ratio)
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden),
            nn.GELU(),
            nn.Dropout(config.drop_rate),
            nn.Linear(hidden, dim),
            nn.Dropout(config.drop_rate),
        )
        self.drop = nn.Dropout(config.drop_rate)

    def forward(self, x: Tensor, plan: WindowPlan) -> Tensor:
        """x: [B, N, D] -> [B, N, D]."""
        if self.post_norm:
            x = x + self.norm1(self.drop(self.attn(x, plan)))
            x = x + self.norm2(self.mlp(x))
        else:
            x = x + self.drop(self.attn(self.norm1(x), plan))
            x = x + self.mlp(self.norm2(x))
        return x


class PatchMerging(nn.Module):
    """2x2 tokens become one of twice the width."""

    def __init__(self, config: SwinConfig, dim: int) -> None:
        super().__init__()
        self.post_norm = config.version == 2
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)
        self.norm = nn.LayerNorm(2 * dim if self.post_norm else 4 * dim)

    def forward(self, x: Tensor, index: Tensor, *, padded: bool) -> Tensor:
        """x: [B, h*w, D] -> [B, ceil(h/2)*ceil(w/2), 2D]."""
        batch, _, dim = x.shape
        x = gather_tokens(x, index, padded=padded).reshape(batch, -1, 4 * dim)
        x = self.norm(self.reduction(x)) if self.post_norm else self.reduction(self.norm(x))
        return x


class Stage(nn.Module):
    """Patch merging (but in the first stage), then blocks of plain and shifted windows in turn."""

    def __init__(self, config: SwinConfig, index: int) -> None:
        super().__init__()
        self.config = config
        dim, heads = config.widths[index], config.num_heads[index]
        self.merging = PatchMerging(config, dim // 2) if index else None
        self.blocks = nn.ModuleList(Block(config, dim, heads) for _ in range(config.depths[index]))
        self.baked: nn.ModuleList | None = None
        self.baked_for: Grid | None = None

    def _plans(self, grid: Grid, device: torch.device | None = None) -> list[WindowPlan]:
        """The plain and the shifted plan of a map; no second one for a single block."""
        window = self.config.window
        shifts: list[Grid | None] = [None, (window[0] // 2, window[1] // 2)]
        return [
            plan_windows(grid, window, shift, small_map=self.config.small_map, device=device)
            for shift in shifts[: len(self.blocks)]
        ]

    def bake(self, grid: Grid) -> None:
        """Hold the plans of one map as constants."""
        self.baked = nn.ModuleList(BakedPlan(plan) for plan in self._plans(grid))
        self.baked_for = grid

    def forward(self, x: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        """x: [B, h*w, D] -> tokens of this stage and its map."""
        if self.merging is not None:
            index, padded = merge_index(grid, x.device)
            x = self.merging(x, index, padded=padded)
            grid = merged(grid)
        if self.baked is None:
            plans = self._plans(grid, x.device)
        elif grid == self.baked_for:
            plans = [plan() for plan in self.baked]
        else:
            raise RuntimeError(f"windows are baked for map {self.baked_for}, got {grid}")
        for i, block in enumerate(self.blocks):
            x = block(x, plans[i % 2])
        return x, grid


class SwinTransformer(nn.Module):
    """Patch embedding, stages, final norm, mean over the last map, head."""

    def __init__(self, config: SwinConfig) -> None:
        super().__init__()
        self.config = config
        patch, dim = config.patch_size, config.embed_dim
        self.patch_embed = nn.Conv2d(config.in_channels, dim, patch, patch)
        self.patch_norm = nn.LayerNorm(dim)
        self.pos_drop = nn.Dropout(config.drop_rate)
        self.stages = nn.ModuleList(Stage(config, i) for i in range(len(config.depths)))
        self.norm = nn.LayerNorm(config.widths[-1])
        self.head = nn.Linear(config.widths[-1], config.num_classes) if config.num_classes else None
        self.apply(initialise)

    @property
    def encoding(self) -> PositionEncoding | Resolved:
        """The encoding of the first layer; the others differ in their parameters only."""
        stage = self.stages[0]
        assert isinstance(stage, Stage)
        block = stage.blocks[0]
        assert isinstance(block, Block)
        return block.attn.encoding

    def resolve(self, grid: Grid | None) -> Self:
        """Make positions and windows constants for an export, in place.

        The bias of a window does not depend on the size of the image, so it becomes a constant
        even when that is dynamic; where windows lie does.

        Args:
            grid: patch grid of the input, padding included; None when it is dynamic.
        """
        for stage in self.stages:
            assert isinstance(stage, Stage)
            if grid is not None:
                grid = merged(grid) if stage.merging is not None else grid
                stage.bake(grid)
            for block in stage.blocks:
                assert isinstance(block, Block)
                encoding = block.attn.encoding
                if isinstance(encoding, PositionEncoding):
                    block.attn.encoding = Resolved(encoding, block.attn.window)
        return self

    def embed(self, pixel_values: Tensor) -> tuple[Tensor, Grid]:
        """pixel_values: [B, C, H, W] -> tokens [B, h*w, D] and the grid; borders are zeros."""
        patch = self.config.patch_size
        if not all(isinstance(n, int) and n % patch == 0 for n in pixel_values.shape[-2:]):
            # patch - 1 zeros always complete the last patch, and never make one of zeros only.
            pixel_values = F.pad(pixel_values, (0, patch - 1, 0, patch - 1))
        x = self.patch_embed(pixel_values)  # [B, D, h, w]
        grid = (x.shape[2], x.shape[3])
        return self.pos_drop(self.patch_norm(x.flatten(2).transpose(1, 2))), grid

    def forward_features(self, pixel_values: Tensor) -> Features:
        """Named features of the last map: tokens [B, h*w, D], feature-map [B, D, h, w], pooled."""
        x, grid = self.embed(pixel_values)
        for stage in self.stages:
            x, grid = stage(x, grid)
        x = self.norm(x)
        return {
            "tokens": x,
            "feature-map": x.transpose(1, 2).unflatten(2, grid),
            "pooled": x.mean(dim=1),
        }

    def forward_head(self, features: Features) -> Tensor:
        """Logits [B, classes]."""
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


def merged(grid: Grid) -> Grid:
    """The map after patch merging; odd sides are rounded up."""
    return (grid[0] + 1) // 2, (grid[1] + 1) // 2
