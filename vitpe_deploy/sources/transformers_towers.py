"""Models of the transformers library that read pictures and text in two towers (CLIP, SigLIP, ...).

Recognised by what they can do, not by name: the class has ``get_image_features`` and
``get_text_features``. A tower is the model with everything taken off that such a call does not
reach, and what comes out is what that call gives: tokens, ``pooled`` before and ``embedding`` after
the projection, not normalised.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from vitpe_deploy.errors import SourceError, UnsupportedError
from vitpe_deploy.pairing import Pairing
from vitpe_deploy.request import Resolution
from vitpe_deploy.sources.base import LoadedModel, ModelFacts
from vitpe_deploy.sources.transformers_facts import named_architecture
from vitpe_deploy.sources.transformers_family import Given, Kind
from vitpe_deploy.sources.transformers_pictures import Pictures
from vitpe_deploy.towers import TEXT, VISION, chosen_tower

if TYPE_CHECKING:
    from torch import nn

FEATURES: Mapping[str, str] = {VISION: "get_image_features", TEXT: "get_text_features"}


class Towers(Kind):
    """Either tower; which one, the request says."""

    towers: ClassVar[bool] = True
    reads_text: ClassVar[bool] = True

    def architecture(self, given: Given) -> str:
        """The class that the config names, where it holds both towers, else AutoModel's."""
        from vitpe_deploy.sources.transformers_library import (
            base_class_of,
            class_of,
            config_object,
        )

        if given.module is not None:
            return type(given.module).__name__
        config = config_object(self.config(given))
        cls: Any = class_of(named_architecture(given.config)) or base_class_of(config)
        base: Any = base_class_of(config)
        found = [c for c in (cls, base) if c is not None]
        if not any(_has_towers(c) for c in found):
            raise UnsupportedError(
                f"{given.spec} is of type {given.model_type!r}, which has no vision and text "
                "towers that answer by themselves",
                hint="Export its vision encoder: a folder saved from that class.",
            )
        name: str = found[0].__name__
        return name

    def takes_module(self, module: nn.Module) -> bool:
        """A network with both towers."""
        return _has_towers(composed(module))

    def facts(self, given: Given) -> ModelFacts:
        """Those of the tower that is asked for."""
        tower = chosen_tower(given.request)
        named = replace(given, name=f"{given.name}-{tower}")
        return _kind(tower).facts(named)

    def model(
        self, given: Given, facts: ModelFacts, module: nn.Module, weights: str
    ) -> LoadedModel:
        """The tower alone, and how the library compares it with the other."""
        pairing = _pairing(composed(module))
        loaded = _kind(chosen_tower(given.request)).model(given, facts, module, weights)
        loaded.pairing = pairing
        return loaded


class VisionTowers(Pictures):
    """The tower of pictures, as a network of pictures."""

    def architecture(self, given: Given) -> str:
        """The composed class."""
        return KIND.architecture(given)

    def inside(self, given: Given, module: nn.Module) -> nn.Module:
        """The tower in place of the model."""
        from vitpe_deploy.sources.transformers_tower_modules import VisionTower

        return VisionTower(composed(module))

    def facts(self, given: Given) -> ModelFacts:
        """Found on the tower without data."""
        facts = super().facts(given)
        if "embedding" not in facts.outputs:
            raise UnsupportedError(f"{FEATURES[VISION]} of {given.spec} gives no embedding")
        return facts if facts.encoding else replace(facts, encoding="learned-1d")

    def _another(self, given: Given, size: Resolution) -> nn.Module | None:
        config = dict(self.config(given))
        vision = dict(config["vision_config"])
        if not vision.get("image_size"):
            return None
        vision["image_size"] = size.height
        try:
            return self.probe(given, {**config, "vision_config": vision})
        except SourceError:
            return None


def _kind(tower: str) -> Kind:
    if tower == VISION:
        return VisionTowers()
    from vitpe_deploy.sources.transformers_text import TextTowers

    return TextTowers()


def composed(module: nn.Module) -> nn.Module:
    """The network that holds the towers: the one loaded, or the one inside a head for a task."""
    network: Any = module
    if _has_towers(network):
        return module
    inner: Any = getattr(network, str(getattr(network, "base_model_prefix", "")), module)
    return inner  # type: ignore[no-any-return]


def _pairing(network: Any) -> Pairing | None:
    """From the two numbers that CLIP and its kin learn beside their towers."""
    scale, bias = getattr(network, "logit_scale", None), getattr(network, "logit_bias", None)
    if scale is None or scale.numel() != 1:
        return None
    return Pairing(
        scale=math.exp(float(scale.detach())),
        bias=0.0 if bias is None else float(bias.detach()),
        scores="softmax" if bias is None else "sigmoid",
    )


def _has_towers(network: object) -> bool:
    return all(callable(getattr(network, name, None)) for name in FEATURES.values())


KIND = Towers()
