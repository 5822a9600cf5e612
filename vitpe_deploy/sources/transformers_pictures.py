"""Networks of the transformers library that read one picture, found out by looking at them.

The class is made on the ``meta`` device from the config alone and run: what comes out names the
outputs, the sizes at which it runs give the size rule, the interpolations it makes are its
positions. What a look does not tell is declared in transformers_family.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vitpe_deploy.errors import SourceError, UnsupportedError
from vitpe_deploy.inputs import ImageInput
from vitpe_deploy.request import Resolution
from vitpe_deploy.sources.base import LoadedModel, ModelFacts, SizeRule
from vitpe_deploy.sources.transformers_facts import labels_of, named_architecture
from vitpe_deploy.sources.transformers_family import Given, Kind

if TYPE_CHECKING:
    from torch import nn

_HEADS_OF_TRAINING = ("ForPreTraining", "ForMaskedImageModeling")
"""Checkpoints are saved with them; what is exported is the encoder inside."""


class Pictures(Kind):
    """Any class whose forward takes pixel values [B, C, H, W]."""

    def architecture(self, given: Given) -> str:
        """The class that the config names, where the library has it, else AutoModel's."""
        from vitpe_deploy.sources.transformers_library import (
            base_class_of,
            class_of,
            config_object,
        )

        if given.module is not None:
            return type(given.module).__name__
        config = config_object(self.config(given))
        cls: Any = class_of(named_architecture(given.config)) or base_class_of(config)
        if cls is None:
            raise UnsupportedError(
                f"transformers has no network of type {given.model_type!r} to load by itself",
                hint="Say which class in config.json's architectures.",
            )
        part = given.family.part
        if not part and getattr(cls, "main_input_name", "") != "pixel_values":
            raise UnsupportedError(
                f"{cls.__name__} of {given.spec} does not read pictures alone "
                f"(its main input is {getattr(cls, 'main_input_name', 'unknown')})",
                hint="Export its vision encoder: a folder saved from that class.",
            )
        name: str = cls.__name__
        return name

    def takes_module(self, module: nn.Module) -> bool:
        """Any network of the library, as itself or derived, that reads pixel values."""
        from vitpe_deploy.sources.transformers_library import class_of

        known = any(class_of(c.__name__) is c for c in type(module).__mro__)
        return known and getattr(module, "main_input_name", "") == "pixel_values"

    def probe(self, given: Given, config: Mapping[str, Any]) -> nn.Module:
        """The network without data."""
        from vitpe_deploy.sources.transformers_library import class_of, make

        cls: Any = type(given.module) if given.module is not None else None
        return self.inside(given, make(cls or class_of(self.architecture(given)), config))

    def inside(self, given: Given, module: nn.Module) -> nn.Module:
        """The part that is exported: the network itself, or its encoder."""
        if given.family.part and hasattr(module, given.family.part):
            return module.get_submodule(given.family.part)
        if type(module).__name__.endswith(_HEADS_OF_TRAINING):
            network: Any = module
            return module.get_submodule(network.base_model_prefix)
        return module

    def facts(self, given: Given) -> ModelFacts:
        """Found on a network without data."""
        from vitpe_deploy.sources.transformers_look import look

        config = self.config(given)
        probe: Any = self.probe(given, config)
        channels = int(getattr(probe.config, "num_channels", 3) or 3)
        native = native_size(probe.config)
        seen = look(probe, native, channels, lambda size: self._another(given, size))
        if seen.outcome.reason:
            raise SourceError(
                f"{given.spec} does not run on pictures of {native}: {seen.outcome.reason}",
                hint="Only networks that take pixel values [B, C, H, W] can be exported.",
            )
        no_dynamic = _why_not_dynamic(seen.rule) or given.family.no_dynamic
        head = "logits" in seen.outputs and seen.outcome.outputs["logits"].dim() == 2
        return ModelFacts(
            name=given.name,
            spec=given.spec,
            native=native,
            size_rule=seen.rule,
            grid_divisor=seen.grid_divisor,
            encoding=given.family.encoding or seen.encoding,
            encoding_params={},
            prefix_tokens=seen.prefix_tokens,
            outputs=seen.outputs,
            default_outputs=seen.default_outputs,
            depth=seen.depth,
            input=ImageInput(channels),
            preprocess=given.preprocess,
            labels=labels_of(given.config) if head else (),
            no_dynamic=no_dynamic,
        )

    def _another(self, given: Given, size: Resolution) -> nn.Module | None:
        """The same class made for another ``image_size``, when that is a key of its config."""
        config = dict(self.config(given))
        key = next((k for k in ("image_size", "pretrain_image_size") if config.get(k)), None)
        if key is None:
            return None
        square = isinstance(config[key], int)
        config[key] = size.height if square else [size.height, size.width]
        try:
            return self.probe(given, config)
        except SourceError:
            return None

    def model(
        self, given: Given, facts: ModelFacts, module: nn.Module, weights: str
    ) -> LoadedModel:
        """Called as the library documents it."""
        from vitpe_deploy.sources.transformers_model import PictureModel

        return PictureModel(facts, self.inside(given, module), weights, given.request.resample)


def native_size(config: Any) -> Resolution:
    """``image_size`` of a config; 224 where a network has none of its own."""
    size = getattr(config, "image_size", None)
    if size is None:
        backbone = getattr(config, "backbone_config", None)
        size = getattr(backbone, "image_size", None) or 224
    pair = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    if len(pair) != 2 or not all(isinstance(n, int) and n > 0 for n in pair):
        raise SourceError(f"config.json says image_size = {size!r}, which is not a size")
    return Resolution(pair[0], pair[1])


def _why_not_dynamic(rule: SizeRule) -> str:
    return rule.fixed_reason if rule.fixed is not None else rule.square


KIND = Pictures()
