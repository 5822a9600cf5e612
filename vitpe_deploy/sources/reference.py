"""The reference networks: ours, small enough to read, with any positional encoding.

Their eager forward interpolates with torch's own operators and is the referee of every export;
the exported positions come from the encoding's ``fit`` or ``in_graph``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vitpe_deploy import digits, encodings
from vitpe_deploy.errors import MissingExtraError, UnsupportedError, UsageError
from vitpe_deploy.models.networks import (
    block_paths,
    find_preset,
    input_layout,
    native_size,
    network_of,
    output_names,
    patch_grid,
    with_encoding,
)
from vitpe_deploy.models.presets import SwinConfig, TextConfig, ViTConfig, with_options
from vitpe_deploy.request import ModelRequest, Resolution, closest
from vitpe_deploy.sources.base import (
    LengthRule,
    LoadedModel,
    ModelFacts,
    PositionFit,
    Remainder,
    SizeRule,
    Source,
)
from vitpe_deploy.text_length import check_max_length

if TYPE_CHECKING:
    from torch import Tensor, nn

_ENCODING_OPTION = "pe."


class ReferenceSource(Source):
    """A preset by name; ``--pe`` and ``--model-kwarg`` change it."""

    declares_encoding: ClassVar[bool] = True

    def __init__(self, request: ModelRequest) -> None:
        super().__init__(request)
        self.refuse_unused(tower=request.tower, pos_embed=request.pos_embed)
        self.network, config = find_preset(request.model)
        self.embedded = digits.is_embedded(request.model)
        if self.embedded and request.encoding not in (None, config.encoding):
            raise _trained_with(request, config.encoding)
        self._own_encoding = config.encoding
        if request.encoding is not None:
            config = with_encoding(config, request.encoding)
        options = {k: v for k, v in request.kwargs.items() if not k.startswith(_ENCODING_OPTION)}
        config = with_options(config, options)
        encodings.check_network(config.encoding, self.network.name)
        own = {
            k.removeprefix(_ENCODING_OPTION): _literal(v)
            for k, v in request.kwargs.items()
            if k.startswith(_ENCODING_OPTION)
        }
        self.config = replace(config, encoding_params={**config.encoding_params, **own})
        self._check_max_length()

    def _check_max_length(self) -> None:
        wanted = self.request.max_length
        if wanted is None:
            return
        if not isinstance(self.config, TextConfig):
            self.refuse_unused(max_length=wanted)
        elif self.config.encoding == "learned-1d":
            check_max_length(wanted, self.config.context_length)

    def facts(self) -> ModelFacts:
        """Read off the preset; no torch."""
        own = self.config.encoding == self._own_encoding
        name = self.request.model if own else f"{self.request.model}+{self.config.encoding}"
        facts = config_facts(
            self.config, name=name, spec=self.request.model, max_length=self.request.max_length
        )
        if not self.embedded:
            return facts
        classes = self.config.num_classes == len(digits.LABELS)
        labels = digits.LABELS if classes else ()
        return replace(facts, preprocess=digits.PREPROCESS, labels=labels)

    def load(self) -> LoadedModel:
        """Those of ``--weights``, else those in the package, else seeded random weights."""
        try:
            import torch
        except ImportError as problem:
            raise MissingExtraError("torch", "export") from problem
        from vitpe_deploy.sources.weights import load_checkpoint, load_into, read_state_dict

        config = self._with_resample_rule()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.request.seed)
            module: Any = self.network.build(config)
        origin = f"random, seed {self.request.seed}"
        path = self.request.weights
        if path is not None:
            origin = load_checkpoint(module, path)
        elif self.embedded:
            path = digits.weights_path(self.request.model)
            load_into(module, read_state_dict(path), Path(path.name))
            origin = digits.ORIGIN
        if self.request.max_length is not None:
            module.set_max_length(self.request.max_length)
        return ReferenceModel(self.facts(), module, origin)

    def outline(self) -> LoadedModel:
        """The network with memory that holds nothing yet."""
        try:
            import torch
        except ImportError as problem:
            raise MissingExtraError("torch", "export") from problem

        with torch.device("meta"):
            module: Any = self.network.build(self._with_resample_rule())
        # Encodings make tensors of numpy's on the way, which meet no parameters of `meta`; memory
        # that nobody writes to costs nothing.
        module.to_empty(device="cpu")
        if self.request.max_length is not None:
            module.set_max_length(self.request.max_length)
        return ReferenceModel(self.facts(), module, "none")

    def _with_resample_rule(self) -> Any:
        """The config with the user's resample override inside the encoding."""
        override = self.request.resample
        kind = self.config.encoding
        encoding = encodings.get_for(kind, self.network.name)
        parameters = inspect.signature(encoding.__init__).parameters
        unknown = [n for n in self.config.encoding_params if n not in parameters]
        if unknown:
            known = [n for n in parameters if n not in ("self", "spec", "rule")]
            raise UsageError(
                f"--model-kwarg pe.{unknown[0]} is not an option of {kind}",
                hint=f"{closest(unknown[0], known)}Choose from: {', '.join(known) or 'none'}.",
            )
        if not override:
            return self.config
        if "rule" not in parameters:
            raise UnsupportedError(
                f"--interpolation, --antialias and --align-corners have no meaning for "
                f"{kind} positions, which are not resampled",
                hint="Leave them out.",
            )
        params: Mapping[str, Any] = self.config.encoding_params
        rule = params.get("rule", parameters["rule"].default)
        return replace(self.config, encoding_params={**params, "rule": rule.overridden(override)})


def _trained_with(request: ModelRequest, encoding: str) -> UsageError:
    """Weights know one encoding; another one has a model of its own, where there is one."""
    wanted = f"{digits.PREFIX}{encodings.check_name(str(request.encoding))}"
    return UsageError(
        f"--pe {request.encoding} does not fit {request.model}, which was trained with {encoding}",
        hint=f"Use the model {wanted} instead." if digits.is_embedded(wanted) else "Leave it out.",
    )


class ReferenceModuleSource(Source):
    """A reference network that was built in Python."""

    anonymous: ClassVar[bool] = True
    declares_encoding: ClassVar[bool] = True

    def __init__(self, module: nn.Module, request: ModelRequest) -> None:
        super().__init__(request)
        self._module = module

    def facts(self) -> ModelFacts:
        """Read off the module's own config."""
        network: Any = self._module
        name = type(self._module).__name__
        limit = getattr(network, "max_length", None)
        return config_facts(network.config, name=name.lower(), spec=name, max_length=limit)

    def load(self) -> LoadedModel:
        """The module itself; it is copied, never changed or run."""
        from vitpe_deploy.sources.inspection import detached

        return ReferenceModel(self.facts(), detached(self._module), "of the module")


def config_facts(config: Any, *, name: str, spec: str, max_length: int | None = None) -> ModelFacts:
    """What a network's config says; no torch."""
    layout, native = input_layout(config), native_size(config)
    rule, patch = _size_rule(config, max_length)
    if isinstance(rule, LengthRule):
        layout = replace(layout, max_length=rule.limit)  # type: ignore[type-var]
        native = Resolution(1, rule.limit)
    outputs = output_names(config)
    registers = config.register_tokens if isinstance(config, ViTConfig) else 0
    return ModelFacts(
        name=name,
        spec=spec,
        native=native,
        size_rule=rule,
        grid_divisor=patch,
        encoding=config.encoding,
        encoding_params={k: _plain(v) for k, v in config.encoding_params.items()},
        prefix_tokens=getattr(config, "prefix_tokens", 0) + registers,
        outputs=outputs,
        default_outputs=outputs[:1],
        depth=len(block_paths(config)),
        input=layout,
    )


def _size_rule(config: Any, max_length: int | None) -> tuple[SizeRule, tuple[int, int]]:
    """The rule for sizes, and pixels per token."""
    if isinstance(config, TextConfig):
        return LengthRule(limit=max_length or config.context_length), (1, 1)
    patch = (config.patch_size, config.patch_size)
    remainder: Remainder = "pads" if isinstance(config, SwinConfig) else "refuses"
    return SizeRule.for_patches(patch, remainder), patch


def _plain(value: object) -> object:
    """Numbers and text as they are, anything else as text."""
    return value if isinstance(value, (bool, int, float, str)) else str(value)


class ReferenceModel(LoadedModel):
    """A reference network and its weights."""

    def block_paths(self) -> tuple[str, ...]:
        """Of the network's config."""
        network: Any = self._pristine
        return block_paths(network.config)

    def call(self, module: nn.Module, inputs: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Features by name, with logits computed only when asked for."""
        network: Any = module
        features = network.forward_features(inputs)
        if "logits" in names:
            features["logits"] = network.forward_head(features)
        return {name: features[name] for name in names}

    def _grid(self, size: Resolution | None) -> tuple[int, int] | None:
        network: Any = self._pristine
        return None if size is None else patch_grid(network.config, size)

    def explicit(self, size: Resolution | None) -> nn.Module:
        """Every encoding answers by ``fit`` at the size's grid, or by ``in_graph``."""
        network: Any = self.fresh()
        resolved: nn.Module = network.resolve(self._grid(size))
        return resolved

    def position_fits(self, size: Resolution | None) -> tuple[PositionFit, ...]:
        """From the encodings' own descriptions; windows keep theirs at every size."""
        from vitpe_deploy.encodings.base import PositionEncoding

        network: Any = self._pristine
        found = []
        for module in network.modules():
            if not isinstance(module, PositionEncoding):
                continue
            described = module.describe()
            follows = network_of(network.config).name not in ("swin", "video")
            new = self._grid(size) if follows else described.native_grid
            found.append(
                PositionFit(described.kind, described.native_grid, new, described.resample_rule)
            )
        return tuple(dict.fromkeys(found))


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
