"""Tiny files whose cost is known: a chain of square products, as long as asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from vitpe_deploy.bench.inputs import save_inputs
from vitpe_deploy.bench.protocol import ChildSpec

MakeChain = Callable[..., Path]
MakeSpec = Callable[..., ChildSpec]

ROWS, WIDTH = 64, 128


@pytest.fixture
def make_chain(tmp_path: Path) -> MakeChain:
    """``x`` [1, 64, 128] through ``layers`` products with one orthogonal matrix."""

    def make(name: str, layers: int, *, dims: tuple[int | str, ...] = (1, ROWS, WIDTH)) -> Path:
        weight = np.linalg.qr(np.random.default_rng(3).standard_normal((WIDTH, WIDTH)))[0]
        nodes = [
            helper.make_node("MatMul", ["x" if k == 0 else f"h{k}", "w"], [f"h{k + 1}"])
            for k in range(layers)
        ]
        nodes[-1].output[0] = "y"
        graph = helper.make_graph(
            nodes,
            "chain",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, dims)],
            [numpy_helper.from_array(weight.astype(np.float32), "w")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        path = tmp_path / name
        onnx.save(model, str(path))
        return path

    return make


@pytest.fixture
def make_spec(tmp_path: Path) -> MakeSpec:
    """A spec with one thread and one random input."""

    def make(path: Path, runtime: str = "onnxruntime", expected: str = "") -> ChildSpec:
        x = np.random.default_rng(0).standard_normal((1, ROWS, WIDTH)).astype(np.float32)
        inputs = save_inputs(tmp_path / "inputs.npz", [x, 2 * x])
        return ChildSpec(str(path), runtime, "CPU", 1, str(inputs), expected)

    return make
