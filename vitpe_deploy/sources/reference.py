"""The reference networks: ours, small enough to read, with any positional encoding.

Their eager forward interpolates with torch's own operators and is the referee of every export;
the exported positions come from the encoding's ``fit`` or ``in_graph``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from vitpe_deploy import encodings
from vitpe_deploy.errors import MissingExtraError, UnsupportedError, UsageError
from vitpe_deploy.models.presets import VIT_PRESETS, ViTConfig, with_options
from vitpe_deploy.request import ModelRequest, Resolution, closest
from vitpe_deploy.sources.base import (
    LoadedModel,
    ModelFacts,
    PositionFit,
    SizeRule,
    Source,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

_ENCODING_OPTION = "pe."


class ReferenceSource(Source):
    """A preset by name; ``--pe`` and ``--model-kwarg`` change it."""

    def __init__(self, request: ModelRequest) -> None:
        super().__init__(request)
        self.refuse_unused(tower=request.tower, pos_embed=request.pos_embed)
        preset = VIT_PRESETS.get(request.model)
        if preset is None:
            raise UsageError(
                f"MODEL {request.model!r} is not a reference model",
                hint=f"{closest(request.model, VIT_PRESETS)}Choose from: {', '.join(VIT_PRESETS)}.",
            )
        if request.encoding is not None:
            preset = replace(preset, encoding=encodings.check_name(request.encoding))
        options = {k: v for k, v in request.kwargs.items() if not k.startswith(_ENCODING_OPTION)}
        config = with_options(preset, options)
        encodings.check_name(config.encoding)
        own = {
            k.removeprefix(_ENCODING_OPTION): _literal(v)
            for k, v in request.kwargs.items()
            if k.startswith(_ENCODING_OPTION)
        }
        self.config = replace(config, encoding_params={**config.encoding_params, **own})
        self._preset = preset

    def facts(self) -> ModelFacts:
        """Read off the preset; no torch."""
        suffix = "" if self.config.encoding == "learned-1d" else f"+{self.config.encoding}"
        return config_facts(
            self.config, name=f"{self.request.model}{suffix}", spec=self.request.model
        )

    def load(self) -> LoadedModel:
        """Seeded random weights, or those of ``--weights``."""
        try:
            import torch
        except ImportError as problem:
            raise MissingExtraError("torch", "export") from problem
        from vitpe_deploy.models.vit import VisionTransformer
        from vitpe_deploy.sources.weights import load_into, read_state_dict

        config = self._with_resample_rule()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.request.seed)
            module = VisionTransformer(config)
        origin = f"random, seed {self.request.seed}"
        if self.request.weights is not None:
            unwrapped = load_into(module, read_state_dict(self.request.weights), self.request.weights)
            origin = f"from {self.request.weights.name}"
            origin += f", unwrapped {', '.join(unwrapped)}" if unwrapped else ""
        return ReferenceModel(self.facts(), module, origin)

    def _with_resample_rule(self) -> ViTConfig:
        """The config with the user's resample override inside the encoding."""
        override = self.request.resample
        encoding = encodings.get(self.config.encoding)
        parameters = inspect.signature(encoding.__init__).parameters
        unknown = [n for n in self.config.encoding_params if n not in parameters]
        if unknown:
            known = [n for n in parameters if n not in ("self", "spec", "rule")]
            raise UsageError(
                f"--model-kwarg pe.{unknown[0]} is not an option of {self.config.encoding}",
                hint=f"{closest(unknown[0], known)}Choose from: {', '.join(known) or 'none'}.",
            )
        if not override:
            return self.config
        if "rule" not in parameters:
            raise UnsupportedError(
                f"--interpolation, --antialias and --align-corners have no meaning for "
                f"{self.config.encoding} positions, which are not resampled",
                hint="Leave them out.",
            )
        from vitpe_deploy.encodings.resample import ResampleRule

        params: Mapping[str, Any] = self.config.encoding_params
        rule = params.get("rule", ResampleRule()).overridden(override)
        return replace(self.config, encoding_params={**params, "rule": rule})


class ReferenceModuleSource(Source):
    """A reference network that was built in Python."""

    anonymous: ClassVar[bool] = True

    def __init__(self, module: nn.Module, request: ModelRequest) -> None:
        super().__init__(request)
        self._module = module

    def facts(self) -> ModelFacts:
        """Read off the module's own config."""
        network: Any = self._module
        name = type(self._module).__name__
        return config_facts(network.config, name=name.lower(), spec=name)

    def load(self) -> LoadedModel:
        """The module itself; it is copied, never changed or run."""
        return ReferenceModel(self.facts(), self._module, "of the module")


def config_facts(config: ViTConfig, *, name: str, spec: str) -> ModelFacts:
    """What a network's config says; no torch."""
    patch = (config.patch_size, config.patch_size)
    logits = ("logits",) if config.num_classes else ()
    cls = ("cls",) if config.class_token else ()
    return ModelFacts(
        name=name,
        spec=spec,
        native=Resolution(*config.image_size),
        size_rule=SizeRule(patch, f"patch size {config.patch_size}"),
        grid_divisor=patch,
        encoding=config.encoding,
        encoding_params={k: _plain(v) for k, v in config.encoding_params.items()},
        prefix_tokens=config.prefix_tokens + config.register_tokens,
        outputs=(*logits, "pooled", *cls, "tokens", "feature-map"),
        default_outputs=logits or ("pooled",),
        depth=config.depth,
        channels=config.in_channels,
    )


def _plain(value: object) -> object:
    """Numbers and text as they are, anything else as text."""
    return value if isinstance(value, (bool, int, float, str)) else str(value)


class ReferenceModel(LoadedModel):
    """A reference network and its weights."""

    def block_paths(self) -> tuple[str, ...]:
        """``blocks.k``."""
        return tuple(f"blocks.{k}" for k in range(self.facts.depth))

    def call(self, module: nn.Module, inputs: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Features by name, with logits computed only when asked for."""
        network: Any = module
        features = network.forward_features(inputs)
        if "logits" in names:
            features["logits"] = network.forward_head(features)
        return {name: features[name] for name in names}

    def explicit(self, size: Resolution | None) -> nn.Module:
        """Every encoding answers by ``fit`` at the size's grid, or by ``in_graph``."""
        network: Any = self.fresh()
        resolved: nn.Module = network.resolve(None if size is None else self.facts.grid(size))
        return resolved

    def position_fits(self, size: Resolution | None) -> tuple[PositionFit, ...]:
        """From the encoding's own description."""
        network: Any = self._pristine
        described = network.encoding.describe()
        new = None if size is None else self.facts.grid(size)
        return (
            PositionFit(described.kind, described.native_grid, new, described.resample_rule),
        )


def _literal(value: Any) -> Any:
    """Numbers and booleans from shell text; other text stays text."""
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


SOURCE = ReferenceSource
