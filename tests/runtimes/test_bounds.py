"""Symbolic sizes get the bounds of the file, and an engine holds to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import openvino
import pytest
from onnx import TensorProto, helper

from vitpe_deploy.limits import AxisLimit
from vitpe_deploy.runtimes.bounds import bound_shapes
from vitpe_deploy.runtimes.openvino import shared_core


@pytest.fixture
def model(tmp_path: Path) -> openvino.Model:
    """``y = 2 x`` for any batch, height and width."""
    dims = ["batch", 3, "height", "width"]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "twice",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, dims)],
    )
    path = tmp_path / "twice.onnx"
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(made, str(path))
    return shared_core().read_model(str(path))


def test_bounds_of_the_file_are_those_of_the_engine(model: openvino.Model) -> None:
    limits = (AxisLimit(2, "height", 64, 96, 16), AxisLimit(3, "width", 64, None, 16))
    bounded = bound_shapes(model, limits)
    shape = bounded.inputs[0].get_partial_shape()
    assert [str(dim) for dim in shape] == ["?", "3", "64..96", "?"]
    compiled = shared_core().compile_model(bounded, "CPU")
    x = np.ones((2, 3, 80, 48), np.float32)
    assert (compiled([x])[0] == 2).all()
    with pytest.raises(RuntimeError):
        compiled([np.ones((2, 3, 112, 48), np.float32)])


def test_without_bounds_nothing_changes(model: openvino.Model) -> None:
    before = str(model.inputs[0].get_partial_shape())
    bound_shapes(model, ())
    bound_shapes(model, (AxisLimit(2, "height", 64, None),))
    assert str(model.inputs[0].get_partial_shape()) == before
