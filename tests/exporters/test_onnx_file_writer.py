"""The hand-framed writer gives the very bytes that protobuf's own serialiser would."""

from __future__ import annotations

import hashlib
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporters.onnx_file import _frame, write_onnx


def model_of(initializers: dict[str, np.ndarray]) -> ir.Model:
    """One Identity per initializer, each an output of the graph."""
    values = [
        ir.Value(name=name, const_value=ir.tensor(array, name=name))
        for name, array in initializers.items()
    ]
    nodes = [ir.node("Identity", [value], name=f"n_{value.name}") for value in values]
    for node, value in zip(nodes, values, strict=True):
        tensor = value.const_value
        assert tensor is not None
        out = node.outputs[0]
        out.name, out.shape, out.type = (
            f"{value.name}_out",
            tensor.shape,
            ir.TensorType(tensor.dtype),
        )
    graph = ir.Graph(
        [],
        [node.outputs[0] for node in nodes],
        nodes=nodes,
        initializers=values,
        opset_imports={"": 20},
        name="main_graph",
    )
    return ir.Model(graph, ir_version=10, producer_name="vitpe-deploy")


WEIGHTS = {
    "wide": np.arange(300 * 70, dtype=np.float32).reshape(300, 70),
    "turned": np.arange(24, dtype=np.float32).reshape(4, 6).T,
    "sliced": np.arange(24, dtype=np.float64)[::3],
    "ints": np.array([-1, 2**40], dtype=np.int64),
    "flags": np.array([True, False]),
    "scalar": np.array(2.5, dtype=np.float32),
    "empty": np.zeros((0, 3), dtype=np.float32),
    "half": np.array([1.5, -2.0], dtype=np.float16),
    "brain": np.array([1.5, -2.0], dtype=ml_dtypes.bfloat16),
    "nibbles": np.array([1, -2, 3], dtype=ml_dtypes.int4),
}


def test_bytes_are_those_of_protobuf(tmp_path: Path) -> None:
    model = model_of(WEIGHTS)
    path = tmp_path / "m.onnx"
    written = write_onnx(model, path, {"vitpe.schema": "1", "a": "b"})
    content = path.read_bytes()
    assert content == ir.to_proto(model).SerializeToString(deterministic=True)
    assert written.sha256 == hashlib.sha256(content).hexdigest()
    assert written.paths == (path,)


def test_values_survive_whatever_their_memory_layout(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    write_onnx(model_of(WEIGHTS), path, {})
    proto = onnx.load(path)
    onnx.checker.check_model(proto)
    stored = {i.name: onnx.numpy_helper.to_array(i) for i in proto.graph.initializer}
    for name, array in WEIGHTS.items():
        np.testing.assert_array_equal(stored[name].astype(np.float64), array.astype(np.float64))


def test_an_engine_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    names = ["wide", "turned", "sliced", "ints"]
    write_onnx(model_of({n: WEIGHTS[n] for n in names}), path, {"vitpe.schema": "1"})
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for name, found in zip(names, session.run(None, {}), strict=True):
        np.testing.assert_array_equal(found, WEIGHTS[name])
    assert session.get_modelmeta().custom_metadata_map == {"vitpe.schema": "1"}


def test_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    model = model_of(WEIGHTS)
    first = write_onnx(model, tmp_path / "a.onnx", {"k": "v"})
    assert list(model.graph.initializers) == list(WEIGHTS)
    assert write_onnx(model, tmp_path / "b.onnx", {"k": "v"}).sha256 == first.sha256


def test_large_weights_go_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporters.onnx_file.EXTERNAL_BYTES", 1000)
    path = tmp_path / "m.onnx"
    written = write_onnx(model_of({"wide": WEIGHTS["wide"]}), path, {})
    assert [p.name for p in written.paths] == ["m.onnx", "m.onnx.data"]
    assert written.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    loaded = onnx.load(path).graph.initializer[0]
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(loaded), WEIGHTS["wide"])


@given(st.integers(1, 15), st.integers(0, 2**40))
def test_frame_is_two_varints(field: int, size: int) -> None:
    """Decoded by the definition: 7 bits per byte, lowest first, the top bit says more follow."""
    numbers, value, shift = [], 0, 0
    for byte in _frame(field, size):
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            numbers.append(value)
            value, shift = 0, 0
    assert numbers == [field * 8 + 2, size]
