"""A module that was built in Python: its facts are found by looking at it and running it once.

Modules of a library that has a source of its own (a reference network, a transformers model) are
handed to that source; anything else is described by its patch convolution, its blocks, the tables
that tie it to a size, and what comes out of a run without data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from vitpe_deploy.encodings.resample import ResampleRule, interpolate_grid, resample_grid
from vitpe_deploy.errors import UnsupportedError, UsageError
from vitpe_deploy.inputs import ImageInput
from vitpe_deploy.request import ModelRequest, ResampleOverride, Resolution
from vitpe_deploy.sources.base import LoadedModel, ModelFacts, PositionFit, Source
from vitpe_deploy.sources.inspection import detached, longest_stack, with_own_memory
from vitpe_deploy.sources.module_sizes import ModuleSizes, find_sizes
from vitpe_deploy.sources.observe import TableResample
from vitpe_deploy.sources.offset_tables import find_offset_method, write_offset_in_graph
from vitpe_deploy.sources.tables import Resample, fitted, install, write_in_graph
from vitpe_deploy.sources.timm_traceable import make_traceable
from vitpe_deploy.sources.torchvision_windows import make_torchvision_traceable
from vitpe_deploy.sources.watched import WatchedModel
from vitpe_deploy.sources.weights import load_checkpoint

_BY_RANK = {2: "logits", 3: "tokens", 4: "feature-map"}
_RENAMED = {"last_hidden_state": "tokens", "pooler_output": "pooled"}


def open_module(module: nn.Module, request: ModelRequest, size: Resolution | None) -> Source:
    """The source that knows most about ``module``."""
    from vitpe_deploy.models.vit import VisionTransformer

    if isinstance(module, VisionTransformer):
        from vitpe_deploy.sources.reference import ReferenceModuleSource

        return ReferenceModuleSource(module, request)
    if hasattr(module, "config") and hasattr(module, "base_model_prefix"):
        from vitpe_deploy.sources.transformers import TransformersModuleSource
        from vitpe_deploy.sources.transformers_family import kind_of

        config: Any = module.config
        values = config.to_dict() if hasattr(config, "to_dict") else {}
        kind = kind_of(str(getattr(config, "model_type", None)), values)
        if kind.takes_module(module):
            return TransformersModuleSource(module, request)
    return ModuleSource(module, request, size)


class ModuleSource(Source):
    """Any ``nn.Module`` that takes pixel values [B, C, H, W]."""

    anonymous: ClassVar[bool] = True

    def __init__(self, module: nn.Module, request: ModelRequest, size: Resolution | None) -> None:
        super().__init__(request)
        self.refuse_unused(pe=request.encoding, tower=request.tower, max_length=request.max_length)
        if module.training:
            raise UsageError(
                f"{type(module).__name__} is in training mode", hint="Call module.eval() first."
            )
        self.module = module
        self._size = size
        self._found: ModuleSizes | None = None

    def facts(self) -> ModelFacts:
        """Found by inspection and runs without data, at the size asked for and at another."""
        name = type(self.module).__name__
        return module_facts(self.module, self.sizes(), name=name.lower(), spec=name)

    def sizes(self) -> ModuleSizes:
        """Sizes and tables, found once."""
        if self._found is None:
            self._found = find_sizes(self.module, self._size, self.request.pos_embed)
        return self._found

    def load(self) -> LoadedModel:
        """The module itself; it is copied, never changed or run."""
        module, origin = self.weighted()
        return PlainModel(self.facts(), module, origin, self.request.resample, self.sizes())

    def weighted(self) -> tuple[nn.Module, str]:
        """A copy of the module with the weights of ``--weights``, and where they come from."""
        path = self.request.weights
        if path is None:
            return detached(self.module), "of the module"
        module = with_own_memory(detached(self.module))
        return module, load_checkpoint(module, path)


def module_facts(module: nn.Module, sizes: ModuleSizes, *, name: str, spec: str) -> ModelFacts:
    """Facts of a module that was looked at.

    Raises:
        UnsupportedError: it returns no tensors.
    """
    found = named_outputs(sizes.trial.outputs)
    kinds = dict.fromkeys(table.kind for table in sizes.tables)
    prefix = sizes.tables[0].prefix if sizes.tables else 0
    return ModelFacts(
        name=name,
        spec=spec,
        native=sizes.native,
        size_rule=sizes.rule,
        grid_divisor=sizes.patch,
        encoding="+".join(kinds) or None,
        encoding_params={"table": ", ".join(t.path for t in sizes.tables)} if kinds else {},
        prefix_tokens=prefix,
        outputs=tuple(found),
        default_outputs=tuple(found),
        depth=len(longest_stack(module)),
        input=ImageInput(sizes.channels),
        no_dynamic=sizes.no_dynamic,
    )


class PlainModel(WatchedModel):
    """A module called with pixel values and nothing else.

    Where its own code runs at any size, that is the reference. Where its tables belong to one
    size, the reference is the module with those tables resampled by torch, and nothing else.
    """

    def __init__(
        self,
        facts: ModelFacts,
        pristine: nn.Module,
        weights: str,
        override: ResampleOverride,
        sizes: ModuleSizes,
    ) -> None:
        super().__init__(facts, pristine, weights, override)
        self._sizes = sizes

    @property
    def _rule(self) -> ResampleRule:
        """How tables are resampled of which the module has no rule: as timm does."""
        return ResampleRule().overridden(self._override)

    def block_paths(self) -> tuple[str, ...]:
        """The longest stack of equal modules, which gave the facts their depth."""
        return longest_stack(self._pristine)

    def call(self, module: nn.Module, inputs: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Outputs by the names that :func:`named_outputs` gives them."""
        found = named_outputs(module(inputs))
        return {name: found[name] for name in names}

    def fresh(self, size: Resolution | None = None, *, symbolic: bool = False) -> nn.Module:
        """An untouched copy; tables that belong to one size are resampled by torch."""
        return self._fitted(super().fresh(), size, interpolate_grid)

    def explicit(self, size: Resolution | None) -> nn.Module:
        """A copy with tables as constants, or computed from height and width."""
        network = make_traceable(super().fresh(), symbolic=size is None)
        make_torchvision_traceable(network)
        if size is not None:
            return self._fitted(network, size, resample_grid)
        if self._sizes.tables:
            write_in_graph(network, self._sizes.tables, self._sizes.patch, self._rule)
        elif any(call.rule.offset for call in self._watched(None)):
            self._write_offset(network)
        return network

    def _write_offset(self, network: nn.Module) -> None:
        """Scale factors in Python floats would freeze at the size of the trace."""
        patch, step = self._sizes.patch, self.facts.size_rule.divisor
        sizes = tuple(Resolution(h * step[0], w * step[1]) for h, w in ((3, 5), (7, 4)))
        method = find_offset_method(super().fresh(), patch, sizes, self._sizes.channels)
        if method is not None:
            write_offset_in_graph(network, method, patch, self._override)

    def _watched(self, size: Resolution | None) -> list[TableResample]:
        rule = self.facts.sizes(symbolic=size is None)
        native = self.facts.native or Resolution(*(16 * d for d in rule.divisor))
        return self._observed(size or rule.nearby(native)[2], symbolic=size is None)

    def _fitted(self, network: nn.Module, size: Resolution | None, resample: Resample) -> nn.Module:
        tables = self._sizes.tables
        if size is not None and tables:
            grid = self.facts.grid(size)
            install(network, fitted(network, tables, grid, resample, self._rule))
        return network

    def position_fits(self, size: Resolution | None) -> tuple[PositionFit, ...]:
        """The tables that were found, or what the module interpolates itself."""
        if not self._sizes.tables:
            return super().position_fits(size)
        new = None if size is None else self.facts.grid(size)
        rule = f"{self._rule} (ours: the module has no rule)"
        fits = [PositionFit(t.kind, t.grid, new, rule) for t in self._sizes.tables]
        return tuple(dict.fromkeys(fits))


def named_outputs(result: Any) -> dict[str, Tensor]:
    """Names for whatever a module returns: its own keys, else by rank (logits, tokens, ...).

    Raises:
        UnsupportedError: no tensors.
    """
    if isinstance(result, Tensor):
        return {_BY_RANK.get(result.dim(), "output"): result}
    if isinstance(result, Mapping):
        named = {str(k): v for k, v in result.items() if isinstance(v, Tensor)}
        if named:
            return {_RENAMED.get(k, k): v for k, v in named.items()}
    if isinstance(result, (tuple, list)):
        tensors = [v for v in result if isinstance(v, Tensor)]
        if tensors:
            return {f"output{k}": v for k, v in enumerate(tensors)}
    raise UnsupportedError(f"the module returns {type(result).__name__}, which holds no tensor")
