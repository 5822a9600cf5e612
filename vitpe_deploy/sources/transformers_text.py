"""Text encoders of the transformers library with a learned table of absolute positions.

Token i reads row i, so shorter text reads the first rows and longer text is refused, unless the
table was stretched (``--max-length``). Padding is left unread, as the library's tokenizers ask for
it with ``attention_mask``: the mask is made of the token ids, so the file takes ids alone. Families
that are trained to read their padding get none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from vitpe_deploy.errors import SourceError, UnsupportedError
from vitpe_deploy.inputs import TextInput
from vitpe_deploy.request import Resolution
from vitpe_deploy.sources.base import LengthRule, LoadedModel, ModelFacts
from vitpe_deploy.sources.transformers_facts import named_architecture
from vitpe_deploy.sources.transformers_family import Given, Kind
from vitpe_deploy.text_length import check_max_length

if TYPE_CHECKING:
    from torch import nn

    from vitpe_deploy.sources.transformers_text_model import PositionTable

_HEADS_OF_TRAINING = ("ForPreTraining", "ForMaskedLM")
"""Checkpoints are saved with them; what is exported is the encoder inside."""


class Text(Kind):
    """A network that reads token ids and nothing else."""

    reads_text: ClassVar[bool] = True

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
        name: str = cls.__name__
        return name

    def takes_module(self, module: nn.Module) -> bool:
        """Any network of the library that reads token ids and has a table of positions."""
        from vitpe_deploy.sources.transformers_library import class_of
        from vitpe_deploy.sources.transformers_text_model import find_table

        known = any(class_of(c.__name__) is c for c in type(module).__mro__)
        return known and find_table(self.inside(module)) is not None

    def probe(self, given: Given) -> nn.Module:
        """The network without data."""
        from vitpe_deploy.sources.transformers_library import class_of, make

        cls: Any = type(given.module) if given.module is not None else None
        made = make(cls or class_of(self.architecture(given)), self.config(given))
        return self.inside(made)

    def inside(self, module: nn.Module) -> nn.Module:
        """The part that is exported: the network itself, or its encoder."""
        if type(module).__name__.endswith(_HEADS_OF_TRAINING):
            network: Any = module
            return module.get_submodule(network.base_model_prefix)
        return module

    def facts(self, given: Given) -> ModelFacts:
        """Found on a network without data."""
        from vitpe_deploy.sources.transformers_look import block_paths
        from vitpe_deploy.sources.transformers_text_model import outputs_of

        probe: Any = self.probe(given)
        table = self._table(given, probe)
        limit = given.request.max_length or table.limit
        if given.request.max_length is not None:
            check_max_length(limit, table.limit)
        try:
            outputs = outputs_of(probe)
        except Exception as problem:  # whatever a forward raises on token ids alone
            lines = str(problem).strip().splitlines() or [type(problem).__name__]
            raise UnsupportedError(
                f"{given.spec} does not run on token ids alone: {lines[0][:200]}",
                hint="Only encoders of text can be exported.",
            ) from problem
        heads = tuple(n for n in outputs if n not in ("tokens", "pooled", "cls"))
        return ModelFacts(
            name=given.name,
            spec=given.spec,
            native=Resolution(1, limit),
            size_rule=LengthRule(limit=limit),
            grid_divisor=(1, 1),
            encoding="learned-1d",
            encoding_params={},
            prefix_tokens=0,
            outputs=outputs,
            default_outputs=heads or tuple(n for n in outputs if n in ("tokens", "pooled")),
            depth=len(block_paths(probe)),
            input=TextInput(
                vocab_size=table.vocab_size, max_length=limit, end_token_id=_end_token(probe.config)
            ),
        )

    def _table(self, given: Given, probe: nn.Module) -> PositionTable:
        from vitpe_deploy.sources.transformers_text_model import find_table

        table = find_table(probe)
        if table is None:
            raise UnsupportedError(
                f"{given.spec} ({type(probe).__name__}) has no learned table of text positions",
                hint="Encoders of text are exported when a table of positions is added to tokens.",
            )
        return table

    def model(
        self, given: Given, facts: ModelFacts, module: nn.Module, weights: str
    ) -> LoadedModel:
        """The network, its table cut or stretched to ``--max-length``."""
        from vitpe_deploy.sources.transformers_text_model import TextModel, stretch_table

        part = self.inside(module)
        limit, table = given.request.max_length, self._table(given, part)
        stretched = limit is not None and limit > table.limit
        if limit is not None and stretched:
            stretch_table(part, table)
        return TextModel(
            facts,
            part,
            weights,
            stretched_from=table.limit if stretched else None,
            pad_token_id=None if _reads_padding(given.model_type) else _pad_token(part),
        )


class TextTowers(Text):
    """The text tower of a network with two."""

    def architecture(self, given: Given) -> str:
        """The composed class."""
        from vitpe_deploy.sources.transformers_towers import KIND as COMPOSED

        return COMPOSED.architecture(given)

    def inside(self, module: nn.Module) -> nn.Module:
        """The tower in place of the model."""
        from vitpe_deploy.sources.transformers_tower_modules import TextTower
        from vitpe_deploy.sources.transformers_towers import composed

        return TextTower(composed(module))

    def facts(self, given: Given) -> ModelFacts:
        """What comes out is what the library compares with pictures."""
        facts = super().facts(given)
        if "embedding" not in facts.outputs:
            raise UnsupportedError(f"get_text_features of {given.spec} gives no embedding")
        return replace(facts, default_outputs=("embedding",))


def _reads_padding(model_type: str) -> bool:
    """SigLIP is trained on padded text without a mask; its tokenizer makes none."""
    return model_type.startswith("siglip")


def _pad_token(module: nn.Module) -> int | None:
    """The id of padding, where the encoder takes a mask and sees what comes later."""
    from vitpe_deploy.sources.transformers_text_model import is_causal, takes_mask

    config: Any = module.config
    pad = getattr(config, "pad_token_id", None)
    if not isinstance(pad, int) or not takes_mask(module) or is_causal(module):
        return None
    return pad


def _end_token(config: Mapping[str, Any] | Any) -> int | None:
    """Where a text ends. CLIP's configs from before 2023 say 2 and mean the highest id."""
    end = getattr(config, "eos_token_id", None)
    vocabulary = getattr(config, "vocab_size", 0)
    if end is None or end == 2 or not isinstance(end, int):
        return None
    if not isinstance(vocabulary, int) or vocabulary < 2:
        raise SourceError(f"config.json says vocab_size = {vocabulary!r}, which is not a number")
    return end if 0 < end < vocabulary else None


KIND = Text()
