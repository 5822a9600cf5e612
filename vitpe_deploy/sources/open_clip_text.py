"""Text towers of open_clip: learned positions, causal or not.

open_clip's tokenizers pad every text to ``context_length``, and its model takes nothing else. Where
a text ends is found by its token, and under a causal mask nothing behind that token is read: a
shorter text gives what the padded one gives, and a file of a shorter or symbolic length is right.
The reference is always the padded text in open_clip's own forward. Towers that read their padding
(no causal mask, or the last token pooled) have one length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from open_clip.transformer import TextTransformer
from torch import Tensor, nn

from vitpe_deploy.encodings.text_table import stretch_rows
from vitpe_deploy.errors import UnsupportedError
from vitpe_deploy.inputs import TextInput
from vitpe_deploy.models.text import causal_mask
from vitpe_deploy.request import ResampleOverride, Resolution
from vitpe_deploy.sources.base import LengthRule, LoadedModel, ModelFacts, PositionFit, captured
from vitpe_deploy.sources.open_clip_library import Library
from vitpe_deploy.text_length import check_max_length, too_long
from vitpe_deploy.towers import TEXT

_TABLE = "positional_embedding"
_MASK = "attn_mask"
_PREFIX = "text."
_POOLS_AT_THE_END = ("argmax", "eos")


@dataclass(frozen=True)
class TextTower:
    """A text tower of a config.

    Attributes:
        context_length: of the weights, to which texts are padded.
        stretched: whether the table is stretched to the limit of the facts.
    """

    library: Library
    facts: ModelFacts
    context_length: int
    stretched: bool

    @classmethod
    def open(cls, library: Library, spec: str, max_length: int | None) -> TextTower:
        """Look at the text tower of a config.

        Args:
            library: config.
            spec: how errors name it.
            max_length: longest text, where the user said so.

        Raises:
            UnsupportedError: a tower of transformers, or a length that its pooling cannot take.
        """
        named = library.text.get("hf_model_name")
        if named:
            raise UnsupportedError(
                f"the text tower of {spec} is transformers' {named}, whose config open_clip "
                "fetches from a hub (open_clip.hf_model.HFTextEncoder)",
                hint="Its vision tower can be exported: --tower vision.",
            )
        owner = _owner(library.make(TEXT, device="meta"))
        context = int(owner.context_length)
        limit, stretched = max_length or context, False
        reads = _reads_its_padding(owner)
        if max_length is not None:
            stretched = check_max_length(max_length, context)
            if reads and max_length != context:
                raise UnsupportedError(
                    f"--max-length {max_length}: {spec} {reads}, and its texts are padded to "
                    f"{context} tokens",
                    hint="Leave it out.",
                )
        end = getattr(owner, "text_eos_id", getattr(owner, "eos_id", None))
        pool = str(getattr(owner, "text_pool_type", getattr(owner, "pool_type", "")))
        native = Resolution(1, limit)
        reason = f"it {reads}, and its texts are padded to {context} tokens" if reads else ""
        facts = ModelFacts(
            name=f"{library.name}-{TEXT}",
            spec=spec,
            native=native,
            size_rule=LengthRule(limit=limit, fixed=native if reads else None, fixed_reason=reason),
            grid_divisor=(1, 1),
            encoding="learned-1d",
            encoding_params={},
            prefix_tokens=0,
            outputs=("embedding",) if _has_own_token(owner) else ("embedding", "tokens"),
            default_outputs=("embedding",),
            depth=len(owner.transformer.resblocks),
            input=TextInput(
                vocab_size=int(owner.vocab_size),
                max_length=limit,
                end_token_id=end if pool == "eos" else None,
            ),
            no_dynamic=reason,
        )
        return cls(library, facts, context, stretched)

    def load(
        self, state: Mapping[str, Tensor], origin: str, override: ResampleOverride
    ) -> LoadedModel:
        """The tower with weights, its table stretched where that was asked for."""
        del override  # chosen_tower has refused it
        owner = _owner(self.library.make(TEXT, device="cpu"))
        prefix = _PREFIX if isinstance(owner, TextTransformer) else ""
        owner.load_state_dict({n.removeprefix(prefix): t for n, t in state.items()}, strict=False)
        if self.stretched:
            owner.positional_embedding = nn.Parameter(
                stretch_rows(owner.positional_embedding.detach()), requires_grad=False
            )
            owner.attn_mask = causal_mask(torch.arange(len(owner.positional_embedding)))[0, 0]
        length = self.facts.input.max_length if self.stretched else self.context_length  # type: ignore[attr-defined]
        return TextModel(self, PaddedText(owner, length), origin)


def _owner(whole: Any) -> Any:
    """The module that holds the text tower: the model without its vision tower, or a part."""
    if hasattr(whole, "text"):
        return whole.text
    del whole.visual
    return whole


def _has_own_token(owner: Any) -> bool:
    """Whether a class token stands behind the text, as in CoCa."""
    return getattr(owner, "cls_emb", None) is not None


def _reads_its_padding(owner: Any) -> str:
    """Why what stands behind the end of a text matters; empty when it does not."""
    if _has_own_token(owner):
        return "reads a class token behind its text"
    if owner.attn_mask is None:
        return "reads its padding, having no causal mask"
    pool = str(getattr(owner, "text_pool_type", getattr(owner, "pool_type", "")))
    return "" if pool in _POOLS_AT_THE_END else f"pools by {pool!r}, and not at the end token"


class PaddedText(nn.Module):
    """A tower that reads texts as open_clip's tokenizers give them: padded with zeros.

    Args:
        network: what holds the tower.
        length: to pad to.
    """

    def __init__(self, network: nn.Module, length: int) -> None:
        super().__init__()
        self.network = network
        self.length = length

    def forward(self, input_ids: Tensor) -> Tensor:
        """input_ids: [B, L] -> the embedding [B, P] of open_clip's own forward."""
        return _encoded(self.network, F.pad(input_ids, (0, self.length - input_ids.shape[1])))


class CutText(nn.Module):
    """A tower that reads a text as it is, by the first rows of its table.

    Args:
        network: a copy of what holds the tower; its table and mask are taken off.
        length: rows of the table.
    """

    def __init__(self, network: Any, length: int) -> None:
        super().__init__()
        self.network = network
        self.length = length
        self.table = network._parameters.pop(_TABLE)
        network._buffers.pop(_MASK)

    def forward(self, input_ids: Tensor) -> Tensor:
        """input_ids: [B, L] -> [B, P]."""
        count = input_ids.shape[1]
        # Cut from the longest text: in a file of any length, a text over the limit then fails
        # in the addition instead of being read with made-up positions.
        index = torch.arange(self.length)[:count]
        cut = {_TABLE: self.table[:count], _MASK: causal_mask(index)[0, 0]}
        self.network.__dict__.update(cut)
        try:
            return _encoded(self.network, input_ids)
        finally:
            for name in cut:
                del self.network.__dict__[name]


def _encoded(network: Any, input_ids: Tensor) -> Tensor:
    run = network if isinstance(network, TextTransformer) else network.encode_text
    result = run(input_ids)
    # Towers of a CoCa give their tokens too.
    embedding: Tensor = result[0] if isinstance(result, tuple) else result
    return embedding


class TextModel(LoadedModel):
    """A text tower with its weights."""

    def __init__(self, tower: TextTower, pristine: nn.Module, weights: str) -> None:
        super().__init__(tower.facts, pristine, weights)
        self._tower = tower

    @property
    def _rows(self) -> int:
        """Rows of the table, stretched or not."""
        table: Tensor = self._pristine.get_parameter(f"network.{_TABLE}")
        return table.shape[0] - _has_own_token(self._pristine.network)

    def block_paths(self) -> tuple[str, ...]:
        """The residual blocks."""
        return tuple(f"network.transformer.resblocks.{k}" for k in range(self.facts.depth))

    def explicit(self, size: Resolution | None) -> nn.Module:
        """A copy that takes a text as it is; padded to its own length already, no other."""
        network = self.fresh()
        if size is not None and size.width == self._rows:
            return network
        return CutText(network.network, self._rows)

    def call(self, module: nn.Module, inputs: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Run the tower as ``encode_text`` does; tokens are those after the last norm.

        Raises:
            SizeError: the text is longer than the limit; the message has both numbers.
        """
        length: int | torch.SymInt = inputs.shape[1]
        limit = self.facts.size_rule.limit  # type: ignore[attr-defined]
        if isinstance(length, torch.SymInt):
            torch._check(length <= limit)
        elif length > limit:
            raise too_long(length, limit, stretchable=self._stretchable)
        with captured({"tokens": "network.ln_final"}, module) as found:
            found["embedding"] = module(inputs)
        found["tokens"] = found["tokens"][:, :length]  # of padding nothing is said
        return {name: found[name] for name in names}

    @property
    def _stretchable(self) -> bool:
        return not self._tower.stretched and not self.facts.no_dynamic

    def position_fits(self, size: Resolution | None) -> tuple[PositionFit, ...]:
        """The first rows, of the table or of its stretch."""
        context, limit = self._tower.context_length, self._rows
        stretch = f"long-clip stretch {context} -> {limit}, " if self._tower.stretched else ""
        grid = None if size is None else (1, size.width)
        return (PositionFit("learned-1d", (1, context), grid, f"{stretch}slice"),)
