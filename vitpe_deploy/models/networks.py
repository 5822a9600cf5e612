"""The reference networks by name, and what their configs say, without torch.

A network is a config class, a torch module and a set of presets; this is the one list of them.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitpe_deploy import digits, encodings
from vitpe_deploy.errors import UsageError
from vitpe_deploy.inputs import ImageInput, InputLayout, TextInput, VideoInput
from vitpe_deploy.models.presets import (
    DETR_PRESETS,
    SWIN_PRESETS,
    TEXT_PRESETS,
    VIDEO_PRESETS,
    VIT_PRESETS,
    DetrConfig,
    SwinConfig,
    TextConfig,
    VideoConfig,
    ViTConfig,
)
from vitpe_deploy.request import Resolution, closest

if TYPE_CHECKING:
    from torch import nn

    from vitpe_deploy.encodings.base import Network as NetworkName


@dataclass(frozen=True, slots=True)
class Network:
    """One reference network.

    Attributes:
        name: what encodings call it.
        config: its config class.
        home: module and class, imported when a network is built.
        presets: configs by MODEL name.
    """

    name: NetworkName
    config: type
    home: str
    presets: Mapping[str, Any]

    def build(self, config: Any) -> nn.Module:
        """The torch module of a config, with weights from torch's global generator."""
        module, cls = self.home.split(":")
        built: nn.Module = getattr(importlib.import_module(module), cls)(config)
        return built


_VIT = {**VIT_PRESETS, **digits.VIT_PRESETS}
_SWIN = {**SWIN_PRESETS, **digits.SWIN_PRESETS}
_VIDEO = {**VIDEO_PRESETS, **digits.VIDEO_PRESETS}

NETWORKS: tuple[Network, ...] = (
    Network("vit", ViTConfig, "vitpe_deploy.models.vit:VisionTransformer", _VIT),
    Network("swin", SwinConfig, "vitpe_deploy.models.swin:SwinTransformer", _SWIN),
    Network("text", TextConfig, "vitpe_deploy.models.text:TextTower", TEXT_PRESETS),
    Network("video", VideoConfig, "vitpe_deploy.models.video:VideoTransformer", _VIDEO),
    Network("detr", DetrConfig, "vitpe_deploy.models.detr:DetrEncoder", DETR_PRESETS),
)


def preset_names() -> tuple[str, ...]:
    """Every MODEL name of a reference network."""
    return tuple(name for network in NETWORKS for name in network.presets)


def find_preset(name: str) -> tuple[Network, Any]:
    """Network and config of a MODEL name.

    Raises:
        UsageError: unknown; the hint has the closest name and the list.
    """
    for network in NETWORKS:
        if name in network.presets:
            return network, network.presets[name]
    known = preset_names()
    raise UsageError(
        f"MODEL {name!r} is not a reference model",
        hint=f"{closest(name, known)}Choose from: {', '.join(known)}.",
    )


def network_of(config: object) -> Network:
    """The network that a config belongs to."""
    return next(network for network in NETWORKS if isinstance(config, network.config))


def with_encoding(config: Any, name: str) -> Any:
    """The config with another encoding; the options of its own encoding fall away.

    Raises:
        UsageError: unknown encoding, or one that lives in other networks.
    """
    encodings.check_network(name, network_of(config).name)
    if name == config.encoding:
        return config
    return dataclasses.replace(config, encoding=name, encoding_params={})


def native_size(config: Any) -> Resolution:
    """Pixels, or one row of as many columns as a text has tokens."""
    if isinstance(config, TextConfig):
        return Resolution(1, config.context_length)
    return Resolution(*config.image_size)


def input_layout(config: Any) -> InputLayout:
    """What the network takes."""
    if isinstance(config, TextConfig):
        return TextInput(config.vocab_size, config.context_length, config.end_token_id)
    if isinstance(config, VideoConfig):
        return VideoInput(config.in_channels, config.frames)
    return ImageInput(config.in_channels)


def output_names(config: Any) -> tuple[str, ...]:
    """What can be asked for, the network's own output first."""
    if isinstance(config, TextConfig):
        return ("pooled", "tokens")
    logits = ("logits",) if config.num_classes else ()
    cls = ("cls",) if isinstance(config, ViTConfig) and config.class_token else ()
    return (*logits, "pooled", *cls, "tokens", "feature-map")


def block_paths(config: Any) -> tuple[str, ...]:
    """Module paths of the blocks, in order."""
    if isinstance(config, SwinConfig):
        return tuple(
            f"stages.{stage}.blocks.{k}"
            for stage, depth in enumerate(config.depths)
            for k in range(depth)
        )
    return tuple(f"blocks.{k}" for k in range(config.depth))


def patch_grid(config: Any, size: Resolution) -> tuple[int, int]:
    """The grid that positions lie on at a size; Swin pads its last patch."""
    if isinstance(config, TextConfig):
        return size.height, size.width
    patch = config.patch_size
    if isinstance(config, SwinConfig):
        return -(-size.height // patch), -(-size.width // patch)
    return size.height // patch, size.width // patch
