"""The reference video Transformer in plain PyTorch.

Tubelets of a clip become tokens by a 3-D convolution (Arnab et al. 2021, "ViViT", section 3.2);
attention runs inside video windows that shift every other layer (Liu et al. 2022, "Video Swin
Transformer", section 3.1), or over all tokens; the mean token goes to the head. The width stays the
same throughout: it is a ViT, not a pyramid.

Height and width may be anything that fits the patch, dynamic too. The number of frames belongs to
the model.

Letters used in shapes: B batch, N tokens = t*h*w, D embed_dim, M heads, W windows, n tokens of a
window, T frames, t time steps, h and w patch grid.
"""

from __future__ import annotations

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitpe_deploy import encodings
from vitpe_deploy.encodings.base import (
    EncodingSpec,
    Grid,
    PositionEncoding,
    Positions,
    Resolved,
)
from vitpe_deploy.errors import UsageError
from vitpe_deploy.models.initialise import initialise
from vitpe_deploy.models.presets import VideoConfig
from vitpe_deploy.models.vit import Features
from vitpe_deploy.models.windows import BakedPlan, WindowPlan, plan_windows


class VideoBlock(nn.Module):
    """Pre-norm attention, in windows when there is a plan, and MLP, each with a residual."""

    def __init__(self, config: VideoConfig) -> None:
        super().__init__()
        dim = config.embed_dim
        self.num_heads = config.num_heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
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

    def attend(self, x: Tensor, bias: Tensor | None, plan: WindowPlan | None) -> Tensor:
        """x: [B, N, D], bias None or [1, M, n, n] -> [B, N, D]."""
        batch = x.shape[0]
        if plan is not None:
            x = plan.partition(x)  # [B*W, n, D]
            bias = plan.bias(bias, batch)
        qkv = self.qkv(x).reshape(*x.shape[:2], 3, self.num_heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # 3 x [B*W, M, n, D/M]
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = x.transpose(1, 2).flatten(2)
        out: Tensor = self.proj(x if plan is None else plan.merge(x, batch))
        return out

    def forward(self, x: Tensor, bias: Tensor | None, plan: WindowPlan | None) -> Tensor:
        """x: [B, N, D] -> [B, N, D]."""
        x = x + self.drop(self.attend(self.norm1(x), bias, plan))
        x = x + self.mlp(self.norm2(x))
        return x


class VideoTransformer(nn.Module):
    """Tubelet embedding, blocks, final norm, mean over all tokens, head."""

    def __init__(self, config: VideoConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.embed_dim
        stride = (config.tubelet, config.patch_size, config.patch_size)
        self.patch_embed = nn.Conv3d(config.in_channels, dim, stride, stride)
        kind = encodings.get_for(config.encoding, "video")
        # A relative bias belongs to the window that attention sees, a table to the whole clip.
        self.bias_window = config.window if config.encoding == "relative-3d" else None
        time, *grid = self.bias_window or (config.time_steps, *config.grid)
        self.encoding: PositionEncoding | Resolved = kind.build(
            EncodingSpec(
                grid=(grid[0], grid[1]),
                embed_dim=dim,
                num_heads=config.num_heads,
                depth=config.depth,
                prefix_tokens=0,
                frames=time,
                params=config.encoding_params,
            )
        )
        self.pos_drop = nn.Dropout(config.drop_rate)
        self.blocks = nn.ModuleList(VideoBlock(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, config.num_classes) if config.num_classes else None
        self.baked: nn.ModuleList | None = None
        self.baked_for: Grid | None = None
        self.apply(initialise)

    def resolve(self, grid: Grid | None) -> Self:
        """Make positions and windows constants for an export, in place.

        Args:
            grid: patch grid of one time step; None when it is dynamic. The bias of a window is
                a constant either way.
        """
        if isinstance(self.encoding, PositionEncoding):
            window = None if self.bias_window is None else self.bias_window[1:]
            self.encoding = Resolved(self.encoding, window or grid)
        if grid is not None:
            self.baked = nn.ModuleList(BakedPlan(plan) for plan in self._plans(grid))
            self.baked_for = grid
        return self

    def _plans(self, grid: Grid, device: torch.device | None = None) -> list[WindowPlan]:
        """The plain and the shifted plan; none without windows."""
        window = self.config.window
        if window is None:
            return []
        sizes = (self.config.time_steps, *grid)
        return [
            plan_windows(sizes, window, shift, small_map=self.config.small_map, device=device)
            for shift in (None, tuple(n // 2 for n in window))[: self.config.depth]
        ]

    def embed(self, pixel_values: Tensor) -> tuple[Tensor, Positions, Grid]:
        """pixel_values: [B, C, T, H, W] -> tokens [B, t*h*w, D], positions, grid."""
        config = self.config
        frames, height, width = pixel_values.shape[-3:]
        patch = config.patch_size
        torch._check(
            frames == config.frames, lambda: f"{frames} frames, the model takes {config.frames}"
        )
        torch._check(height % patch == 0, lambda: f"height {height} does not fit patch {patch}")
        torch._check(width % patch == 0, lambda: f"width {width} does not fit patch {patch}")
        grid = (height // patch, width // patch)
        x = self.patch_embed(pixel_values).flatten(2).transpose(1, 2)
        window = grid if self.bias_window is None else self.bias_window[1:]
        positions = self.encoding.positions(window)
        return self.pos_drop(self.encoding.tokens(x, positions)), positions, grid

    def forward_features(self, pixel_values: Tensor) -> Features:
        """Named features: tokens [B, t*h*w, D], feature-map [B, D, t, h, w], pooled [B, D]."""
        x, positions, grid = self.embed(pixel_values)
        if self.baked is None:
            plans = self._plans(grid, x.device)
        elif grid == self.baked_for:
            plans = [plan() for plan in self.baked]
        else:
            raise RuntimeError(f"windows are baked for grid {self.baked_for}, got {grid}")
        for layer, block in enumerate(self.blocks):
            bias = self.encoding.attention_bias(positions, layer)
            x = block(x, bias, plans[layer % 2] if plans else None)
        x = self.norm(x)
        return {
            "tokens": x,
            "feature-map": x.transpose(1, 2).unflatten(2, (self.config.time_steps, *grid)),
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
