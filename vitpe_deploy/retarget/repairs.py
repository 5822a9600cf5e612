"""Operators that carry numbers of the size: what they are at every probe, and what must change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from vitpe_deploy.retarget.find_positions import FoundPosition
from vitpe_deploy.retarget.info import Findings, Info, Pooled, Rewrite
from vitpe_deploy.retarget.probes import Probes, Vector, same
from vitpe_deploy.retarget.shape_values import integer
from vitpe_deploy.retarget.sizes import (
    TO_THE_END,
    UnknownSizeError,
    cut_position,
    picture_size,
    reshape_target,
    split_sizes,
)

Inputs = Sequence[Info | None]


def repair(
    node: ir.Node, inputs: Inputs, probes: Probes, found: Findings
) -> list[list[Vector]] | None:
    """Dimensions of the outputs of an operator with numbers of its own; None for all others.

    What has to change is added to ``found``.

    Raises:
        UnknownSizeError: a number whose meaning cannot be told.
    """
    known = _REPAIRS.get(node.op_type)
    if known is None or node.domain not in ("", "ai.onnx"):
        return None
    return known(node, inputs, probes, found)


def _dims(inputs: Inputs, place: int = 0) -> list[Vector]:
    info = inputs[place]
    if info is None or info.dims is None:
        raise UnknownSizeError("an input has no known shape")
    return info.dims


def _numbers(inputs: Inputs, place: int) -> npt.NDArray[np.int64] | None:
    """An integer input at every probe [P, n]; None when it is absent."""
    if place >= len(inputs) or inputs[place] is None:
        return None
    info = inputs[place]
    if info is None or info.data is None:
        raise UnknownSizeError("it takes sizes that are not known")
    return np.stack([a.reshape(-1).astype(np.int64) for a in info.data])


def _reshape(node: ir.Node, inputs: Inputs, probes: Probes, found: Findings) -> list[list[Vector]]:
    dims, given = _dims(inputs), _numbers(inputs, 1)
    if given is None:
        raise UnknownSizeError("it has no target")
    zero = bool(integer(node, "allowzero", 0))
    resolved = [_resolved(dims, row, k, zero) for k, row in enumerate(given)]
    own = resolved[0]
    if own is None:
        raise UnknownSizeError(f"its target {given[0].tolist()} does not fit")
    computed = (given != given[0]).any() and all(r is not None for r in resolved)
    if computed:
        return [[np.array(column, dtype=np.int64) for column in zip(*resolved, strict=True)]]
    target = reshape_target(dims, own, probes)
    wanted = np.stack(target, axis=1)
    if any(r is None or list(r) != w.tolist() for r, w in zip(resolved, wanted, strict=True)):
        found.rewrites.append(Rewrite(node, 1, _shortest(wanted, dims, allowzero=zero)))
    return [target]


def _shortest(
    wanted: npt.NDArray[np.int64], dims: Sequence[Vector], *, allowzero: bool
) -> npt.NDArray[np.int64]:
    """The same target with 0 for what stays in its place and -1 for one other."""
    result = wanted.copy()
    moving = [k for k in range(wanted.shape[1]) if not same(wanted[:, k])]
    if not allowzero:
        for k in list(moving):
            if k < len(dims) and (wanted[:, k] == dims[k]).all():
                result[:, k] = 0
                moving.remove(k)
    if moving:
        result[:, moving[-1]] = -1
    return result


def _resolved(
    dims: Sequence[Vector], target: npt.NDArray[np.int64], probe: int, allowzero: bool
) -> list[int] | None:
    shape = [int(d[probe]) for d in dims]
    numbers = [int(n) for n in target]
    if not allowzero:
        if any(n == 0 and k >= len(shape) for k, n in enumerate(numbers)):
            return None
        numbers = [shape[k] if n == 0 else n for k, n in enumerate(numbers)]
    total = int(np.prod(shape, dtype=np.int64))
    rest = int(np.prod([n for n in numbers if n != -1], dtype=np.int64))
    if -1 in numbers:
        if rest == 0 or total % rest:
            return None
        numbers[numbers.index(-1)] = total // rest
    return numbers if int(np.prod(numbers, dtype=np.int64)) == total else None


def _slice(node: ir.Node, inputs: Inputs, probes: Probes, found: Findings) -> list[list[Vector]]:
    dims = list(_dims(inputs))
    starts, ends = _numbers(inputs, 1), _numbers(inputs, 2)
    axes, steps = _numbers(inputs, 3), _numbers(inputs, 4)
    if starts is None or ends is None:
        raise UnknownSizeError("it has no bounds")
    count = starts.shape[1]
    order = list(range(count)) if axes is None else [int(a) % len(dims) for a in axes[0]]
    bounds = {1: starts.copy(), 2: ends.copy()}
    for k, axis in enumerate(order):
        for array in bounds.values():
            if not same(array[:, k]):
                continue
            moved = cut_position(dims[axis], int(array[0, k]), probes)
            if moved is not None:
                array[:, k] = moved
        stride = np.ones(len(probes), np.int64) if steps is None else steps[:, k]
        dims[axis] = np.array(
            [
                len(range(*slice(int(s), _stop(int(e), int(t), int(n)), int(t)).indices(int(n))))
                for s, e, t, n in zip(
                    bounds[1][:, k], bounds[2][:, k], stride, dims[axis], strict=True
                )
            ],
            dtype=np.int64,
        )
    for place, before in ((1, starts), (2, ends)):
        array = bounds[place]
        if (array != before).any():
            if place == 2:
                for k, axis in enumerate(order):
                    if not same(array[:, k]) and (array[:, k] == _dims(inputs)[axis]).all():
                        array[:, k] = TO_THE_END
            found.rewrites.append(Rewrite(node, place, array))
    return [dims]


def _stop(end: int, step: int, size: int) -> int | None:
    return None if step < 0 and end < -size else end


def _split(
    node: ir.Node, inputs: Inputs, probes: Probes, found: Findings
) -> list[list[Vector]] | None:
    dims = _dims(inputs)
    axis = integer(node, "axis", 0) % len(dims)
    parts = _numbers(inputs, 1)
    if same(dims[axis]):
        return None
    if parts is None:
        raise UnknownSizeError("it splits the tokens into equal parts")
    if not (parts == parts[0]).all():
        sizes = list(parts.T)
    else:
        wanted = split_sizes(dims[axis], [int(n) for n in parts[0]], probes)
        sizes = list(parts.T) if wanted is None else wanted
        if wanted is not None:
            found.rewrites.append(Rewrite(node, 1, np.stack(wanted, axis=1)))
    return [[*dims[:axis], size, *dims[axis + 1 :]] for size in sizes]


def _expand(node: ir.Node, inputs: Inputs, probes: Probes, found: Findings) -> list[list[Vector]]:
    dims, target = _dims(inputs), _numbers(inputs, 1)
    if target is None:
        raise UnknownSizeError("it has no target")
    rank = max(len(dims), target.shape[1])
    wanted = np.ones((len(probes), rank), np.int64)
    wanted[:, rank - target.shape[1] :] = target
    result: list[Vector] = []
    changed = False
    for k in range(rank):
        at = k - (rank - len(dims))
        dim = dims[at] if at >= 0 else np.ones(len(probes), np.int64)
        column = wanted[:, k]
        if (dim == column).all() or (column == 1).all():
            result.append(dim)
        elif (dim == 1).all():
            result.append(column)
        elif same(column) and column[0] == dim[0]:
            # What was the file's own size; 1 leaves the axis as it is.
            wanted[:, k], changed = 1, True
            result.append(dim)
        else:
            raise UnknownSizeError(f"its target {target[0].tolist()} does not fit")
    if changed:
        found.rewrites.append(Rewrite(node, 1, wanted))
    return [result]


def _resize(
    node: ir.Node, inputs: Inputs, probes: Probes, found: Findings
) -> list[list[Vector]] | None:
    """Features are resized to the picture or their own size; tables are :func:`table_resize`."""
    info = inputs[0]
    dims, sizes = _dims(inputs), _numbers(inputs, 3)
    if info is None or "axes" in node.attributes or sizes is None:
        return None
    if not info.live:
        return table_resize(node, inputs, probes, found)
    if not (sizes == sizes[0]).all():
        return [list(sizes.T)]
    wanted = list(dims[:2])
    for k in (2, 3):
        wanted.append(picture_size(dims[k], int(sizes[0, k]), k - 2, probes))
    found.rewrites.append(Rewrite(node, 3, np.stack(wanted, axis=1)))
    return [wanted]


def table_resize(
    node: ir.Node, inputs: Inputs, probes: Probes, found: Findings
) -> list[list[Vector]] | None:
    """A constant [1, D, h0, w0] that the graph resizes to its own grid."""
    info, value = inputs[0], node.inputs[0]
    dims = _dims(inputs)
    if info is None or info.live or len(dims) != 4 or value is None or info.varies:
        return None
    grid = (int(dims[2][0]), int(dims[3][0]))
    found.resized.append(FoundPosition("resized", node, 0, value, (2, 3), 0, grid))
    sizes = _numbers(inputs, 3)
    if sizes is None:
        return None
    if not (sizes == sizes[0]).all():
        return [list(sizes.T)]
    if (int(sizes[0, 2]), int(sizes[0, 3])) != probes.own_grid:
        raise UnknownSizeError(f"it resizes a table to {sizes[0, 2:].tolist()}, not to the grid")
    rows = np.array([p.rows for p in probes.all], np.int64)
    columns = np.array([p.columns for p in probes.all], np.int64)
    wanted = [dims[0], dims[1], rows, columns]
    if any(not same(v) for v in (rows, columns)):
        found.rewrites.append(Rewrite(node, 3, np.stack(wanted, axis=1)))
    return [wanted]


def _pool(
    node: ir.Node, inputs: Inputs, probes: Probes, found: Findings
) -> list[list[Vector]] | None:
    dims = _dims(inputs)
    kernel: Sequence[Any] = node.attributes["kernel_shape"].as_ints()
    if len(dims) != 4 or all(same(d) for d in dims[2:]):
        return None
    if [int(d[0]) for d in dims[2:]] != list(kernel):
        return None
    found.pooled.append(Pooled(node))
    one = np.ones(len(probes), np.int64)
    return [[dims[0], dims[1], one, one]]


def _gather(
    node: ir.Node, inputs: Inputs, probes: Probes, found: Findings
) -> list[list[Vector]] | None:
    dims = _dims(inputs)
    axis = integer(node, "axis", 0) % len(dims)
    if same(dims[axis]):
        return None
    index = _numbers(inputs, 1)
    expression = probes.expression(dims[axis])
    fixed = expression.rest if expression is not None and expression.grid else 0
    first = index is not None and (index == index[0]).all() and (index < max(fixed, 1)).all()
    if not first:
        raise UnknownSizeError("it picks tokens at places that may follow the size")
    return None


_REPAIRS: Mapping[str, Callable[[ir.Node, Inputs, Probes, Findings], list[list[Vector]] | None]] = {
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Expand": _expand,
    "Resize": _resize,
    "AveragePool": _pool,
    "MaxPool": _pool,
    "Gather": _gather,
}
