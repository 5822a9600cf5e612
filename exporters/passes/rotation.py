"""Find what turns the heads before attention, and measure how it turns them.

Nothing here reads a spelling. A region between heads x and their rotation R that only moves, adds
or multiplies by values that do not depend on x is linear in x, so it is run on probes:

* x with ones in the first channel of every pair reads cosines and sines off, for either pairing
  (case 1: channels i and i + d/2; case 2: channels 2i and 2i + 1);
* random x must then come out as those tables turn it, to rounding. A linear map that agrees on
  random numbers is the same map.

With symbolic sizes all this is done at two sizes.

Letters used in shapes: B batch, M heads, N tokens, d head size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir

from exporters.passes.base import constant
from exporters.passes.size_only import Bindings, SizeOnly, as_proto, at_sizes

_LINEAR = frozenset(
    {"Slice", "Split", "Neg", "Concat", "Mul", "Add", "Sub", "Unsqueeze", "Squeeze", "Reshape"}
)
_MOST_NODES = 40
_TOLERANCE = 1e-5


Measured: TypeAlias = tuple[Mapping[int, np.ndarray], ...]
"""Values as arrays by ``id(value)``, at each size that is tried."""


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes that make ``rotated`` [B, M, N, d] of ``x`` and of ``free`` values."""

    x: ir.Value
    rotated: ir.Value
    nodes: tuple[ir.Node, ...]
    free: tuple[ir.Value, ...]

    @property
    def shape(self) -> ir.Shape:
        """[B, M, N, d], numbers or symbols."""
        if self.x.shape is None:
            raise ValueError(f"the shape of {self.x.name} is unknown")
        return self.x.shape


@dataclass(frozen=True, slots=True)
class Table:
    """Cosines or sines [M, N, d/2] at one size, M = 1 where all heads share them."""

    cos: np.ndarray
    sin: np.ndarray


@dataclass(frozen=True, slots=True)
class Turn:
    """How a region turns pairs of channels, at each of the sizes that were tried."""

    interleaved: bool
    tables: tuple[Table, ...]

    @property
    def first_of_pairs(self) -> slice:
        """The first channel of every pair, of d."""
        return slice(0, None, 2) if self.interleaved else slice(0, self.tables[0].cos.shape[-1])

    @property
    def shared(self) -> bool:
        """Whether all heads turn alike."""
        return all(t.cos.shape[0] == 1 for t in self.tables)


def region_before(rotated: ir.Value, sizes: SizeOnly, order: Mapping[int, int]) -> Region | None:
    """The region that ends in ``rotated``, from the one value of its shape that it is made of.

    Args:
        rotated: what attention reads.
        sizes: tells positions from data.
        order: place of each node in the graph, by ``id(node)``.
    """
    frontier, inner = {id(rotated): rotated}, list[ir.Node]()
    free: dict[int, ir.Value] = {}
    while len(inner) < _MOST_NODES:
        producers = [p for v in frontier.values() if (p := v.producer()) is not None]
        if not producers:
            return None
        last = max(producers, key=lambda p: order.get(id(p), -1))
        if last.op_type not in _LINEAR or last.domain != "":
            return None
        inner.append(last)
        for value in last.outputs:
            frontier.pop(id(value), None)
        for read in last.inputs:
            if read is None:
                continue
            if constant(read) is not None or read in sizes:
                free[id(read)] = read
            else:
                frontier[id(read)] = read
        if len(frontier) != 1 or not any(n.op_type == "Mul" for n in inner):
            continue
        (x,) = frontier.values()
        if x.shape is not None and x.shape == rotated.shape:
            return Region(x, rotated, tuple(inner[::-1]), tuple(free.values()))
    return None


class Measurer:
    """Measures regions of one graph; equal ones with equal free values are measured once."""

    def __init__(self, sizes: SizeOnly, bindings: Sequence[Bindings], opset: int) -> None:
        self._sizes = sizes
        self._bindings = tuple(bindings)
        self._opset = opset
        self._arrays: dict[tuple[int, ...], Measured] = {}
        self._turns: dict[tuple[object, ...], Turn | str] = {}

    def free_arrays(self, region: Region) -> Measured:
        """The free values of a region at each size; empty where they cannot be computed."""
        key = tuple(map(id, region.free))
        if key not in self._arrays:
            self._arrays[key] = tuple(
                self._sizes.arrays(region.free, binding) for binding in self._bindings
            )
        return self._arrays[key]

    def turn(self, region: Region) -> Turn | str:
        """How the region turns the heads; or why it is no rotation."""
        shapes = [at_sizes(region.shape, binding) for binding in self._bindings]
        proto = _as_model(region, self._opset)
        key = (proto.SerializeToString(), tuple(map(id, region.free)), tuple(shapes))
        if key not in self._turns:
            self._turns[key] = self._measure(region, proto, shapes)
        return self._turns[key]

    def _measure(
        self, region: Region, proto: onnx.ModelProto, shapes: Sequence[tuple[int, ...] | None]
    ) -> Turn | str:
        session = onnx.reference.ReferenceEvaluator(proto)
        turns: list[Turn] = []
        for shape, arrays in zip(shapes, self.free_arrays(region), strict=True):
            if shape is None or len(arrays) != len(region.free):
                return f"positions of heads {region.shape} cannot be computed from the sizes"
            if len(shape) != 4 or shape[3] % 2:
                return f"heads of shape {shape} have no channel pairs"
            feeds = {f"f{k}": arrays[id(v)] for k, v in enumerate(region.free)}
            try:
                turn = _Probe(session, feeds, shape).turn()
            except Exception:  # the evaluator raises whatever an operator's implementation does
                return f"the rotation cannot be run on heads {shape}"
            if turn is None:
                return "what is done to the heads is no rotation"
            turns.append(turn)
        if len({(t.interleaved, t.shared) for t in turns}) != 1:
            return "the rotation pairs other channels at another size"
        return Turn(turns[0].interleaved, tuple(t.tables[0] for t in turns))


class _Probe:
    """One region at one size."""

    def __init__(
        self,
        session: onnx.reference.ReferenceEvaluator,
        feeds: Mapping[str, np.ndarray],
        shape: tuple[int, ...],
    ) -> None:
        self._session = session
        self._feeds = feeds
        self._shape = shape

    def _run(self, x: np.ndarray) -> np.ndarray:
        result: np.ndarray = self._session.run(None, {"x": x, **self._feeds})[0]
        return result

    def turn(self) -> Turn | None:
        """The pairing under which the region is a rotation, and its table; None if it is none."""
        half = self._shape[3] // 2
        random = np.random.default_rng(0).standard_normal(self._shape).astype(np.float32)
        wanted = self._run(random)
        for interleaved in (False, True):
            first = np.arange(half) * 2 if interleaved else np.arange(half)
            second = first + 1 if interleaved else first + half
            probe = np.zeros(self._shape, dtype=np.float32)
            probe[..., first] = 1
            answer = self._run(probe)[0]  # [M, N, d]
            cos, sin = answer[..., first], answer[..., second]
            turned = np.empty_like(random)
            turned[..., first] = random[..., first] * cos - random[..., second] * sin
            turned[..., second] = random[..., second] * cos + random[..., first] * sin
            if sin.any() and np.abs(turned - wanted).max() <= _TOLERANCE:
                if (cos == cos[:1]).all() and (sin == sin[:1]).all():
                    cos, sin = cos[:1], sin[:1]
                table = Table(np.ascontiguousarray(cos), np.ascontiguousarray(sin))
                return Turn(interleaved, (table,))
        return None


def _as_model(region: Region, opset: int) -> onnx.ModelProto:
    """The region alone: inputs ``x`` and ``f0``, ``f1``.. for its free values."""
    names = {id(v): f"f{k}" for k, v in enumerate(region.free)} | {id(region.x): "x"}

    def name_of(value: ir.Value | None) -> str:
        return "" if value is None else names.setdefault(id(value), f"v{len(names)}")

    nodes = [as_proto(node, name_of) for node in region.nodes]
    inputs = ["x", *(f"f{k}" for k in range(len(region.free)))]
    graph = onnx.helper.make_graph(
        nodes,
        "rotation",
        [onnx.ValueInfoProto(name=name) for name in inputs],
        [onnx.ValueInfoProto(name=name_of(region.rotated))],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
