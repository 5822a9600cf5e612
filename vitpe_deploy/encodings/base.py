"""The contract that every positional encoding answers, one file per encoding.

An encoding separates *what the positions are* on a grid from *how the network reads them*. The
first has three answers that must agree:

* :meth:`PositionEncoding.positions` - plain PyTorch, as published; the referee of the other two.
* :meth:`PositionEncoding.fit` - constants for one grid, computed at export time from the original
  parameters.
* :meth:`PositionEncoding.in_graph` - the same from symbolic grid sizes, in operators that every
  engine computes alike: MatMul, Range, Gather, Sin, Cos. No Resize, Loop, If or ScatterND.

The second has one: the hooks ``tokens``, ``rotate``, ``attention_bias``, ``query_bias`` and
``after_block``, which take positions however they were made. :class:`Resolved` swaps the first for
an export and leaves the second alone.

Letters used in shapes: B batch, N tokens, D embed_dim, M heads, h and w patch grid.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, TypeAlias

import torch
from torch import Tensor, nn

Grid: TypeAlias = tuple[int, int]
"""Rows and columns of patches. In a dynamic trace both are ``torch.SymInt``."""

Positions: TypeAlias = dict[str, Tensor]
"""Named tensors that the hooks read: ``table``, ``bias``, ``cos``, ``sin``..."""

Network: TypeAlias = Literal["vit", "swin", "text", "video", "detr"]


@dataclass(frozen=True, slots=True)
class EncodingSpec:
    """What a network tells an encoding about itself.

    Attributes:
        grid: native patch grid, rows first.
        embed_dim: width of a token.
        num_heads: attention heads per layer.
        depth: number of layers.
        prefix_tokens: tokens before the patches that the encoding may give a position to (cls,
            distillation).
        register_tokens: tokens that join after positions were added and never get one.
        frames: time steps, in tokens; 1 for pictures.
        params: the encoding's own options, by keyword.
    """

    grid: Grid
    embed_dim: int
    num_heads: int
    depth: int
    prefix_tokens: int = 1
    register_tokens: int = 0
    frames: int = 1
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def head_dim(self) -> int:
        """Channels of one attention head."""
        return self.embed_dim // self.num_heads

    @property
    def leading_tokens(self) -> int:
        """All tokens in front of the patches, as attention sees them."""
        return self.prefix_tokens + self.register_tokens


@dataclass(frozen=True, slots=True)
class EncodingDescription:
    """What the manifest says about an encoding."""

    kind: str
    native_grid: Grid | None
    prefix_tokens: int
    resample_rule: str | None
    params: Mapping[str, Any] = field(default_factory=dict)


class PositionEncoding(nn.Module, ABC):
    """One positional encoding. Subclasses set :attr:`kind` and answer the contract."""

    kind: ClassVar[str]
    """The name of ``--pe``, in the field's terms."""

    networks: ClassVar[tuple[Network, ...]] = ("vit",)
    """The reference networks that can carry this encoding."""

    def __init__(self, spec: EncodingSpec) -> None:
        super().__init__()
        self.spec = spec

    @classmethod
    def build(cls, spec: EncodingSpec) -> Self:
        """Parameters and buffers with their initialisation, from the global torch generator."""
        return cls(spec, **spec.params)

    @classmethod
    def placed_in(cls, network: Network) -> type[PositionEncoding]:
        """The class that answers for this encoding in ``network``, one of :attr:`networks`."""
        return cls

    @abstractmethod
    def positions(self, grid: Grid) -> Positions:
        """Positions on ``grid`` in plain PyTorch, as the encoding was published."""

    @abstractmethod
    def fit(self, grid: Grid) -> Positions:
        """Constants for ``grid`` in float32, always from the original parameters."""

    @abstractmethod
    def in_graph(self, h: int, w: int) -> Positions:
        """Positions from symbolic sizes, traced into the graph."""

    @abstractmethod
    def describe(self) -> EncodingDescription:
        """Kind, parameters, native grid and resample rule for the manifest."""

    def tokens(self, x: Tensor, positions: Positions) -> Tensor:
        """Add positions to tokens. x: [B, prefix + h*w, D] -> the same shape."""
        return x

    def rotate(
        self, q: Tensor, k: Tensor, positions: Positions, layer: int
    ) -> tuple[Tensor, Tensor]:
        """Turn queries and keys. q, k: [B, M, N, D/M] -> the same shapes."""
        return q, k

    def attention_bias(self, positions: Positions, layer: int) -> Tensor | None:
        """Bias of the attention logits, already scaled. None or [1|B, M, N, N]."""
        return None

    def query_bias(self, q: Tensor, positions: Positions, layer: int) -> Tensor | None:
        """Bias of the logits that depends on unscaled queries: None or [B, M, N, N].

        q: [B, M, N, D/M], after :meth:`rotate`. Added beside :meth:`attention_bias`.
        """
        return None

    def after_block(self, x: Tensor, grid: Grid, layer: int) -> Tensor:
        """Act on tokens between blocks. x: [B, N, D] -> the same shape."""
        return x


class Resolved(nn.Module):
    """An encoding whose positions were decided for an export.

    With a grid, positions are constants made by ``fit``; without one they come from ``in_graph``.
    Everything that reads positions stays the encoding's own code.
    """

    def __init__(self, encoding: PositionEncoding, grid: Grid | None) -> None:
        super().__init__()
        self.encoding = encoding
        self.grid = grid
        self._names: tuple[str, ...] = ()
        if grid is not None:
            constants = encoding.fit(grid)
            self._names = tuple(constants)
            for name, value in constants.items():
                self.register_buffer(f"fitted_{name}", value.detach())

    def positions(self, grid: Grid) -> Positions:
        """The decided positions; a baked grid accepts no other."""
        if self.grid is None:
            return self.encoding.in_graph(*grid)
        if tuple(grid) != tuple(self.grid):
            raise RuntimeError(f"positions are baked for grid {self.grid}, got {tuple(grid)}")
        return {name: getattr(self, f"fitted_{name}") for name in self._names}

    def tokens(self, x: Tensor, positions: Positions) -> Tensor:
        """See :meth:`PositionEncoding.tokens`."""
        return self.encoding.tokens(x, positions)

    def rotate(
        self, q: Tensor, k: Tensor, positions: Positions, layer: int
    ) -> tuple[Tensor, Tensor]:
        """See :meth:`PositionEncoding.rotate`."""
        return self.encoding.rotate(q, k, positions, layer)

    def attention_bias(self, positions: Positions, layer: int) -> Tensor | None:
        """See :meth:`PositionEncoding.attention_bias`."""
        return self.encoding.attention_bias(positions, layer)

    def query_bias(self, q: Tensor, positions: Positions, layer: int) -> Tensor | None:
        """See :meth:`PositionEncoding.query_bias`."""
        return self.encoding.query_bias(q, positions, layer)

    def after_block(self, x: Tensor, grid: Grid, layer: int) -> Tensor:
        """See :meth:`PositionEncoding.after_block`."""
        return self.encoding.after_block(x, grid, layer)


def resolve_encodings(model: nn.Module, grid: Grid | None) -> nn.Module:
    """Replace every encoding inside ``model`` (in place) by its resolved form.

    ``grid`` is the patch grid of the network's input; encodings with their own idea of a grid
    (windows, pyramids) are told it by the network through ``positions``.
    """
    for name, child in list(model.named_children()):
        if isinstance(child, PositionEncoding):
            setattr(model, name, Resolved(child, grid))
        else:
            resolve_encodings(child, grid)
    return model


def positional_noise(*shape: int, std: float) -> nn.Parameter:
    """A normal table of the given standard deviation, as a parameter."""
    return nn.Parameter(torch.randn(*shape) * std)
