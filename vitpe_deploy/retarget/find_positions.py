"""Where positions are in a graph: constants that fit the tokens of one size only.

A table that is added to the tokens, a bias that is added to attention logits, cosines and sines
that queries are multiplied with: each is a constant that meets a value whose number of tokens
follows the size. No names are read, so anonymous initializers are found like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import onnx_ir as ir

from vitpe_deploy.retarget.constants import initializer_behind
from vitpe_deploy.retarget.probes import Expression, Probes, Vector, same

PositionKind: TypeAlias = Literal["table", "map", "bias", "resized"]


@dataclass(frozen=True, slots=True)
class FoundPosition:
    """One set of positions.

    Attributes:
        kind: ``table`` of rows [.., prefix + h*w, ..]; ``map`` [.., h, w, ..]; attention ``bias``
            [.., N, N]; ``resized``: a table that the graph itself resizes.
        node: the operator that reads it.
        place: which input of the node it is.
        value: the constant.
        axes: the axis of the rows, or those of rows and columns.
        prefix: rows in front of those of patches.
        grid: rows and columns of the table.
    """

    kind: PositionKind
    node: ir.Node
    place: int
    value: ir.Value
    axes: tuple[int, ...]
    prefix: int
    grid: tuple[int, int]

    @property
    def name(self) -> str:
        """Name of the constant in the file, behind operators that only rearrange it."""
        return initializer_behind(self.value).name or "(no name)"

    def __str__(self) -> str:
        grid = "x".join(map(str, self.grid))
        what = {
            "table": f"absolute table, grid {grid}, {self.prefix} prefix rows",
            "map": f"absolute map, grid {grid}",
            "bias": f"attention bias, grid {grid}",
            "resized": f"absolute table, grid {grid}, resized in the graph",
        }[self.kind]
        return f"{what}: {self.name}"


class NotPositionsError(Exception):
    """A constant that fits one size only and cannot be resampled; the text says why."""


def classify(
    node: ir.Node,
    place: int,
    constant: Sequence[int],
    other: Sequence[Vector],
    probes: Probes,
) -> FoundPosition:
    """What a constant is that meets a value and fits at the file's own size only.

    Args:
        node: the operator where they meet.
        place: which input the constant is.
        constant: its dimensions.
        other: dimensions of the value.
        probes: the sizes.

    Raises:
        NotPositionsError: it is nothing that can be resampled.
    """
    value = node.inputs[place]
    if value is None:
        raise NotPositionsError("it has no constant")
    axes, expressions = _differing(constant, other, probes)
    grid = probes.own_grid
    if node.op_type in ("Mul", "Div"):
        raise NotPositionsError(
            f"{node.op_type} multiplies tokens by a constant of {list(constant)}, as rotary "
            "positions do; a file does not say whether its coordinates go on or are rescaled"
        )
    if node.op_type not in ("Add", "Sub", "Concat"):
        raise NotPositionsError(
            f"{node.op_type} mixes tokens with a constant of {list(constant)} that fits this "
            "number of tokens alone"
        )
    grids = [e.grid for e in expressions]
    last = len(constant) - 1
    if len(axes) == 1 and grids == ["hw"] and expressions[0].factor == 1:
        return FoundPosition("table", node, place, value, axes, expressions[0].rest, grid)
    if len(axes) == 2 and grids == ["h", "w"] and all(_plain(e) for e in expressions):
        return FoundPosition("map", node, place, value, axes, 0, grid)
    if (
        node.op_type == "Add"
        and grids == ["hw", "hw"]
        and axes == (last - 1, last)
        and expressions[0] == expressions[1]
        and expressions[0].factor == 1
    ):
        return FoundPosition("bias", node, place, value, axes, expressions[0].rest, grid)
    raise NotPositionsError(
        f"{node.op_type} meets a constant of {list(constant)} where the value has "
        f"[{', '.join(str(probes.expression(d) or '?') for d in other)}]"
    )


def _plain(expression: Expression) -> bool:
    return expression.factor == 1 and expression.rest == 0


def _differing(
    constant: Sequence[int], other: Sequence[Vector], probes: Probes
) -> tuple[tuple[int, ...], list[Expression]]:
    """Axes of the constant that only fit at the file's own size, with what they should be."""
    axes: list[int] = []
    expressions: list[Expression] = []
    shift = len(other) - len(constant)
    for axis, size in enumerate(constant):
        if axis + shift < 0:
            continue
        dim = other[axis + shift]
        if same(dim) or size == 1:
            continue
        if size != int(dim[0]):
            continue
        expression = probes.expression(dim)
        if expression is None or expression.batch:
            raise NotPositionsError(f"its axis {axis} follows the size in an unknown way")
        axes.append(axis)
        expressions.append(expression)
    return tuple(axes), expressions
