"""What a network of the transformers library is called with, and what its outputs are named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitpe_deploy.sources.transformers_library import takes

_RENAMED = {"last_hidden_state": "tokens", "pooler_output": "pooled", "feature_maps": "feature-map"}
_OF_THE_ENCODER = ("tokens", "pooled", "cls", "feature-map")
_LEFT_OUT = ("loss", "mask", "ids_restore", "ids_to_keep", "bool_masked_pos")
"""Of training with masks, not of the network."""


def forward(module: nn.Module, pixels: Tensor, *, flag: bool) -> dict[str, Tensor]:
    """Run a class as the library documents it: its outputs and those of its encoder, by name.

    Args:
        module: a network.
        pixels: [B, C, H, W].
        flag: whether to ask for resampled positions where that is a choice.
    """
    network: Any = module
    encoder: Any = getattr(network, getattr(network, "base_model_prefix", ""), network)
    options: dict[str, Any] = {}
    if flag and takes(network, "interpolate_pos_encoding"):
        options["interpolate_pos_encoding"] = True
    if takes(network, "noise") and getattr(network.config, "mask_ratio", None) == 0.0:
        options["noise"] = _ascending(network, pixels)
    seen: list[Any] = []
    handle = encoder.register_forward_hook(lambda _m, _i, output: seen.append(output))
    try:
        result = network(pixels, **options)
    finally:
        handle.remove()
    found = _named(result)
    for name, value in _named(seen[-1] if seen else None).items():
        # DINOv3's ConvNeXt makes normed tokens of its encoder's map: the map is not an output.
        if name != "feature-map" or "tokens" not in found:
            found.setdefault(name, value)
    return found


def _named(result: Any) -> dict[str, Tensor]:
    """Tensors of one output of the library."""
    if isinstance(result, Tensor):
        result = {"last_hidden_state": result}
    if not isinstance(result, Mapping):
        return {}
    found: dict[str, Tensor] = {}
    for key, value in result.items():
        name = _RENAMED.get(str(key), str(key))
        if isinstance(value, (tuple, list)) and name == "feature-map":
            maps = [v for v in value if isinstance(v, Tensor)]
            found |= {name if len(maps) == 1 else f"{name}{k}": v for k, v in enumerate(maps)}
        elif isinstance(value, Tensor) and value.is_floating_point() and key not in _LEFT_OUT:
            found["feature-map" if name == "tokens" and value.dim() == 4 else name] = value
    return found


def own_outputs(found: Mapping[str, Tensor]) -> tuple[str, ...]:
    """What the class is for: its head's outputs, else those of the encoder."""
    heads = tuple(n for n in found if n not in _OF_THE_ENCODER and not n.startswith("cls_"))
    return heads or tuple(n for n in found if n in ("tokens", "pooled", "feature-map"))


def _ascending(network: Any, pixels: Tensor) -> Tensor:
    """Numbers that sort into the order of the patches: the masking of MAE moves nothing."""
    h, w = patch_of(network)
    count = (pixels.shape[-2] // h) * (pixels.shape[-1] // w)
    row = torch.arange(count, dtype=torch.float32, device=pixels.device)
    return row.unsqueeze(0).expand(pixels.shape[0], count)


def patch_of(network: Any) -> tuple[int, int]:
    """Height and width of a patch: stride of the first convolution."""
    conv = next((m for m in network.modules() if isinstance(m, nn.Conv2d)), None)
    return (1, 1) if conv is None else (int(conv.stride[0]), int(conv.stride[1]))
