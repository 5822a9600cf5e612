"""Shapes of the reference networks as plain data, so that refusals need no torch."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from vitpe_deploy.errors import UsageError
from vitpe_deploy.request import closest

DEFAULT_MODEL = "vit_small_patch16_224"

_MAY_BE_ZERO = frozenset({"num_classes", "register_tokens", "projection_dim", "end_token_id"})
_LARGEST = 1_000_000
"""Of any size, count or width; tables of more rows than that are no positions."""


@dataclass(frozen=True, slots=True)
class ViTConfig:
    """Everything that decides the shape of the network.

    Attributes:
        image_size: native height and width in pixels.
        pool: ``cls`` reads the class token, ``mean`` averages the patch tokens.
        class_token: whether there is a cls token; required by ``pool="cls"``.
        distillation_token: DeiT's second prefix token; its own head is averaged with the first.
        register_tokens: extra tokens without position (Darcet et al. 2023).
        layer_scale: whether each branch is multiplied by a learned vector (Touvron et al. 2021).
        drop_rate: dropout in training; inert in eval.
        num_classes: 0 leaves the head out.
    """

    image_size: tuple[int, int] = (224, 224)
    patch_size: int = 16
    in_channels: int = 3
    embed_dim: int = 384
    depth: int = 12
    num_heads: int = 6
    mlp_ratio: float = 4.0
    num_classes: int = 1000
    pool: Literal["cls", "mean"] = "cls"
    class_token: bool = True
    distillation_token: bool = False
    register_tokens: int = 0
    layer_scale: bool = False
    drop_rate: float = 0.0
    encoding: str = "learned-1d"
    encoding_params: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.embed_dim % self.num_heads:
            raise UsageError(
                f"embed_dim {self.embed_dim} is not a multiple of {self.num_heads} heads"
            )
        if self.pool not in ("cls", "mean"):
            raise UsageError(f"pool {self.pool!r} is not known", hint="Choose cls or mean.")
        if self.pool == "cls" and not self.class_token:
            raise UsageError("pool 'cls' needs a class token", hint="Use pool=mean.")
        if any(side % self.patch_size for side in self.image_size):
            raise UsageError(
                f"image_size {self.image_size} is not a multiple of patch size {self.patch_size}"
            )

    @property
    def grid(self) -> tuple[int, int]:
        """Native patch grid."""
        return self.image_size[0] // self.patch_size, self.image_size[1] // self.patch_size

    @property
    def prefix_tokens(self) -> int:
        """cls and distillation tokens."""
        return int(self.class_token) + int(self.distillation_token)


def _vit(patch_size: int, side: int, embed_dim: int, depth: int, num_heads: int) -> ViTConfig:
    return ViTConfig(
        image_size=(side, side),
        patch_size=patch_size,
        embed_dim=embed_dim,
        depth=depth,
        num_heads=num_heads,
    )


VIT_PRESETS: Mapping[str, ViTConfig] = {
    "vit_tiny_patch16_224": _vit(16, 224, 192, 12, 3),
    "vit_small_patch16_224": _vit(16, 224, 384, 12, 6),
    "vit_base_patch16_224": _vit(16, 224, 768, 12, 12),
    "vit_large_patch16_224": _vit(16, 224, 1024, 24, 16),
    "vit_small_patch14_518": _vit(14, 518, 384, 12, 6),
}


@dataclass(frozen=True, slots=True)
class TextConfig:
    """Everything that decides the shape of a text tower.

    Attributes:
        context_length: longest text in tokens, start and end included.
        projection_dim: width of the pooled output; 0 leaves the projection out.
        activation: of the MLP; OpenAI's weights want ``quick_gelu``, ``x * sigmoid(1.702 x)``.
        end_token_id: the text is read at the first token with this id; None reads it at the first
            token with the highest id of the text, as the original CLIP does.
    """

    context_length: int = 77
    vocab_size: int = 49408
    embed_dim: int = 512
    depth: int = 12
    num_heads: int = 8
    mlp_ratio: float = 4.0
    projection_dim: int = 512
    activation: Literal["quick_gelu", "gelu"] = "quick_gelu"
    end_token_id: int | None = None
    norm_eps: float = 1e-5
    encoding: str = "learned-1d"
    encoding_params: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.embed_dim % self.num_heads:
            raise UsageError(
                f"embed_dim {self.embed_dim} is not a multiple of {self.num_heads} heads"
            )
        if self.context_length < 2:
            raise UsageError(f"context_length must be at least 2, got {self.context_length}")
        if self.activation not in ("quick_gelu", "gelu"):
            raise UsageError(
                f"activation {self.activation!r} is not known", hint="Choose quick_gelu or gelu."
            )


TEXT_PRESETS: Mapping[str, TextConfig] = {
    "text_clip_base": TextConfig(),
    "text_clip_large": TextConfig(embed_dim=768, num_heads=12, projection_dim=768),
    "text_clip_huge": TextConfig(
        embed_dim=1024, depth=24, num_heads=16, projection_dim=1024, activation="gelu"
    ),
}
"""Text towers of CLIP B and L (Radford et al. 2021, table 20) and H (Cherti et al. 2022)."""


@dataclass(frozen=True, slots=True)
class DetrConfig:
    """Everything that decides the shape of a detection-style encoder.

    Attributes:
        image_size: native height and width of the input, in its own pixels.
        patch_size: stride of the embedding; 1 takes the feature map of a backbone as input.
        in_channels: 3 for images, the backbone's channels for a feature map.
        num_classes: 0 leaves the head out.
        encoding_params: the layout of sincos-2d is ``detr`` when they do not say.
    """

    image_size: tuple[int, int] = (512, 512)
    patch_size: int = 16
    in_channels: int = 3
    embed_dim: int = 256
    depth: int = 6
    num_heads: int = 8
    feedforward_dim: int = 2048
    num_classes: int = 91
    norm_eps: float = 1e-5
    encoding: str = "sincos-2d"
    encoding_params: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.embed_dim % self.num_heads:
            raise UsageError(
                f"embed_dim {self.embed_dim} is not a multiple of {self.num_heads} heads"
            )
        if any(side % self.patch_size for side in self.image_size):
            raise UsageError(
                f"image_size {self.image_size} is not a multiple of patch size {self.patch_size}"
            )

    @property
    def grid(self) -> tuple[int, int]:
        """Native feature map, rows first."""
        return self.image_size[0] // self.patch_size, self.image_size[1] // self.patch_size


DETR_PRESETS: Mapping[str, DetrConfig] = {
    "detr_encoder_patch16_512": DetrConfig(),
    "detr_encoder_features_25x34": DetrConfig(image_size=(25, 34), patch_size=1, in_channels=2048),
}
"""The encoder of DETR (Carion et al. 2020, section A.4), on pixels and on features of a ResNet."""


def _check_small_map(small_map: str) -> None:
    if small_map not in ("pad", "clamp"):
        raise UsageError(f"small_map {small_map!r} is not known", hint="Choose pad or clamp.")


@dataclass(frozen=True, slots=True)
class SwinConfig:
    """Everything that decides the shape of a Swin Transformer.

    Attributes:
        image_size: native height and width in pixels; any other works too.
        window: tokens of a window along each axis.
        pretrained_window: the window that the positions were trained with, if it was another:
            ``window-bias`` resamples its table from it, ``log-cpb`` normalises by it.
        small_map: what a map smaller than the window does: ``pad`` fills it up to one window, as
            torchvision does, ``clamp`` shrinks the window to it.
        version: 1 or 2; which attention, and where the norms are.
        drop_rate: dropout in training; inert in eval.
        num_classes: 0 leaves the head out.
    """

    image_size: tuple[int, int] = (224, 224)
    patch_size: int = 4
    in_channels: int = 3
    embed_dim: int = 96
    depths: tuple[int, ...] = (2, 2, 6, 2)
    num_heads: tuple[int, ...] = (3, 6, 12, 24)
    window: tuple[int, int] = (7, 7)
    pretrained_window: tuple[int, int] | None = None
    small_map: Literal["pad", "clamp"] = "pad"
    version: Literal[1, 2] = 1
    mlp_ratio: float = 4.0
    num_classes: int = 1000
    drop_rate: float = 0.0
    encoding: str = "window-bias"
    encoding_params: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.depths) != len(self.num_heads):
            raise UsageError(
                f"{len(self.depths)} depths but {len(self.num_heads)} numbers of heads",
                hint="Give one depth and one number of heads per stage.",
            )
        for width, heads in zip(self.widths, self.num_heads, strict=True):
            if width % heads:
                raise UsageError(f"stage width {width} is not a multiple of {heads} heads")
        for window in (self.window, self.pretrained_window or self.window):
            if min(window) < 1:
                raise UsageError(f"a window must be at least 1x1, got {window}")
        _check_small_map(self.small_map)
        if self.version not in (1, 2):
            raise UsageError(f"Swin version {self.version!r} is not known", hint="Choose 1 or 2.")

    @property
    def grid(self) -> tuple[int, int]:
        """Native patch grid, padding included."""
        height, width = self.image_size
        return -(-height // self.patch_size), -(-width // self.patch_size)

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each stage; they double from one to the next."""
        return tuple(self.embed_dim * 2**i for i in range(len(self.depths)))


SWIN_PRESETS: Mapping[str, SwinConfig] = {
    "swin_tiny_patch4_window7_224": SwinConfig(),
    "swin_small_patch4_window7_224": SwinConfig(depths=(2, 2, 18, 2)),
    "swin_base_patch4_window7_224": SwinConfig(
        embed_dim=128, depths=(2, 2, 18, 2), num_heads=(4, 8, 16, 32)
    ),
    "swinv2_tiny_window8_256": SwinConfig(
        image_size=(256, 256), window=(8, 8), version=2, encoding="log-cpb"
    ),
    "swin_micro_patch4_window4_64": SwinConfig(
        image_size=(64, 64), embed_dim=16, depths=(2, 2), num_heads=(2, 4), window=(4, 4)
    ),
    "swinv2_micro_patch4_window4_64": SwinConfig(
        image_size=(64, 64),
        embed_dim=16,
        depths=(2, 2),
        num_heads=(2, 4),
        window=(4, 4),
        version=2,
        encoding="log-cpb",
    ),
}
"""Liu et al. 2021, section 3.3, and 2022, section 4; micro is for tests and examples."""


@dataclass(frozen=True, slots=True)
class VideoConfig:
    """Everything that decides the shape of a video Transformer.

    Attributes:
        image_size: native height and width in pixels.
        frames: length of a clip; unlike height and width it belongs to the model.
        tubelet: frames that one token covers.
        window: tokens of an attention window along time, height and width; None lets every token
            see every other.
        small_map: see :class:`SwinConfig`; ``clamp`` is torchvision's way with video.
        drop_rate: dropout in training; inert in eval.
        num_classes: 0 leaves the head out.
    """

    image_size: tuple[int, int] = (224, 224)
    frames: int = 16
    tubelet: int = 2
    patch_size: int = 16
    in_channels: int = 3
    embed_dim: int = 192
    depth: int = 12
    num_heads: int = 3
    window: tuple[int, int, int] | None = (8, 7, 7)
    small_map: Literal["pad", "clamp"] = "clamp"
    mlp_ratio: float = 4.0
    num_classes: int = 400
    drop_rate: float = 0.0
    encoding: str = "relative-3d"
    encoding_params: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.embed_dim % self.num_heads:
            raise UsageError(
                f"embed_dim {self.embed_dim} is not a multiple of {self.num_heads} heads"
            )
        if self.frames % self.tubelet:
            raise UsageError(f"{self.frames} frames are not a multiple of tubelet {self.tubelet}")
        if any(side % self.patch_size for side in self.image_size):
            raise UsageError(
                f"image_size {self.image_size} is not a multiple of patch size {self.patch_size}"
            )
        if self.window is not None and min(self.window) < 1:
            raise UsageError(f"a window must be at least 1x1x1, got {self.window}")
        _check_small_map(self.small_map)

    @property
    def grid(self) -> tuple[int, int]:
        """Native patch grid of one time step."""
        return self.image_size[0] // self.patch_size, self.image_size[1] // self.patch_size

    @property
    def time_steps(self) -> int:
        """Tokens along time."""
        return self.frames // self.tubelet


VIDEO_PRESETS: Mapping[str, VideoConfig] = {
    "video_tiny_patch16_224": VideoConfig(),
    "video_tiny_patch16_224_sincos": VideoConfig(window=None, encoding="sincos-3d"),
    "video_micro_patch8_48": VideoConfig(
        image_size=(48, 48),
        frames=4,
        patch_size=8,
        embed_dim=24,
        depth=2,
        num_heads=2,
        window=(2, 4, 4),
        num_classes=10,
    ),
}
"""Windows of Video Swin (Liu et al. 2022, section 3.1); micro is for tests and examples."""


Config = TypeVar("Config")


def with_options(
    config: Config, options: Mapping[str, Any], *, flag: str = "--model-kwarg"
) -> Config:
    """A copy of a config with fields replaced, from values or from text as the shell gives it.

    Raises:
        UsageError: no such field (closest named), or a value that does not read as its type or
            that no network can have.
    """
    hints = get_type_hints(type(config))
    changes: dict[str, Any] = {}
    for name, value in options.items():
        if name not in hints:
            raise UsageError(
                f"{flag} {name!r} is not an option of this model",
                hint=f"{closest(name, hints)}Choose from: {', '.join(sorted(hints))}.",
            )
        changes[name] = _read(value, hints[name], f"{flag} {name}")
        _check_range(name, changes[name], flag)
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def _check_range(name: str, value: Any, flag: str) -> None:
    """Refuse numbers that no network has; what they would do to one shows only much later.

    Raises:
        UsageError: names the option, the value and the range.
    """
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        if isinstance(number, float):
            low, fits = 0.0, math.isfinite(number) and number >= 0
            high = _LARGEST
            if name == "drop_rate":
                high, fits = 1, fits and number < 1
        else:
            low, high = int(name not in _MAY_BE_ZERO), _LARGEST
            fits = low <= number <= high
        if not fits:
            raise UsageError(f"{flag} {name} must be from {low:g} to {high}, got {number}")


def _read(value: Any, kind: Any, label: str) -> Any:
    """``value`` as ``kind``; text is parsed, anything else passes."""
    if not isinstance(value, str):
        if get_origin(kind) is tuple and isinstance(value, int):
            return (value,) * len(get_args(kind))
        return tuple(value) if get_origin(kind) is tuple else value
    origin = get_origin(kind)
    try:
        if origin in (Union, types.UnionType):
            options = [a for a in get_args(kind) if a is not type(None)]
            return None if value.lower() == "none" else _read(value, options[0], label)
        if origin is Literal:
            named = {str(choice): choice for choice in get_args(kind)}
            if value not in named:
                raise ValueError(f"one of {', '.join(named)}")
            return named[value]
        if origin is tuple:
            parts = value.replace("x", ",").split(",")
            kinds = get_args(kind)
            if kinds[-1] is Ellipsis:
                kinds = kinds[:1] * len(parts)
            parts = parts * len(kinds) if len(parts) == 1 else parts
            return tuple(_read(p, k, label) for p, k in zip(parts, kinds, strict=True))
        if kind is bool:
            if value.lower() not in ("true", "false", "1", "0", "yes", "no"):
                raise ValueError("true or false")
            return value.lower() in ("true", "1", "yes")
        if kind in (int, float, str):
            return kind(value)
    except ValueError as problem:
        raise UsageError(f"{label}={value!r} cannot be read: {problem}") from None
    raise UsageError(f"{label} cannot be set from the command line", hint="Use the Python API.")
