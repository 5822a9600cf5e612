"""Where a family of the transformers library is declared.

Most families need no declaration: the class that the library has for a ``model_type`` is made
without data and looked at (transformers_pictures.py). A :class:`Family` says what looking does not
show. Families whose input is not one picture have a kind of their own: a file of this folder with a
``KIND``, named in ``KINDS``.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from vitpe_deploy.preprocess import Preprocess
from vitpe_deploy.request import ModelRequest
from vitpe_deploy.sources.base import LoadedModel, ModelFacts

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class Family:
    """What one ``model_type`` needs beyond what a look at its class tells.

    Attributes:
        config: values that the config must have, whatever the checkpoint says.
        part: the submodule that reads pictures, of a class that reads more than them.
        encoding: kind of the positions, where the names of parameters do not tell.
        no_dynamic: why no file with symbolic height and width comes out right.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    part: str = ""
    encoding: str | None = None
    no_dynamic: str = ""


FAMILIES: Mapping[str, Family] = {
    # Masking shuffles tokens by random numbers; nothing masked and numbers that ascend (the
    # network is called with them as its `noise`) leave every token where it is.
    "vit_mae": Family(config={"mask_ratio": 0.0}),
    # Sine and cosine of the tubelet's number, in a tensor that is no parameter.
    "videomae": Family(encoding="sincos-1d"),
    "sam": Family(part="vision_encoder"),
    "sam_hq": Family(part="vision_encoder"),
}

PLAIN = ("vit", "deit", "dinov2", "dinov2_with_registers")
"""Read off the config without torch: see transformers_plain.py."""

KINDS: Mapping[str, str] = {
    **dict.fromkeys(PLAIN, "transformers_plain"),
    "videomae": "transformers_video",
}
"""``model_type`` -> file of its kind; every other one is looked at as a network of pictures."""


@dataclass(frozen=True, slots=True)
class Given:
    """One model as its files, or the module itself, describe it.

    Attributes:
        config: ``config.json`` with the overrides of ``--model-kwarg``.
        name: stem of the files that are written.
        spec: how errors and reports name it.
        module: a network that was built in Python, in place of files.
    """

    config: Mapping[str, Any]
    request: ModelRequest
    name: str
    spec: str
    preprocess: Preprocess = Preprocess()
    module: nn.Module | None = None

    @property
    def model_type(self) -> str:
        """The library's name of the family."""
        return str(self.config.get("model_type"))

    @property
    def family(self) -> Family:
        """Its declaration; an empty one where looking is enough."""
        return FAMILIES.get(self.model_type, Family())


class Kind(ABC):
    """How networks of some families are described, loaded and called."""

    towers: ClassVar[bool] = False
    """Whether ``--tower`` has a meaning."""

    reads_text: ClassVar[bool] = False
    """Whether ``--max-length`` has a meaning."""

    @abstractmethod
    def architecture(self, given: Given) -> str:
        """Name of the class to load the weights with."""

    @abstractmethod
    def facts(self, given: Given) -> ModelFacts:
        """What is known without weights.

        Raises:
            UnsupportedError: refused with the reason.
        """

    @abstractmethod
    def model(
        self, given: Given, facts: ModelFacts, module: nn.Module, weights: str
    ) -> LoadedModel:
        """The loaded network and how its library runs it."""

    def takes_module(self, module: nn.Module) -> bool:
        """Whether a network that was built in Python is one of the kind."""
        del module
        return False

    def config(self, given: Given) -> Mapping[str, Any]:
        """The config that the class is made with; a composed model may give that of one tower."""
        return {**given.config, **given.family.config}


def kind_of(model_type: str, config: Mapping[str, Any] | None = None) -> Kind:
    """The kind of a family; of families that are not named, what its config describes."""
    file = KINDS.get(model_type) or _described(model_type, config or {})
    kind: Kind = importlib.import_module(f"vitpe_deploy.sources.{file}").KIND
    return kind


def _described(model_type: str, config: Mapping[str, Any]) -> str:
    """The file of the kind whose settings a config has: two towers, words, clips or pictures."""
    if model_type in FAMILIES:
        return "transformers_pictures"
    if "vision_config" in config and "text_config" in config:
        return "transformers_towers"
    if "num_frames" in config:
        return "transformers_video"
    if "image_size" in config or "patch_size" in config:
        return "transformers_pictures"
    return "transformers_text" if "vocab_size" in config else "transformers_pictures"
