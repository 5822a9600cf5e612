"""Small trained networks, one per positional encoding, with their weights in the package.

``digits-<encoding>`` classifies the handwritten digits that scikit-learn ships. The weights come
from ``benchmarks/train_digits.py``, which repeats them bit by bit, and their accuracy at sizes
they were not trained for from ``benchmarks/digits_accuracy.py``. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitpe_deploy.models.presets import SwinConfig, VideoConfig, ViTConfig
from vitpe_deploy.preprocess import Preprocess

PREFIX = "digits-"

LABELS = tuple("0123456789")
"""Names of the classes, in the order of the logits."""

PREPROCESS = Preprocess(mean=(0.3, 0.3, 0.3), std=(0.375, 0.375, 0.375), interpolation="bicubic")
"""Rounded statistics of the training pixels; the one channel is the first of three equal ones."""

ORIGIN = "trained on digits (embedded)"

_SIDE_PX = 32
_FOLDER = Path(__file__).parent / "weights"


def _vit(encoding: str) -> ViTConfig:
    return ViTConfig(
        image_size=(_SIDE_PX, _SIDE_PX),
        patch_size=4,
        in_channels=1,
        embed_dim=48,
        depth=3,
        num_heads=3,
        mlp_ratio=2.0,
        num_classes=len(LABELS),
        encoding=encoding,
    )


def _swin(encoding: str, version: int) -> SwinConfig:
    return SwinConfig(
        image_size=(_SIDE_PX, _SIDE_PX),
        patch_size=4,
        in_channels=1,
        embed_dim=24,
        depths=(2, 2),
        num_heads=(2, 4),
        window=(4, 4),
        version=2 if version == 2 else 1,
        mlp_ratio=3.0,
        num_classes=len(LABELS),
        encoding=encoding,
        encoding_params={"hidden": 64} if encoding == "log-cpb" else {},
    )


def _video(encoding: str, window: tuple[int, int, int] | None) -> VideoConfig:
    return VideoConfig(
        image_size=(_SIDE_PX, _SIDE_PX),
        frames=4,
        tubelet=2,
        patch_size=4,
        in_channels=1,
        embed_dim=48,
        depth=3,
        num_heads=3,
        window=window,
        mlp_ratio=2.0,
        num_classes=len(LABELS),
        encoding=encoding,
    )


VIT_PRESETS: Mapping[str, ViTConfig] = {
    PREFIX + encoding: _vit(encoding)
    for encoding in (
        "none",
        "learned-1d",
        "learned-2d",
        "sincos-1d",
        "sincos-2d",
        "relative-1d",
        "relative-2d",
        "decomposed",
        "conditional",
        "rope-1d",
        "rope-2d",
        "rope-mixed",
        "hybrid",
    )
}

SWIN_PRESETS: Mapping[str, SwinConfig] = {
    f"{PREFIX}window-bias": _swin("window-bias", 1),
    f"{PREFIX}log-cpb": _swin("log-cpb", 2),
}

VIDEO_PRESETS: Mapping[str, VideoConfig] = {
    f"{PREFIX}relative-3d": _video("relative-3d", (2, 4, 4)),
    f"{PREFIX}sincos-3d": _video("sincos-3d", None),
}

PRESETS: Mapping[str, Any] = {**VIT_PRESETS, **SWIN_PRESETS, **VIDEO_PRESETS}
"""Every embedded model."""


def is_embedded(model: str) -> bool:
    """Whether MODEL is one of these."""
    return model in PRESETS


def weights_path(model: str) -> Path:
    """The safetensors file of an embedded model."""
    return _FOLDER / f"{model}.safetensors"


def log_path(model: str) -> Path:
    """The training log of an embedded model: settings, versions, loss and accuracy per epoch."""
    return _FOLDER / f"{model}.json"
