"""The reference text tower in plain PyTorch, shaped like CLIP's (Radford et al. 2021).

Token embedding, positions, causal pre-norm blocks, final norm, the row of the end token, a
projection without bias. Positions are any encoding that names ``"text"``; it sees a grid of one
row, ``(1, L)``, without prefix tokens. Texts of one batch have one length L: pad behind the end
token, where the causal mask keeps the padding from being read.

Letters used in shapes: B batch, L tokens of a text, D embed_dim, M heads, P projection_dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitpe_deploy import encodings
from vitpe_deploy.encodings.base import (
    EncodingSpec,
    Grid,
    PositionEncoding,
    Positions,
    resolve_encodings,
)
from vitpe_deploy.encodings.text_table import TextTable
from vitpe_deploy.errors import UsageError
from vitpe_deploy.models.attention import attend
from vitpe_deploy.models.initialise import initialise
from vitpe_deploy.models.presets import TextConfig
from vitpe_deploy.models.vit import Features
from vitpe_deploy.text_length import check_max_length, too_long

_KEEPS_DISTANCES: Mapping[str, Mapping[str, Any]] = {
    "relative-1d": {"fitting": "slice"},
    "sincos-1d": {"mode": "extrapolate"},
}
"""The rule for other lengths that text wants: two words apart are two words apart in any text."""


class TextBlock(nn.Module):
    """Pre-norm causal attention and MLP, each with a residual."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        dim, hidden = config.embed_dim, int(config.embed_dim * config.mlp_ratio)
        self.num_heads = config.num_heads
        self.quick_gelu = config.activation == "quick_gelu"
        self.norm1 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(
        self,
        x: Tensor,
        mask: Tensor,
        encoding: PositionEncoding,
        positions: Positions,
        layer: int,
    ) -> Tensor:
        """x: [B, L, D], mask: [1, 1, L, L] -> [B, L, D]."""
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        attended = attend(
            q,
            k,
            v,
            num_heads=self.num_heads,
            encoding=encoding,
            positions=positions,
            layer=layer,
            mask=mask,
        )
        x = x + self.proj(attended)
        hidden = self.fc1(self.norm2(x))
        hidden = hidden * torch.sigmoid(1.702 * hidden) if self.quick_gelu else F.gelu(hidden)
        out: Tensor = x + self.fc2(hidden)
        return out


class TextTower(nn.Module):
    """Token embedding, causal blocks, final norm, end token, projection."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        self.max_length = config.context_length
        dim = config.embed_dim
        self.token_embedding = nn.Embedding(config.vocab_size, dim)
        _refuse_squeezing(config)
        params = {**_KEEPS_DISTANCES.get(config.encoding, {}), **config.encoding_params}
        self.encoding: PositionEncoding = encodings.get_for(config.encoding, "text").build(
            EncodingSpec(
                grid=(1, config.context_length),
                embed_dim=dim,
                num_heads=config.num_heads,
                depth=config.depth,
                prefix_tokens=0,
                params=params,
            )
        )
        self.blocks = nn.ModuleList(TextBlock(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(dim, eps=config.norm_eps)
        self.projection = (
            nn.Linear(dim, config.projection_dim, bias=False) if config.projection_dim else None
        )
        for module in (self.token_embedding, self.blocks, self.norm, self.projection):
            if module is not None:
                module.apply(initialise)

    def set_max_length(self, max_length: int) -> None:
        """Decide the longest text, before an export; ``--max-length``.

        Learned positions become shorter or are stretched, once, from the original table. Other
        encodings answer by their own rule: computed ones reach any length, a table of distances
        no more than its own.

        Raises:
            UsageError: no room for a start and an end token.
            SizeError: the positions do not reach this length, stretched or not.
        """
        if isinstance(self.encoding, TextTable):
            self.encoding = self.encoding.with_max_length(max_length)
        else:
            check_max_length(min(max_length, self.max_length), self.max_length)
            self.encoding.fit((1, max_length))
        self.max_length = max_length

    def resolve(self, grid: Grid | None) -> Self:
        """Decide positions for an export, in place: baked for ``(1, L)``, symbolic for None."""
        resolve_encodings(self, grid)
        return self

    def forward_features(self, input_ids: Tensor) -> Features:
        """Named features: tokens [B, L, D] after the final norm, pooled [B, P].

        Args:
            input_ids: [B, L], int64 or int32, L at most ``max_length``.

        Raises:
            SizeError: the text is longer; the message has both numbers.
        """
        length = input_ids.shape[1]
        self._check_length(length)
        positions = self.encoding.positions((1, length))
        x = self.encoding.tokens(self.token_embedding(input_ids), positions)  # [B, L, D]
        # Cut from the longest text rather than made for this one: in a file with symbolic length
        # the mask of a text over the limit comes out too small and the addition fails, where
        # computed positions would go on and OpenVINO would read zeros behind a table.
        index = torch.arange(self.max_length, device=x.device)[:length]
        mask = causal_mask(index)
        for layer, block in enumerate(self.blocks):
            x = block(x, mask, self.encoding, positions, layer)
            x = self.encoding.after_block(x, (1, length), layer)
        x = self.norm(x)
        end = end_positions(input_ids, index, self.config.end_token_id)
        pooled = x.gather(1, end[:, None, None].expand(-1, 1, x.shape[2])).squeeze(1)
        if self.projection is not None:
            pooled = self.projection(pooled)
        return {"tokens": x, "pooled": pooled}

    def _check_length(self, length: int | torch.SymInt) -> None:
        """Refuse a text over the limit; tell the tracer that a symbolic length is not."""
        if isinstance(length, torch.SymInt):
            torch._check(length <= self.max_length)
        elif length > self.max_length:
            stretchable = (
                isinstance(self.encoding, TextTable) and self.encoding.stretched_from is None
            )
            raise too_long(length, self.max_length, stretchable=stretchable)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Pooled and projected text [B, P]."""
        return self.forward_features(input_ids)["pooled"]


def causal_mask(index: Tensor) -> Tensor:
    """0 where a token may read, -inf at later tokens. index: 0 .. L-1 -> [1, 1, L, L].

    From comparisons of a range rather than a triangle operator, so that a symbolic length needs
    nothing that an engine may lack; added to the logits, so that it joins a relative bias.
    """
    later = index[None, :] > index[:, None]  # [query, key]
    zero = torch.zeros((), device=index.device)
    return torch.where(later, float("-inf"), zero)[None, None]


def end_positions(input_ids: Tensor, index: Tensor, end_token_id: int | None) -> Tensor:
    """Where each text ends: the first token with the end id, or with the text's highest id.

    A text without the end id is read at its first token, as transformers does. The first match is
    the smallest index among the matches: the winner of an ArgMax with ties, which padding with the
    end token makes, is an engine's own choice.

    Args:
        input_ids: [B, L].
        index: 0 .. L-1.
        end_token_id: None for the highest id.

    Returns:
        int64 [B].
    """
    end = input_ids.amax(1, keepdim=True) if end_token_id is None else end_token_id
    length = index.shape[0]
    first = torch.where(input_ids == end, index, length).amin(1)
    return torch.where(first < length, first, 0)


def _refuse_squeezing(config: TextConfig) -> None:
    """Refuse an encoding's rule that would move the words of a short text apart."""
    for option, wanted in _KEEPS_DISTANCES.get(config.encoding, {}).items():
        got = config.encoding_params.get(option, wanted)
        if got != wanted:
            raise UsageError(
                f"{config.encoding} with {option}={got} does not fit text, whose positions keep "
                "their distances at every length",
                hint=f"Use {option}={wanted}.",
            )
