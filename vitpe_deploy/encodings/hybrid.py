"""An absolute and a relative encoding in one network, each by its own rule.

BEiT's first version and DETR-like encoders combine the two. Parts are chosen by name; the hooks of
both apply, the absolute part first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from vitpe_deploy import encodings
from vitpe_deploy.encodings.base import (
    EncodingDescription,
    EncodingSpec,
    Grid,
    Network,
    PositionEncoding,
    Positions,
)
from vitpe_deploy.errors import UsageError

_ABSOLUTE, _RELATIVE = "absolute", "relative"


class Hybrid(PositionEncoding):
    """Two parts; positions carry the part's name in front: ``absolute_table``, ``relative_bias``.

    Args of the encoding:
        absolute: name of the part that is added to tokens.
        relative: name of the part that acts in attention.
        absolute_params, relative_params: options of the parts.
    """

    kind: ClassVar[str] = "hybrid"
    networks: ClassVar[tuple[Network, ...]] = ("vit", "detr")

    def __init__(
        self,
        spec: EncodingSpec,
        *,
        absolute: str = "learned-1d",
        relative: str = "relative-2d",
        absolute_params: Mapping[str, Any] | None = None,
        relative_params: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(spec)
        for role, name in ((_ABSOLUTE, absolute), (_RELATIVE, relative)):
            if name == self.kind:
                raise UsageError(
                    f"hybrid cannot be its own {role} part", hint="Name a simple encoding."
                )
        self.absolute = encodings.get(absolute).build(replace(spec, params=absolute_params or {}))
        self.relative = encodings.get(relative).build(replace(spec, params=relative_params or {}))

    def _parts(self) -> Iterator[tuple[str, PositionEncoding]]:
        yield _ABSOLUTE, self.absolute
        yield _RELATIVE, self.relative

    def _of(self, role: str, positions: Positions) -> Positions:
        """The positions of one part, under its own names."""
        prefix = f"{role}_"
        return {
            name.removeprefix(prefix): value
            for name, value in positions.items()
            if name.startswith(prefix)
        }

    def positions(self, grid: Grid) -> Positions:
        """Both parts as published."""
        return _named({role: part.positions(grid) for role, part in self._parts()})

    def fit(self, grid: Grid) -> Positions:
        """Both parts fitted, each by its rule."""
        return _named({role: part.fit(grid) for role, part in self._parts()})

    def in_graph(self, h: int, w: int) -> Positions:
        """Both parts from symbolic sizes."""
        return _named({role: part.in_graph(h, w) for role, part in self._parts()})

    def tokens(self, x: Tensor, positions: Positions) -> Tensor:
        """What each part adds to tokens."""
        for role, part in self._parts():
            x = part.tokens(x, self._of(role, positions))
        return x

    def rotate(
        self, q: Tensor, k: Tensor, positions: Positions, layer: int
    ) -> tuple[Tensor, Tensor]:
        """The rotation of a rotary part."""
        for role, part in self._parts():
            q, k = part.rotate(q, k, self._of(role, positions), layer)
        return q, k

    def attention_bias(self, positions: Positions, layer: int) -> Tensor | None:
        """The sum of the parts' biases."""
        total: Tensor | None = None
        for role, part in self._parts():
            bias = part.attention_bias(self._of(role, positions), layer)
            if bias is not None:
                total = bias if total is None else total + bias
        return total

    def query_bias(self, q: Tensor, positions: Positions, layer: int) -> Tensor | None:
        """The sum of the parts' biases that depend on queries."""
        total: Tensor | None = None
        for role, part in self._parts():
            bias = part.query_bias(q, self._of(role, positions), layer)
            if bias is not None:
                total = bias if total is None else total + bias
        return total

    def after_block(self, x: Tensor, grid: Grid, layer: int) -> Tensor:
        """What each part does between blocks."""
        for _, part in self._parts():
            x = part.after_block(x, grid, layer)
        return x

    def describe(self) -> EncodingDescription:
        """Both descriptions, by role."""
        parts = {role: part.describe() for role, part in self._parts()}
        rules = [f"{role}: {part.resample_rule}" for role, part in parts.items()]
        return EncodingDescription(
            self.kind,
            self.spec.grid,
            self.spec.prefix_tokens,
            "; ".join(rules),
            {role: {"kind": part.kind, **part.params} for role, part in parts.items()},
        )


def _named(parts: Mapping[str, Positions]) -> Positions:
    """Positions of both parts in one flat dict, the role in front of each name."""
    return {
        f"{role}_{name}": value
        for role, positions in parts.items()
        for name, value in positions.items()
    }


ENCODING = Hybrid
