"""Tiny ONNX files, and the numpy answer each of them must give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

Floats = npt.NDArray[np.float32]
MakeModel = Callable[..., Path]

WEIGHT: Floats = np.random.default_rng(5).standard_normal((3, 4)).astype(np.float32)


@pytest.fixture
def pictures() -> Floats:
    """``[2, 3, 5, 7]``, all values different."""
    return np.random.default_rng(6).standard_normal((2, 3, 5, 7)).astype(np.float32)


@pytest.fixture
def answer() -> Callable[[Floats], dict[str, Floats]]:
    """What the tiny model computes: the mean over space, a linear layer, relu."""

    def compute(x: Floats) -> dict[str, Floats]:
        hidden = x.astype(np.float64).mean(axis=(2, 3)) @ WEIGHT.astype(np.float64)
        return {
            "hidden": hidden.astype(np.float32),
            "logits": np.maximum(hidden, 0).astype(np.float32),
        }

    return compute


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    """Writes the tiny model: ``dims`` of the input, ``external`` data file, ``fixed_rows``.

    With ``fixed_rows`` the graph adds a constant of that height, so that another height fits the
    declaration and still fails inside.
    """

    def make(
        name: str = "tiny.onnx",
        *,
        dims: tuple[int | str, ...] = ("batch", 3, "height", "width"),
        external: str | None = None,
        fixed_rows: int | None = None,
    ) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        nodes = [
            helper.make_node("ReduceMean", ["padded", "axes"], ["pooled"], keepdims=0),
            helper.make_node("MatMul", ["pooled", "weight"], ["hidden"]),
            helper.make_node("Relu", ["hidden"], ["logits"]),
        ]
        initializers = [
            numpy_helper.from_array(WEIGHT, "weight"),
            numpy_helper.from_array(np.array([2, 3], dtype=np.int64), "axes"),
        ]
        if fixed_rows is None:
            nodes.insert(0, helper.make_node("Identity", ["pixel_values"], ["padded"]))
        else:
            rows = np.zeros((1, 1, fixed_rows, 1), dtype=np.float32)
            initializers.append(numpy_helper.from_array(rows, "rows"))
            nodes.insert(0, helper.make_node("Add", ["pixel_values", "rows"], ["padded"]))
        graph = helper.make_graph(
            nodes,
            "tiny",
            [helper.make_tensor_value_info("pixel_values", TensorProto.FLOAT, dims)],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, (dims[0], 4))],
            initializers,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        # The threshold keeps the axes inside: ONNX Runtime infers shapes from them and fails on
        # shape operands that are stored outside.
        if external is None:
            onnx.save(model, path)
        else:
            onnx.save(model, path, save_as_external_data=True, location=external, size_threshold=70)
        return path

    return make
