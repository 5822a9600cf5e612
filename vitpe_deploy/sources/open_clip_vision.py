"""Vision towers of open_clip: its own ViT here, trunks of timm in open_clip_trunk.py.

open_clip's ViT is made for one size, and a table of another one is resampled when weights are
loaded (``resize_pos_embed``: bicubic, antialias, the table read as a square). It has no forward for
any size: the reference of a file with symbolic sizes is the network that open_clip makes for each.

One thing of that rule is not in such a file: a grid of another shape with as many patches as the
table has rows (2x8 for 4x4) gets the table as it is, because open_clip compares the counts alone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from open_clip.timm_model import TimmModel
from open_clip.transformer import VisionTransformer
from torch import Tensor, nn

from vitpe_deploy.encodings.resample import ResampleRule
from vitpe_deploy.errors import UnsupportedError
from vitpe_deploy.request import ResampleOverride, Resolution
from vitpe_deploy.sources.base import LoadedModel, ModelFacts, PositionFit, SizeRule, captured
from vitpe_deploy.sources.observe import (
    TableResample,
    TableWatcher,
    torch_override,
    torch_unchanged,
)
from vitpe_deploy.sources.open_clip_library import Library, resized
from vitpe_deploy.sources.tables import Grid, LearnedTable, write_in_graph
from vitpe_deploy.sources.watched import WatchedModel
from vitpe_deploy.towers import VISION

RULE = ResampleRule()
"""Of ``resize_pos_embed``: bicubic, antialias."""

PREFIX = "visual."
_TABLE = "positional_embedding"


class VisionTower(Protocol):
    """A tower that was looked at."""

    @property
    def facts(self) -> ModelFacts:
        """Found without data."""

    def load(
        self, state: Mapping[str, Tensor], origin: str, override: ResampleOverride
    ) -> LoadedModel:
        """The tower with weights, named as in the whole model."""


def open_vision(library: Library, spec: str) -> VisionTower:
    """Look at the vision tower of a config.

    Raises:
        UnsupportedError: it is no Vision Transformer.
    """
    visual = library.make(VISION, device="meta").get_submodule("visual")
    if isinstance(visual, TimmModel):
        from vitpe_deploy.sources.open_clip_trunk import TrunkTower

        return TrunkTower.open(library, visual, spec)
    if not isinstance(visual, VisionTransformer):
        raise UnsupportedError(
            f"the vision tower of {spec} is a {type(visual).__name__}, not a Vision Transformer",
            hint="Choose a ViT-* config, or one with a trunk of timm.",
        )
    return ViTTower(library, _facts(library, visual, spec))


def _facts(library: Library, visual: VisionTransformer, spec: str) -> ModelFacts:
    patch, native = tuple(visual.patch_size), Resolution(*visual.image_size)
    rows, columns = visual.grid_size
    fixed = ""
    if math.isqrt(rows * columns) ** 2 != rows * columns:
        fixed = (
            "open_clip reads the table of its weights as a square grid "
            f"(open_clip.model.resize_pos_embed), and that of {spec} is {rows}x{columns}"
        )
    learned = library.vision.get("pos_embed_type", "learnable") == "learnable"
    square = "" if learned else "open_clip makes its sine and cosine table for squares alone"
    rule = SizeRule.for_patches(
        patch, "floors", fixed=native if fixed else None, fixed_reason=fixed
    )
    return ModelFacts(
        name=f"{library.name}-{VISION}",
        spec=spec,
        native=native,
        size_rule=replace(rule, square=square),
        grid_divisor=patch,
        encoding="learned-1d" if learned else "sincos-2d",
        encoding_params={},
        prefix_tokens=1,
        outputs=("embedding", "tokens", "cls", "feature-map"),
        default_outputs=("embedding",),
        depth=len(visual.transformer.resblocks),
        preprocess=library.preprocess(),
        no_dynamic=fixed or square,
    )


@dataclass(frozen=True)
class ViTTower:
    """open_clip's own ViT."""

    library: Library
    facts: ModelFacts

    def load(
        self, state: Mapping[str, Tensor], origin: str, override: ResampleOverride
    ) -> LoadedModel:
        """The tower with weights, whose table may be of another size than the config's."""
        assert self.facts.native is not None
        pristine, _ = made_for(self.library, state, self.facts.native, override)
        return ViTModel(self, pristine, origin, override, state)


def made_for(
    library: Library, state: Mapping[str, Tensor], size: Resolution, override: ResampleOverride
) -> tuple[nn.Module, tuple[TableResample, ...]]:
    """open_clip's tower for a size, and the tables that it resampled on the way."""
    tables: list[TableResample] = []

    def resample(call: TableResample) -> Tensor:
        tables.append(call)
        return torch_override(call, override) if override else torch_unchanged(call)

    whole = library.make(VISION, device="meta", size=size)
    with torch.no_grad(), TableWatcher(torch.empty(0), resample):
        fitted = resized(state, whole)
    visual = whole.get_submodule("visual")
    visual.load_state_dict({n.removeprefix(PREFIX): t for n, t in fitted.items()}, assign=True)
    return visual.eval().requires_grad_(False), tuple(tables)


class ViTModel(WatchedModel):
    """open_clip's ViT with its weights; the reference at a size is what open_clip makes for it."""

    def __init__(
        self,
        tower: ViTTower,
        pristine: nn.Module,
        weights: str,
        override: ResampleOverride,
        state: Mapping[str, Tensor],
    ) -> None:
        super().__init__(tower.facts, pristine, weights, override)
        self._library = tower.library
        self._state = state

    @property
    def _table(self) -> LearnedTable:
        """The table of the weights, read as open_clip reads it."""
        rows = self._state[PREFIX + _TABLE].shape[0] - 1
        side = math.isqrt(rows)
        native = self.facts.native
        assert native is not None
        own: Grid = self.facts.grid(native)
        return LearnedTable(_TABLE, own if own[0] * own[1] == rows else (side, side), prefix=1)

    def block_paths(self) -> tuple[str, ...]:
        """The residual blocks."""
        return tuple(f"transformer.resblocks.{k}" for k in range(self.facts.depth))

    def fresh(self, size: Resolution | None = None, *, symbolic: bool = False) -> nn.Module:
        """An untouched tower, made for the size."""
        del symbolic
        if size is None or size == self.facts.native:
            return super().fresh()
        return copy.deepcopy(made_for(self._library, self._state, size, self._override)[0])

    def explicit(self, size: Resolution | None) -> nn.Module:
        """The tower of a size, or one whose table is computed from height and width."""
        network: Any = self.fresh(size)
        if size is None:
            table = self._state[PREFIX + _TABLE].to(network.positional_embedding.dtype)
            network.positional_embedding = nn.Parameter(table, requires_grad=False)
            rule = RULE.overridden(self._override)
            write_in_graph(network, [self._table], self.facts.grid_divisor, rule)
        return network  # type: ignore[no-any-return]

    def position_fits(self, size: Resolution | None) -> tuple[PositionFit, ...]:
        """The table of the weights on its way to a size."""
        facts, old = self.facts, self._table.grid
        new = None if size is None else facts.grid(size)
        rule = str(RULE.overridden(self._override))
        resamples = new is None or new[0] * new[1] != old[0] * old[1]
        return (PositionFit(facts.encoding or "", old, new, rule if resamples else None),)

    def call(self, module: nn.Module, inputs: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Run the tower as ``encode_image`` does; tokens are those before the last norm."""
        with captured({"tokens": "transformer"}, module) as found:
            result = module(inputs)
        # Towers of a CoCa give the tokens of their pooler too.
        found["embedding"] = result[0] if isinstance(result, tuple) else result
        tokens = found["tokens"]
        found["cls"] = tokens[:, 0]
        if "feature-map" in names:
            grid = self.facts.grid(Resolution(*inputs.shape[-2:]))
            found["feature-map"] = torch.unflatten(tokens[:, 1:].transpose(1, 2), 2, grid)
        return {name: found[name] for name in names}
