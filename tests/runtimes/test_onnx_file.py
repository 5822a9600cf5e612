"""The protobuf reader against the onnx package, on weights hidden in every place they can be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from vitpe_deploy.errors import ArtifactError
from vitpe_deploy.runtimes.onnx_file import ExternalTensor, check_onnx_file, external_tensors


def _external(name: str, offset: int | None, length: int | None) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[2])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", f"{name}.data"), ("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    return tensor


@pytest.fixture
def path(tmp_path: Path) -> Path:
    inner = helper.make_graph([], "inner", [], [], [_external("in_subgraph", 300, 8)])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=_external("in_constant", None, None)),
        helper.make_node("If", ["c"], ["d"], then_branch=inner, else_branch=inner),
    ]
    sparse = onnx.SparseTensorProto(values=_external("in_sparse", 0, 8), dims=[4])
    graph = helper.make_graph(
        nodes,
        "g",
        [],
        [],
        [
            _external("in_graph", 2**40, 2**33),
            numpy_helper.from_array(np.arange(500, dtype=np.float32), "inside"),
        ],
        sparse_initializer=[sparse],
    )
    model = helper.make_model(graph)
    function = model.functions.add(name="f", domain="d")
    function.node.append(
        helper.make_node("Constant", [], ["c"], value=_external("in_function", 1, 8))
    )
    file = tmp_path / "m.onnx"
    file.write_bytes(model.SerializeToString())
    return file


def test_finds_weights_wherever_they_are(path: Path) -> None:
    found = {tensor.name: tensor for tensor in external_tensors(path)}
    assert found == {
        "in_graph": ExternalTensor("in_graph", "in_graph.data", 2**40, 2**33),
        "in_constant": ExternalTensor("in_constant", "in_constant.data", 0, None),
        "in_subgraph": ExternalTensor("in_subgraph", "in_subgraph.data", 300, 8),
        "in_sparse": ExternalTensor("in_sparse", "in_sparse.data", 0, 8),
        "in_function": ExternalTensor("in_function", "in_function.data", 1, 8),
    }


def test_every_cut_is_seen_and_never_crashes(path: Path) -> None:
    """A cut that falls between two top-level fields is a whole file; everywhere else is damage."""
    content = path.read_bytes()
    whole, messages = 0, set()
    for length in range(0, len(content), 31):
        path.write_bytes(content[:length])
        try:
            external_tensors(path)
            whole += 1
        except ArtifactError as error:
            messages.add(error.message.split(":")[0])
    assert whole <= 3
    assert messages == {f"{path} is not a whole ONNX file"}


def test_negative_offset_is_damage(tmp_path: Path) -> None:
    graph = helper.make_graph([], "g", [], [], [_external("w", -1, 8)])
    file = tmp_path / "m.onnx"
    file.write_bytes(helper.make_model(graph).SerializeToString())
    with pytest.raises(ArtifactError, match="'w' has an offset or length that is not a number"):
        external_tensors(file)


def test_data_in_a_subfolder_and_a_link_inside_the_folder_are_fine(tmp_path: Path) -> None:
    graph = helper.make_graph([], "g", [], [], [_external("w", 4, 8)])
    file = tmp_path / "m.onnx"
    file.write_bytes(helper.make_model(graph).SerializeToString())
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "real").write_bytes(b"\0" * 12)
    (tmp_path / "w.data").symlink_to("sub/real")
    check_onnx_file(file)
    (tmp_path / "sub" / "real").write_bytes(b"\0" * 11)
    with pytest.raises(ArtifactError, match="has 11 bytes, weight 'w' ends at byte 12"):
        check_onnx_file(file)
