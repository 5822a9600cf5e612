"""torchvision's Vision Transformers: what their classes say of sizes, and how they are run.

Four mechanisms, found by class and not by name:

* ``VisionTransformer`` is made for one square size; its table gets to another one by torchvision's
  own ``interpolate_embeddings``, bicubic with aligned corners;
* ``SwinTransformer`` has nothing that belongs to a size; its patch embedding drops border pixels;
* ``SwinTransformer3d`` is the same for clips, and pads;
* ``MaxVit`` is made for a size whose maps hold whole windows; no table belongs to it.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import MaxVit, SwinTransformer, VisionTransformer
from torchvision.models.video import SwinTransformer3d
from torchvision.models.vision_transformer import interpolate_embeddings

from vitpe_deploy.errors import UnsupportedError
from vitpe_deploy.inputs import ImageInput, InputLayout, VideoInput
from vitpe_deploy.request import ResampleOverride, Resolution
from vitpe_deploy.sources.base import ModelFacts, PositionFit, SizeRule, captured
from vitpe_deploy.sources.observe import (
    TableResample,
    TableWatcher,
    torch_override,
    torch_unchanged,
)
from vitpe_deploy.sources.torchvision_windows import make_torchvision_traceable
from vitpe_deploy.sources.watched import WatchedModel

Create = Callable[[Resolution], nn.Module]
"""Makes the network for a size on the ``meta`` device."""

_NATIVE = Resolution(224, 224)
FRAMES = 16
"""Frames of a clip, where nobody says another number."""


@dataclass(frozen=True)
class Family:
    """One mechanism, as one network of it answers.

    Attributes:
        native: the size of its weights.
        rule: sizes it takes.
        divisor: pixels per token of the last map.
        encoding: name of its positions.
        prefix: tokens in front of the patches.
        outputs: path of the submodule that gives each output besides logits.
        size_option: argument of the constructor that makes it for a size; None for any size.
        no_dynamic: why no file can have symbolic height and width.
        layout: what it takes.
    """

    native: Resolution
    rule: SizeRule
    divisor: tuple[int, int]
    encoding: str
    outputs: Mapping[str, str]
    prefix: int = 0
    size_option: str | None = None
    no_dynamic: str = ""
    layout: InputLayout = ImageInput()

    def option(self, size: Resolution) -> dict[str, Any]:
        """Arguments of the constructor that make the network for a size."""
        if self.size_option is None:
            return {}
        both = self.size_option == "input_size"
        return {self.size_option: (size.height, size.width) if both else size.height}


def family_of(network: nn.Module, native: Resolution | None, frames: int) -> Family | None:
    """The mechanism of a network; None for a network without positions of a ViT.

    Args:
        network: may have no data.
        native: the size of the published weights, for classes that hold no size themselves.
        frames: frames of a clip.
    """
    if isinstance(network, VisionTransformer):
        return _vit(network)
    if isinstance(network, SwinTransformer3d):
        step = network.patch_embed.tuple_patch_size
        rule = SizeRule.for_patches((step[1], step[2]), "pads")
        return Family(
            native or _NATIVE,
            rule,
            _reduced((step[1], step[2]), network.features),
            "relative-3d",
            {"pooled": "avgpool"},
            layout=VideoInput(frames=frames),
        )
    if isinstance(network, SwinTransformer):
        convolution: Any = network.features[0][0]
        patch = tuple(convolution.stride)
        v2 = any(n.endswith("cpb_mlp") for n, _ in network.named_modules())
        return Family(
            native or _NATIVE,
            SizeRule.for_patches(patch, "floors"),
            _reduced(patch, network.features),
            "log-cpb" if v2 else "window-bias",
            {"pooled": "flatten", "feature-map": "permute"},
        )
    return _maxvit(network) if isinstance(network, MaxVit) else None


def _reduced(patch: tuple[int, int], features: nn.Module) -> tuple[int, int]:
    """Pixels per token after all mergings of 2x2 patches."""
    times = 2 ** sum(hasattr(m, "reduction") for m in features.modules())
    return patch[0] * times, patch[1] * times


def _vit(network: VisionTransformer) -> Family:
    patch = (network.patch_size, network.patch_size)
    why = (
        "torchvision's VisionTransformer has one image_size for both axes "
        "(VisionTransformer._process_input)"
    )
    return Family(
        Resolution(network.image_size, network.image_size),
        replace(SizeRule.for_patches(patch, "refuses"), square=why),
        patch,
        "learned-1d",
        {"tokens": "encoder"},
        prefix=1,
        size_option="image_size",
        no_dynamic=f"{why} and is made anew for each",
    )


def _maxvit(network: MaxVit) -> Family:
    layer: Any = next(m for m in network.modules() if hasattr(m, "n_partitions"))
    reduction = 2 ** (1 + len(network.blocks))
    window = network.partition_size
    stem_map = 4 * layer.grid_size[0]  # the stem halves the picture, each block halves its map
    step = reduction * window
    why = (
        "torchvision's MaxViT counts its partitions along the height alone "
        "(PartitionAttentionLayer.__init__)"
    )
    rule = SizeRule(
        (step, step), f"windows of {window} on a map reduced {reduction} times", square=why
    )
    return Family(
        Resolution(stem_map, stem_map),
        rule,
        (reduction, reduction),
        "window-bias",
        {"pooled": "classifier.1", "feature-map": f"blocks.{len(network.blocks) - 1}"},
        size_option="input_size",
        no_dynamic="torchvision's MaxViT is made for one size: it counts the windows of each map "
        "when it is made (PartitionAttentionLayer.__init__)",
    )


def block_paths(network: nn.Module) -> tuple[str, ...]:
    """Blocks of all stages in order: those with an attention and an MLP, and MaxViT's layers."""
    found: list[str] = []
    for path, child in network.named_modules():
        names = {n for n, _ in child.named_children()}
        vit = "self_attention" in names and "mlp" in names
        swin = names >= {"norm1", "attn", "norm2", "mlp"}
        maxvit = "layers" in names and hasattr(getattr(child, "layers", None), "grid_attention")
        if vit or swin or maxvit:
            found.append(path)
    return tuple(found)


class TorchvisionModel(WatchedModel):
    """A torchvision network; the reference at a size is what torchvision makes for it."""

    def __init__(
        self,
        facts: ModelFacts,
        pristine: nn.Module,
        weights: str,
        override: ResampleOverride,
        *,
        family: Family,
        create: Create,
    ) -> None:
        super().__init__(facts, pristine, weights, override)
        self._family = family
        self._create = create
        if override and family.encoding != "learned-1d":
            raise UnsupportedError(
                "--interpolation, --antialias and --align-corners have no meaning for "
                f"{facts.spec}, whose positions are not resampled",
                hint="Leave them out.",
            )

    def block_paths(self) -> tuple[str, ...]:
        """Blocks of all stages."""
        return block_paths(self._pristine)

    def fresh(self, size: Resolution | None = None, *, symbolic: bool = False) -> nn.Module:
        """An untouched network, made for the size where the class asks for one."""
        del symbolic
        own = size is None or size == self._family.native or self._family.size_option is None
        if own:
            return super().fresh()
        assert size is not None
        return self._made(size)[0]

    def _made(self, size: Resolution) -> tuple[nn.Module, tuple[TableResample, ...]]:
        """The network of a size, and the tables that torchvision resampled for it."""
        tables: list[TableResample] = []

        def resample(call: TableResample) -> Tensor:
            tables.append(call)
            return torch_override(call, self._override) if self._override else torch_unchanged(call)

        state = OrderedDict(self._pristine.state_dict())
        network = self._create(size)
        if isinstance(network, VisionTransformer):
            with torch.no_grad(), TableWatcher(torch.empty(0), resample):
                state = interpolate_embeddings(size.height, network.patch_size, state)
        network.load_state_dict(state, assign=True)
        return copy.deepcopy(network).eval().requires_grad_(False), tuple(tables)

    def explicit(self, size: Resolution | None) -> nn.Module:
        """The same with windows that the tracer can follow."""
        return make_torchvision_traceable(self.fresh(size))

    def position_fits(self, size: Resolution | None) -> tuple[PositionFit, ...]:
        """What torchvision resamples on the way to a size."""
        facts, family = self.facts, self._family
        old = facts.grid(family.native)
        if family.encoding != "learned-1d" or size is None:
            return (PositionFit(family.encoding, None, None, None),)
        tables = () if size == family.native else self._made(size)[1]
        rule = str(tables[0].rule.overridden(self._override)) if tables else None
        return (PositionFit(family.encoding, old, facts.grid(size), rule),)

    def call(self, module: nn.Module, inputs: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Run the network as torchvision does; other outputs are those of its parts."""
        family = self._family
        with captured(dict(family.outputs), module) as found:
            found["logits"] = module(inputs)
        if "tokens" in found:
            grid = self.facts.grid(Resolution(*inputs.shape[-2:]))
            found["cls"] = found["tokens"][:, 0]
            patches = found["tokens"][:, family.prefix :]
            found["feature-map"] = patches.transpose(1, 2).reshape(*patches.shape[::2], *grid)
        if "pooled" in found:
            found["pooled"] = found["pooled"].flatten(1)
        return {name: found[name] for name in names}


def output_names(family: Family) -> tuple[str, ...]:
    """Outputs that :meth:`TorchvisionModel.call` gives."""
    more = ("cls", "feature-map") if "tokens" in family.outputs else ()
    return ("logits", *family.outputs, *more)
