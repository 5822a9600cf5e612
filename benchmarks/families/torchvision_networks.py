"""torchvision: small networks of its classes, entered in its registry as users enter theirs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torchvision.models import MaxVit, SwinTransformer, VisionTransformer, get_model
from torchvision.models._api import BUILTIN_MODELS, register_model
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformerBlockV2
from torchvision.models.video import SwinTransformer3d
from torchvision.models.vision_transformer import interpolate_embeddings

from benchmarks.families.base import Arrays, Library, Saved
from benchmarks.families.weights import redraw

_CLASSES = 10


def small_vit(weights: Any = None, image_size: int = 96, **more: Any) -> nn.Module:
    """Patch 16, two blocks."""
    return VisionTransformer(image_size, 16, 2, 2, 32, 64, num_classes=_CLASSES, **more)


def small_swin(weights: Any = None, **more: Any) -> nn.Module:
    """Windows of 4, two stages."""
    return SwinTransformer([4, 4], 16, [2, 2], [2, 2], [4, 4], num_classes=_CLASSES, **more)


def small_swin_v2(weights: Any = None, **more: Any) -> nn.Module:
    """The second version: cosines, a bias from log distances."""
    blocks: dict[str, Any] = {
        "block": SwinTransformerBlockV2, "downsample_layer": PatchMergingV2,
    }  # fmt: skip
    return small_swin(**blocks, **more)


def small_swin3d(weights: Any = None, **more: Any) -> nn.Module:
    """Clips, windows of 4 frames."""
    return SwinTransformer3d([2, 4, 4], 16, [2, 2], [2, 2], [4, 4, 4], num_classes=_CLASSES, **more)


def small_maxvit(
    weights: Any = None, input_size: tuple[int, int] = (64, 64), **more: Any
) -> nn.Module:
    """Two blocks of one layer, partitions of 4."""
    return MaxVit(input_size, 16, 4, [16, 32], [1, 1], 8, 0.0, num_classes=_CLASSES, **more)


BUILDERS: Mapping[str, Callable[..., nn.Module]] = {
    f.__name__: f for f in (small_vit, small_swin, small_swin_v2, small_swin3d, small_maxvit)
}  # fmt: skip


class Torchvision(Library):
    """Names of torchvision's registry."""

    name: ClassVar[str] = "torchvision"

    def __init__(self) -> None:
        for name, builder in BUILDERS.items():
            if name not in BUILTIN_MODELS:
                register_model(name)(builder)

    def names(self, *, others: bool = False) -> tuple[str, ...]:
        """Small ones, or the published ones."""
        return ("vit_b_32", "swin_t", "swin_v2_t", "maxvit_t") if others else tuple(BUILDERS)

    def save(self, name: str, folder: Path) -> Saved:
        """A safetensors file."""
        path = folder / "weights.safetensors"
        state = redraw(get_model(name).eval())
        save_file({n: t.contiguous() for n, t in state.items()}, path)
        return Saved(f"torchvision:{name}", {"weights": path})

    def reference(
        self, name: str, saved: Saved, mode: str, size: tuple[int, int], inputs: Any
    ) -> Arrays:
        """The network for the size, its table resampled by ``interpolate_embeddings``."""
        state = OrderedDict(load_file(saved.options["weights"]))
        made: dict[str, Any] = {}
        native = get_model(name)
        if isinstance(native, VisionTransformer) and mode != "native":
            made = {"image_size": size[0]}
            state = interpolate_embeddings(size[0], native.patch_size, state)
        elif isinstance(native, MaxVit) and mode != "native":
            made = {"input_size": size}
        module = get_model(name, **made).eval()
        module.load_state_dict(state)
        with torch.no_grad():
            return {"logits": module(inputs).numpy()}


LIBRARY = Torchvision
