"""How a text encoder of the transformers library is called, and its table of positions."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitpe_deploy.encodings.text_table import stretch_rows
from vitpe_deploy.errors import UnsupportedError
from vitpe_deploy.request import Resolution
from vitpe_deploy.sources.base import LoadedModel, ModelFacts, PositionFit
from vitpe_deploy.sources.transformers_look import block_paths
from vitpe_deploy.text_length import stretched_length, too_long

_BUFFERS = ("position_ids", "token_type_ids")
"""Rows as long as the table, kept by the library beside it."""

_RENAMED = {
    "last_hidden_state": "tokens",
    "pooler_output": "pooled",
    "text_embeds": "embedding",
}


@dataclass(frozen=True)
class PositionTable:
    """The learned positions of a network.

    Attributes:
        path: of the embedding.
        rows: of its table.
        offset: rows that no token reads (RoBERTa counts from its padding id on).
    """

    path: str
    rows: int
    offset: int
    vocab_size: int

    @property
    def limit(self) -> int:
        """Tokens of the longest text."""
        return self.rows - self.offset


def find_table(module: nn.Module) -> PositionTable | None:
    """The one embedding that is named after positions; None when there is none or several."""
    tables = {
        path: child
        for path, child in module.named_modules()
        if isinstance(child, nn.Embedding) and "position" in path.rpartition(".")[2]
    }
    words = [
        child.num_embeddings
        for path, child in module.named_modules()
        if isinstance(child, nn.Embedding) and path not in tables
    ]
    if len(tables) != 1 or not words:
        return None
    ((path, table),) = tables.items()
    offset = 0 if table.padding_idx is None else table.padding_idx + 1
    return PositionTable(path, table.num_embeddings, offset, max(words))


def stretch_table(module: nn.Module, table: PositionTable) -> None:
    """The Long-CLIP stretch, in place, of a network that was just loaded.

    Raises:
        UnsupportedError: rows that mean something else than positions.
    """
    if table.offset:
        raise UnsupportedError(
            f"--max-length over {table.limit} would stretch a table whose first {table.offset} "
            "rows are no positions",
            hint=f"Use --max-length {table.limit} or less.",
        )
    old: Any = module.get_submodule(table.path)
    rows = stretch_rows(old.weight.detach())
    parent_path, _, name = table.path.rpartition(".")
    parent = module.get_submodule(parent_path)
    setattr(parent, name, nn.Embedding(rows.shape[0], rows.shape[1], _weight=rows))
    length = stretched_length(table.rows)
    for buffer, value in list(parent.named_buffers(recurse=False)):
        if buffer in _BUFFERS and value.shape == (1, table.rows):
            longer = torch.arange(length) if buffer == "position_ids" else torch.zeros(length)
            parent.register_buffer(buffer, longer.to(value.dtype).unsqueeze(0), persistent=False)


def takes_mask(module: nn.Module) -> bool:
    """Whether the network's forward has an attention mask."""
    return "attention_mask" in inspect.signature(type(module).forward).parameters


def is_causal(module: nn.Module) -> bool:
    """Whether a token reads only what stands before it, seen by changing the last one."""
    ids = torch.tensor([[1, 1], [1, 0]])
    with torch.no_grad():
        tokens = run(module, ids)["tokens"]
    return torch.allclose(tokens[0, 0], tokens[1, 0], rtol=0, atol=0)


def run(
    module: nn.Module, input_ids: Tensor, attention_mask: Tensor | None = None
) -> dict[str, Tensor]:
    """All outputs of a network by name, those of its encoder included."""
    network: Any = module
    encoder: Any = getattr(network, getattr(network, "base_model_prefix", "") or "", network)
    options = {} if attention_mask is None else {"attention_mask": attention_mask}
    seen: list[Any] = []
    handle = encoder.register_forward_hook(lambda _m, _i, output: seen.append(output))
    try:
        result = network(input_ids, **options)
    finally:
        handle.remove()
    found: dict[str, Tensor] = {}
    for output in (result, *seen[-1:]):
        for key, value in output.items():
            if isinstance(value, Tensor) and value.is_floating_point():
                found.setdefault(_RENAMED.get(str(key), str(key)), value)
    if "tokens" in found:
        found["cls"] = found["tokens"][:, 0]
    return found


def outputs_of(probe: nn.Module) -> tuple[str, ...]:
    """Names of the outputs of a network on the ``meta`` device."""
    with torch.device("meta"), torch.no_grad():
        return tuple(run(probe, torch.zeros(1, 2, dtype=torch.int64)))


class TextModel(LoadedModel):
    """A text encoder and its weights.

    Args:
        facts: of the network, its limit after ``--max-length``.
        pristine: the network.
        weights: where they come from.
        stretched_from: rows before the stretch.
        pad_token_id: tokens that are left unread; None to read them all.
    """

    def __init__(
        self,
        facts: ModelFacts,
        pristine: nn.Module,
        weights: str,
        *,
        stretched_from: int | None,
        pad_token_id: int | None,
    ) -> None:
        super().__init__(facts, pristine, weights)
        self._stretched_from = stretched_from
        self._pad_token_id = pad_token_id

    def block_paths(self) -> tuple[str, ...]:
        """The blocks, in order."""
        return block_paths(self._pristine)

    def call(self, module: nn.Module, inputs: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Run the class on token ids, padding unread.

        Raises:
            SizeError: the text is longer than the limit; the message has both numbers.
        """
        length: int | torch.SymInt = inputs.shape[1]
        limit = self.facts.size_rule.limit  # type: ignore[attr-defined]
        if isinstance(length, torch.SymInt):
            torch._check(length <= limit)
        elif length > limit:
            raise too_long(length, limit, stretchable=self._stretched_from is None)
        mask = None if self._pad_token_id is None else (inputs != self._pad_token_id).long()
        found = run(module, inputs, mask)
        return {name: found[name] for name in names}

    def position_fits(self, size: Resolution | None) -> tuple[PositionFit, ...]:
        """The first rows, of the table or of its stretch."""
        limit = self.facts.size_rule.limit  # type: ignore[attr-defined]
        rule = "slice"
        if self._stretched_from is not None:
            rule = f"long-clip stretch {self._stretched_from} -> {limit}, slice"
        grid = None if size is None else (1, size.width)
        return (PositionFit("learned-1d", (1, self._stretched_from or limit), grid, rule),)
