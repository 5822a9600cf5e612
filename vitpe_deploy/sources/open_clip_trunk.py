"""Vision towers of open_clip whose trunk is a network of timm (SigLIP, EVA02, ViTamin, ...).

open_clip makes the trunk for timm's own size and takes it to another one with ``set_input_size``,
after the weights are in; trunks without such a method run at a size as they are, or do not. A file
with symbolic sizes is traced from the network that timm has for any size (``dynamic_img_size``);
its reference is the network that open_clip makes for each.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from open_clip.timm_model import TimmModel
from torch import Tensor, nn

from vitpe_deploy.errors import SourceError, UnsupportedError
from vitpe_deploy.request import ResampleOverride, Resolution
from vitpe_deploy.sources.base import LoadedModel, ModelFacts, PositionFit, SizeRule, captured
from vitpe_deploy.sources.observe import (
    TableResample,
    TableWatcher,
    torch_override,
    torch_unchanged,
)
from vitpe_deploy.sources.open_clip_library import Library, quietly, reason_of
from vitpe_deploy.sources.open_clip_vision import PREFIX
from vitpe_deploy.sources.timm_facts import block_paths, encoding_of
from vitpe_deploy.sources.timm_library import CreationError
from vitpe_deploy.sources.timm_library import Library as Timm
from vitpe_deploy.sources.timm_steps import Outcome, find_rule, patch_size, run
from vitpe_deploy.sources.timm_traceable import make_traceable
from vitpe_deploy.sources.watched import WatchedModel
from vitpe_deploy.towers import VISION


@dataclass(frozen=True)
class TrunkTower:
    """A trunk of timm and open_clip's projection."""

    library: Library
    facts: ModelFacts

    @classmethod
    def open(cls, library: Library, visual: TimmModel, spec: str) -> TrunkTower:
        """Look at a tower without data.

        Raises:
            UnsupportedError: it does not run at its own size.
        """
        native = Resolution(*visual.image_size)
        outcome = _attempt(visual, native, native)
        if outcome.reason:
            raise UnsupportedError(
                f"the vision tower of {spec} does not run at its own size {native}: "
                f"{outcome.reason}",
                hint="Set --model-kwarg vision_cfg.image_size to the size of its trunk in timm.",
            )
        rule = find_rule(lambda size: _attempt(visual, native, size), native, visual.trunk)
        return cls(
            library,
            ModelFacts(
                name=f"{library.name}-{VISION}",
                spec=spec,
                native=native,
                size_rule=rule,
                grid_divisor=_pixels_per_token(visual.trunk, native),
                encoding=encoding_of(visual.trunk),
                encoding_params={},
                prefix_tokens=int(getattr(visual.trunk, "num_prefix_tokens", 0) or 0),
                outputs=("embedding", "pooled"),
                default_outputs=("embedding",),
                depth=len(block_paths(visual)),
                preprocess=library.preprocess(),
                no_dynamic=_no_dynamic(library, visual, rule),
            ),
        )

    def load(
        self, state: Mapping[str, Tensor], origin: str, override: ResampleOverride
    ) -> LoadedModel:
        """The tower with weights of its native size."""
        # Made with data: timm keeps tables outside of the state (rotary, indices).
        visual: Any = self.library.make(VISION, device="cpu").get_submodule("visual")
        try:
            visual.load_state_dict({n.removeprefix(PREFIX): t for n, t in state.items()})
        except RuntimeError as problem:
            raise SourceError(
                f"the weights do not fit the vision tower of {self.facts.spec}: "
                f"{reason_of(problem, 1)}",
                hint="open_clip takes a trunk of timm from weights of its native size alone.",
            ) from problem
        return TrunkModel(self, visual, origin, override)


def _pixels_per_token(trunk: Any, native: Resolution) -> tuple[int, int]:
    """Of the trunk's own grid; a stem of convolutions has no patch size."""
    grid = getattr(getattr(trunk, "patch_embed", None), "grid_size", None)
    if not grid:
        return patch_size(trunk)
    return native.height // grid[0], native.width // grid[1]


def taken_to(visual: Any, native: Resolution, size: Resolution) -> Any:
    """A copy of a tower, changed in place by open_clip's own method."""
    if size != native and hasattr(visual.trunk, "set_input_size"):
        with torch.device(next(visual.parameters()).device), quietly():
            visual.set_input_size((size.height, size.width))
    return visual


def _attempt(visual: Any, native: Resolution, size: Resolution) -> Outcome:
    """One run of a tower without data."""
    try:
        return run(taken_to(copy.deepcopy(visual), native, size), size)
    except Exception as problem:  # timm's assertions about the size
        return Outcome(reason=f"timm's set_input_size fails at {size}: {reason_of(problem)}")


def _for_any_size(library: Library, visual: Any, *, device: str) -> nn.Module:
    """timm's network for any size, as the trunk of a copy of a tower.

    Raises:
        CreationError: timm has none of this name, or not with these weights.
    """
    trunk = visual.trunk
    options = {"num_classes": trunk.num_classes, "global_pool": trunk.global_pool}
    twin = Timm(str(library.vision["timm_model_name"]), options).create(
        device=device, symbolic=True
    )
    if not getattr(twin, "dynamic_img_size", False):
        raise CreationError(f"{type(twin).__name__} has no dynamic_img_size")
    try:
        twin.load_state_dict(trunk.state_dict(), assign=True)
    except RuntimeError as problem:
        raise CreationError(reason_of(problem, 1)) from problem
    shared = {id(p): p for p in visual.parameters()}
    network: Any = copy.deepcopy(visual, memo={**shared, id(trunk): twin.eval()})
    return network.requires_grad_(False)  # type: ignore[no-any-return]


def _no_dynamic(library: Library, visual: Any, rule: SizeRule) -> str:
    """Why no file has symbolic height and width; empty when one can."""
    if rule.fixed is not None:
        return rule.fixed_reason
    if not hasattr(visual.trunk, "set_input_size"):
        return ""  # nothing in it belongs to a size
    native = Resolution(*visual.image_size)
    other = taken_to(copy.deepcopy(visual), native, rule.nearby(native)[2])
    shapes = {n: p.shape for n, p in other.named_parameters()}
    for name, parameter in visual.named_parameters():
        if shapes.get(name) != parameter.shape and not name.endswith(".pos_embed"):
            return (
                "open_clip makes its trunk for each size (TimmModel.set_input_size), which is "
                f"other windows too ({name})"
            )
    try:
        _for_any_size(library, visual, device="meta")
    except CreationError as problem:
        return (
            "open_clip makes its trunk for each size (TimmModel.set_input_size), and timm has no "
            f"network of it for any size ({problem})"
        )
    return ""


class TrunkModel(WatchedModel):
    """A tower with its weights; the reference at a size is what open_clip makes of it."""

    def __init__(
        self, tower: TrunkTower, pristine: nn.Module, weights: str, override: ResampleOverride
    ) -> None:
        super().__init__(tower.facts, pristine, weights, override)
        self._library = tower.library

    def block_paths(self) -> tuple[str, ...]:
        """The trunk's blocks, in order."""
        return block_paths(self._pristine)

    def _made(self, size: Resolution) -> tuple[nn.Module, tuple[TableResample, ...]]:
        """The tower at a size, and the tables that were resampled on the way."""
        tables: list[TableResample] = []

        def resample(call: TableResample) -> Tensor:
            tables.append(call)
            override = self._override
            return torch_override(call, override) if override else torch_unchanged(call)

        assert self.facts.native is not None
        with torch.no_grad(), TableWatcher(torch.empty(0), resample):
            made = taken_to(super().fresh(), self.facts.native, size)
        return made.eval().requires_grad_(False), tuple(tables)

    def fresh(self, size: Resolution | None = None, *, symbolic: bool = False) -> nn.Module:
        """An untouched copy, taken to the size."""
        del symbolic
        return super().fresh() if size is None else self._made(size)[0]

    def explicit(self, size: Resolution | None) -> nn.Module:
        """The same with the parts that torch cannot trace written in another way."""
        if size is not None:
            return make_traceable(self.fresh(size), symbolic=False)
        network = self.fresh()
        if hasattr(network.trunk, "set_input_size"):
            network = _for_any_size(self._library, network, device="cpu")
        return make_traceable(network, symbolic=True)

    def position_fits(self, size: Resolution | None) -> tuple[PositionFit, ...]:
        """What timm resamples on the way to a size."""
        facts, kind = self.facts, self.facts.encoding or "positions"
        assert facts.native is not None
        probe = size or facts.size_rule.nearby(facts.native)[2]
        new = None if size is None else facts.grid(size)
        fits = [
            PositionFit(kind, call.old_grid, new, str(call.rule.overridden(self._override)))
            for call in self._made(probe)[1]
        ]
        return tuple(dict.fromkeys(fits)) or (
            PositionFit(kind, facts.grid(facts.native), new, None),
        )

    def call(self, module: nn.Module, inputs: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Run the tower as ``encode_image`` does; pooled is what the trunk gives."""
        with captured({"pooled": "trunk"}, module) as found:
            found["embedding"] = module(inputs)
        return {name: found[name] for name in names}
