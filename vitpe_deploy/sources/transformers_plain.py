"""Plain ViTs of the transformers library: what they are is said by their config alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitpe_deploy.sources.base import LoadedModel, ModelFacts
from vitpe_deploy.sources.transformers_facts import (
    PLAIN_FAMILIES,
    architecture_of,
    class_among,
    config_facts,
    named_architecture,
)
from vitpe_deploy.sources.transformers_family import Given, Kind

if TYPE_CHECKING:
    from torch import nn


class Plain(Kind):
    """ViT, DeiT, DINOv2: patches, a learned table, blocks."""

    def architecture(self, given: Given) -> str:
        """The named class where it is one of the family's, else the bare encoder."""
        named = named_architecture(given.config)
        if given.module is not None:
            name = type(given.module).__name__
            named = class_among(given.module, PLAIN_FAMILIES[given.model_type].classes) or name
        return architecture_of(given.config, named)

    def takes_module(self, module: nn.Module) -> bool:
        """A class of the family, or one derived from it."""
        config: Any = module.config
        return class_among(module, PLAIN_FAMILIES[config.model_type].classes) is not None

    def facts(self, given: Given) -> ModelFacts:
        """Read off the config; no torch."""
        return config_facts(
            given.config,
            self.architecture(given),
            name=given.name,
            spec=given.spec,
            preprocess=given.preprocess,
        )

    def model(
        self, given: Given, facts: ModelFacts, module: nn.Module, weights: str
    ) -> LoadedModel:
        """Called with ``interpolate_pos_encoding`` where the class has it."""
        from vitpe_deploy.sources.transformers_model import TransformersModel

        return TransformersModel(
            facts,
            module,
            weights,
            given.request.resample,
            interpolate_flag=PLAIN_FAMILIES[given.model_type].interpolate_flag
            and facts.size_rule.fixed is None,
        )


KIND = Plain()
