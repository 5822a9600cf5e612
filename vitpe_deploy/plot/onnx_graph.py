"""Positions inside an ONNX file, ours or anybody's.

The same question as in :mod:`vitpe_deploy.plot.meetings` is put to the graph: what does the picture
meet on its way (:mod:`vitpe_deploy.inspection.picture_trail`)? An initializer of a static file and
the matrix products of a dynamic one are found alike; the part of the graph that makes them is cut
out and run for the size in question.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from vitpe_deploy.errors import ArtifactError, SizeError, UnsupportedError, UsageError
from vitpe_deploy.inspection.picture_trail import Met, follow, meetings
from vitpe_deploy.manifest import PREFIX
from vitpe_deploy.plot.meetings import Meeting, may_be_position, positions_among
from vitpe_deploy.plot.similarity import Array, Grid
from vitpe_deploy.plot.values import AS_IN_FILE, NATIVE, RECOMPUTED, PositionSet
from vitpe_deploy.request import Resolution
from vitpe_deploy.runtimes.onnx_file import check_onnx_file

_CHANNELS = (1, 3, 4)

_OTHER_LENGTH = 16
"""Words that a text tower of symbolic length is read at when it does not say its longest."""


@dataclass(frozen=True, slots=True)
class _Node:
    """One node, as the trail reads it."""

    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class OnnxReader:
    """One ``.onnx`` file."""

    def __init__(self, path: Path) -> None:
        check_onnx_file(path)
        self._path = path
        self.name = path.stem
        try:
            model = onnx.load(path)
            _read_names(model.graph)
        except Exception as problem:  # protobuf's own exceptions, and names that are no text
            raise ArtifactError(f"{path} is not an ONNX file: {problem}") from problem
        if model.functions:
            from onnx import inliner

            model = inliner.inline_local_functions(model)
        self._graph = model.graph
        self._model = model
        self._facts = {
            p.key.removeprefix(PREFIX): p.value
            for p in model.metadata_props
            if p.key.startswith(PREFIX)
        }
        self.encoding: str | None = self._facts.get("encoding") or None
        self._weights = {w.name: w for w in self._graph.initializer}
        inputs = [i for i in self._graph.input if i.name not in self._weights]
        if not inputs:
            raise ArtifactError(f"{path} has no input", hint="Give the file of a whole model.")
        self._input = inputs[0]
        self._nodes = [_Node(n.op_type, tuple(n.input), tuple(n.output)) for n in self._graph.node]
        self._following = follow(self._nodes, {i.name for i in inputs})

    def sets(self, resolutions: Sequence[Resolution]) -> tuple[PositionSet, ...]:
        """At the native size of a dynamic file that names one, then at each size given.

        Raises:
            SizeError: the file holds another size.
            UsageError: its size is symbolic, and nothing says which one is native.
            UnsupportedError: its input is neither pictures nor text.
        """
        shape = [d.dim_value or None for d in self._input.type.tensor_type.shape.dim]
        if len(shape) == 2:
            return (self._text(shape),)
        if len(shape) not in (4, 5):
            raise UnsupportedError(
                f"{self._path.name}: input {self._input.name!r} has {len(shape)} dimensions",
                hint="Pictures have 4, clips 5 and texts 2.",
            )
        rows, columns = self._axes(shape)
        fixed = shape[rows], shape[columns]
        native = self._size("native_resolution")
        if fixed[0] and fixed[1]:
            own = Resolution(fixed[0], fixed[1])
            wrong = [size for size in resolutions if size != own]
            if wrong:
                raise SizeError(
                    f"--res {wrong[0]} is not possible: {self._path.name} holds positions for "
                    f"{own} only",
                    hint="Leave out --res, or plot the model it was exported from.",
                )
            sizes = [own]
        else:
            sizes = [*([native] if native is not None else []), *resolutions]
            if not sizes:
                raise UsageError(
                    f"{self._path.name} takes any size and does not say its native one",
                    hint="Give one with --res.",
                )
        rule = self._facts.get("resample_rule") or AS_IN_FILE
        rule = RECOMPUTED if rule == "recompute" else rule
        return tuple(
            replace(
                self._picture(shape, (rows, columns), size),
                resolution=size,
                note=NATIVE if size == native else rule,
            )
            for size in sizes
        )

    def _axes(self, shape: Sequence[int | None]) -> tuple[int, int]:
        """Which axes of the input are height and width."""
        if len(shape) == 4 and shape[1] not in _CHANNELS and shape[3] in _CHANNELS:
            return 1, 2
        return len(shape) - 2, len(shape) - 1

    def _picture(
        self, shape: Sequence[int | None], axes: tuple[int, int], size: Resolution
    ) -> PositionSet:
        """Positions for one size of pictures or clips."""
        full = [n or 1 for n in shape]
        full[axes[0]], full[axes[1]] = size.height, size.width
        *time, patch_h, patch_w = self._patch()
        frames = full[2] // time[0] if time and len(full) == 5 else 1
        grid = (size.height // patch_h, size.width // patch_w)
        return self._found(full, grid, frames)

    def _text(self, shape: Sequence[int | None]) -> PositionSet:
        """Positions of words."""
        length = shape[1]
        if length is None:
            tables = [
                w.dims[-2]
                for operand in self._operands()
                if (w := self._weights.get(operand.value)) is not None and len(w.dims) > 1
            ]
            length = max(tables, default=_OTHER_LENGTH)
        return self._found([shape[0] or 1, length], (1, length), 1)

    def _found(self, shape: Sequence[int], grid: Grid, frames: int) -> PositionSet:
        operands = [o for o in self._operands() if self._may_be_position(o.value)]
        values = self._computed({o.value for o in operands}, shape)
        found = [
            Meeting(o.how, values[o.value])
            for o in operands
            if may_be_position(values[o.value].shape)
        ]
        return positions_among(found, grid, frames)

    def _operands(self) -> Iterator[Met]:
        """What meets the picture, in the order of the graph."""
        return meetings(self._nodes, self._following)

    def _may_be_position(self, name: str) -> bool:
        """Leaves out what is known to be a weight without computing it."""
        weight = self._weights.get(name)
        return weight is None or may_be_position(tuple(weight.dims))

    def _weight(self, name: str) -> Array:
        """One stored tensor.

        Raises:
            ArtifactError: its bytes are not what its shape and type say.
        """
        try:
            value: Array = onnx.numpy_helper.to_array(self._weights[name])
        except Exception as problem:  # onnx passes on what numpy and protobuf raise
            lines = str(problem).strip().splitlines() or [type(problem).__name__]
            raise ArtifactError(
                f"weight {name[:100]!r} of {self._path.name} is damaged: {lines[0][:200]}"
            ) from problem
        return value

    def _computed(self, names: set[str], shape: Sequence[int]) -> dict[str, Array]:
        """Values that do not depend on the picture's values, for a picture of ``shape``."""
        found = {name: self._weight(name) for name in names if name in self._weights}
        rest = sorted(names - set(found))
        if rest:
            found.update(zip(rest, self._run(rest, shape), strict=True))
        return {name: v if v.dtype == bool else v.astype(np.float32) for name, v in found.items()}

    def _run(self, names: Sequence[str], shape: Sequence[int]) -> list[Array]:
        """Run the part of the graph that makes ``names``."""
        from vitpe_deploy.runtimes.onnxruntime import import_onnxruntime

        ort = import_onnxruntime()
        needed, nodes = set(names), []
        for node in reversed(self._graph.node):
            if needed.intersection(node.output):
                nodes.append(node)
                needed.update(node.input)
        nodes.reverse()
        graph = onnx.GraphProto(name="positions", node=nodes)
        graph.initializer.extend(w for n, w in self._weights.items() if n in needed)
        reads = self._input.name in needed
        if reads:
            graph.input.append(self._input)
        graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
        part = onnx.ModelProto(
            ir_version=self._model.ir_version, opset_import=self._model.opset_import, graph=graph
        )
        kind = onnx.helper.tensor_dtype_to_np_dtype(self._input.type.tensor_type.elem_type)
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            session = ort.InferenceSession(
                part.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            feed = {self._input.name: np.zeros(shape, kind)} if reads else {}
            values: list[Array] = session.run(list(names), feed)
        except Exception as problem:  # onnxruntime's exceptions have no common public base
            lines = str(problem).strip().splitlines() or [type(problem).__name__]
            size = "x".join(map(str, shape))
            raise ArtifactError(
                f"the positions of {self._path.name} cannot be computed at {size}: {lines[0][:200]}"
            ) from problem
        return values

    def _patch(self) -> tuple[int, ...]:
        """Strides of the convolution that cuts the picture into patches, time first in a clip.

        Raises:
            UnsupportedError: there is none, and the file does not say its patch size.
        """
        for node in self._graph.node:
            if node.op_type == "Conv" and node.input[0] in self._following:
                strides = _attribute(node, "strides")
                if strides == _attribute(node, "kernel_shape") and max(strides, default=1) > 1:
                    return strides
        said = self._size("patch_size")
        if said is None:
            raise UnsupportedError(
                f"{self._path.name} has no convolution whose stride is its kernel, so that its "
                "patch grid is unknown",
                hint="Plot the model it was exported from.",
            )
        return said.height, said.width

    def _size(self, key: str) -> Resolution | None:
        """Two numbers of the metadata."""
        try:
            height, width = json.loads(self._facts.get(key, "null"))
            return Resolution(int(height), int(width))
        except (ValueError, TypeError, RecursionError):
            return None


def _read_names(graph: Any) -> None:
    """Refuse names that are no text; protobuf gives those as bytes, or not at all.

    Raises:
        ValueError: there is one.
    """
    names = [n for node in graph.node for n in (*node.input, *node.output, node.op_type)]
    values = (*graph.input, *graph.output, *graph.value_info, *graph.initializer)
    names += [value.name for value in values]
    if not all(isinstance(name, str) for name in names):
        raise ValueError("it has names that are no text")


def _attribute(node: Any, name: str) -> tuple[int, ...]:
    found = next((a for a in node.attribute if a.name == name), None)
    return () if found is None else tuple(int(n) for n in found.ints)
