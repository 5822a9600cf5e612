"""Numbers that were baked in for one size, and what they stand for at any other.

An exporter that knows only one size writes ``Reshape(x, [1, 197, 6, 64])``. Which of these numbers
is the size's is decided by where the dimensions of x come from, not by their value: the dimensions
of x are cut into factors in their order, and the target is read as products of those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitpe_deploy.retarget.probes import Expression, Grid, Probes, Vector, same

TO_THE_END = np.iinfo(np.int64).max


class UnknownSizeError(Exception):
    """A number that depends on the size in a way that cannot be told; the text says which."""


@dataclass(slots=True)
class _Factor:
    """A factor of a dimension: its value at every probe."""

    vector: Vector

    @property
    def own(self) -> int:
        return int(self.vector[0])


def factors(dims: Sequence[Vector], probes: Probes) -> list[Vector]:
    """The dimensions of a value cut into batch, rows, columns and fixed numbers, in order.

    ``h*w`` is rows before columns, and pixels are ``h`` before the patch: both are the order in
    which memory holds them.
    """
    found: list[Vector] = []
    for dim in dims:
        if same(dim):
            if dim[0] != 1:
                found.append(dim)
            continue
        expression = probes.expression(dim)
        if expression is None:
            found.append(dim)
            continue
        if expression.batch:
            found.append(probes.batches())
        if not expression.grid:
            if expression.rest != 1:
                found.append(np.full_like(dim, expression.rest))
        elif expression.rest:
            found.append(
                probes.vector(Expression(expression.factor, expression.grid, expression.rest))
            )
        else:
            found += [probes.vector(Expression(1, axis, 0)) for axis in _axes(expression.grid)]
            if expression.factor != 1:
                found.append(np.full_like(dim, expression.factor))
    return found


def _axes(grid: Grid) -> tuple[Grid, ...]:
    return ("h", "w") if grid == "hw" else (grid,)


def reshape_target(dims: Sequence[Vector], target: Sequence[int], probes: Probes) -> list[Vector]:
    """What a target that fits at the file's own size is at every probe.

    Args:
        dims: dimensions of the value that is reshaped.
        target: whole dimensions, without 0 and -1.
        probes: the sizes.

    Raises:
        UnknownSizeError: the target cannot be read as products of what the value is made of.
    """
    queue = [_Factor(v.copy()) for v in factors(dims, probes)]
    one = np.ones(len(probes), dtype=np.int64)
    result: list[Vector] = []
    for wanted in target:
        vector, own = one.copy(), 1
        if wanted == 1:
            if queue and queue[0].own == 1:
                vector = queue.pop(0).vector
            result.append(vector)
            continue
        while own != wanted:
            if not queue:
                raise UnknownSizeError(f"no factor is left for {wanted} of {list(target)}")
            first, missing = queue[0], wanted // own
            if wanted % own:
                raise UnknownSizeError(f"{wanted} of {list(target)} is not a product of the input")
            if missing % first.own == 0:
                vector, own = vector * first.vector, own * first.own
                queue.pop(0)
            elif same(first.vector) and first.own % missing == 0:
                vector, own = vector * missing, own * missing
                first.vector = first.vector // missing
            else:
                raise UnknownSizeError(f"{wanted} of {list(target)} is not a product of the input")
        # A batch of one behind the tokens, [N, B, ..]: rows of a matrix hold it, else the heads.
        if len(target) == 2 and not result and queue and queue[0].own == 1:
            vector = vector * queue.pop(0).vector
        result.append(vector)
    for left in queue:
        if left.own != 1:
            raise UnknownSizeError(f"{list(target)} holds fewer values than the input")
        if not same(left.vector):
            raise UnknownSizeError(f"{list(target)} has no place for the batch")
    return result


def cut_position(dim: Vector, place: int, probes: Probes) -> Vector | None:
    """A start or end of Slice, which is ``place`` at the file's own size; None when unchanged.

    Raises:
        UnknownSizeError: it may belong to the size or not.
    """
    own = int(dim[0])
    if same(dim) or place < 0 or place > own:
        return None
    expression = probes.expression(dim)
    extra = expression.rest if expression is not None and expression.grid else 0
    if place <= max(extra, 0):
        return None
    if place == own:
        return dim
    rows, columns = probes.own_grid
    if expression is not None and expression.grid == "hw" and place == rows * columns:
        return probes.vector(Expression(1, "hw", 0))
    raise UnknownSizeError(f"it cuts {own} tokens at {place}")


def split_sizes(dim: Vector, parts: Sequence[int], probes: Probes) -> list[Vector] | None:
    """Parts of Split along a dimension that the size decides; None when it does not.

    Raises:
        UnknownSizeError: the parts are not some fixed tokens and all patches.
    """
    if same(dim):
        return None
    expression = probes.expression(dim)
    rows, columns = probes.own_grid
    if expression is None or expression.grid != "hw" or parts.count(rows * columns) != 1:
        raise UnknownSizeError(f"it splits {int(dim[0])} tokens into {list(parts)}")
    patches = probes.vector(Expression(1, "hw", 0))
    found = [patches if n == rows * columns else np.full_like(dim, n) for n in parts]
    if (np.sum(found, axis=0) != dim).any():
        raise UnknownSizeError(f"it splits {int(dim[0])} tokens into {list(parts)}")
    return found


def picture_size(dim: Vector, wanted: int, axis: int, probes: Probes) -> Vector:
    """One axis of a Resize of features that is ``wanted`` at the file's own size.

    Raises:
        UnknownSizeError: it is neither the map's own size nor that of the picture.
    """
    pixels = probes.pixels()[axis]
    for candidate in (dim, pixels):
        if candidate[0] == wanted:
            return candidate
    raise UnknownSizeError(
        f"it resizes features of {int(dim[0])} to {wanted}, which is not the picture's "
        f"{int(pixels[0])}"
    )
