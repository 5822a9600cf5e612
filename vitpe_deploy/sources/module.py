"""A module that was built in Python: its facts are found by looking at it and running it once.

Modules of a library that has a source of its own (a reference network, a transformers model) are
handed to that source; anything else is described by its patch convolution, its blocks, and what
comes out of a run without data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitpe_deploy.errors import SourceError, UnsupportedError, UsageError, VitpeError
from vitpe_deploy.inputs import ImageInput
from vitpe_deploy.request import ModelRequest, Resolution
from vitpe_deploy.sources.base import LoadedModel, ModelFacts, SizeRule, Source
from vitpe_deploy.sources.inspection import (
    detached,
    longest_stack,
    patch_convolution,
    without_data,
)
from vitpe_deploy.sources.watched import WatchedModel

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
        from vitpe_deploy.sources.transformers_facts import FAMILIES, class_among

        family = FAMILIES.get(str(getattr(module.config, "model_type", None)))
        if family is not None and class_among(module, family.classes) is not None:
            return TransformersModuleSource(module, request)
    return ModuleSource(module, request, size)


class ModuleSource(Source):
    """Any ``nn.Module`` that takes pixel values [B, C, H, W]."""

    anonymous: ClassVar[bool] = True

    def __init__(self, module: nn.Module, request: ModelRequest, size: Resolution | None) -> None:
        super().__init__(request)
        if size is None:
            raise UsageError(
                f"{type(module).__name__} does not say its native size", hint="Give a resolution."
            )
        if module.training:
            raise UsageError(
                f"{type(module).__name__} is in training mode", hint="Call module.eval() first."
            )
        self._module = module
        self._size = size
        self._facts: ModelFacts | None = None

    def facts(self) -> ModelFacts:
        """Found by inspection and one run without data, at the size asked for."""
        if self._facts is None:
            self._facts = self._find_facts()
        return self._facts

    def _find_facts(self) -> ModelFacts:
        module, name = self._module, type(self._module).__name__
        convolution = patch_convolution(module)
        if convolution is None:
            raise UnsupportedError(
                f"{name} has no patch embedding (a convolution whose stride is its kernel size)",
                hint="Export a Vision Transformer, or one of the named sources.",
            )
        patch = (int(convolution.kernel_size[0]), int(convolution.kernel_size[1]))
        rule = SizeRule.for_patches(patch, remainder="floors")
        copied = detached(module)
        try:
            with without_data():
                pixels = torch.empty(1, convolution.in_channels, *self._size.as_list())
                found = named_outputs(copied(pixels))
        except VitpeError:
            raise
        except Exception as problem:
            rule.check(self._size)  # names sizes that fit, when that is why it failed
            lines = str(problem).strip().splitlines() or [type(problem).__name__]
            raise SourceError(f"{name} does not run at {self._size}: {lines[0][:200]}") from problem
        stack = longest_stack(module)
        return ModelFacts(
            name=name.lower(),
            spec=name,
            native=None,
            size_rule=rule,
            grid_divisor=patch,
            encoding=None,
            encoding_params={},
            prefix_tokens=0,
            outputs=tuple(found),
            default_outputs=tuple(found),
            depth=len(stack),
            input=ImageInput(convolution.in_channels),
        )

    def load(self) -> LoadedModel:
        """The module itself; it is copied, never changed or run."""
        module = detached(self._module)
        return PlainModel(self.facts(), module, "of the module", self.request.resample)


class PlainModel(WatchedModel):
    """A module called with pixel values and nothing else."""

    def block_paths(self) -> tuple[str, ...]:
        """The longest stack of equal modules, which gave the facts their depth."""
        return longest_stack(self._pristine)

    def call(self, module: nn.Module, inputs: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Outputs by the names that :func:`named_outputs` gives them."""
        found = named_outputs(module(inputs))
        return {name: found[name] for name in names}


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
