"""An ONNX file shows the same positions as the model it was exported from."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import vitpe_deploy
from vitpe_deploy.errors import ArtifactError, SizeError, UsageError
from vitpe_deploy.plot import positions


def same(found, right, atol=1e-5):
    assert found.kind == right.kind
    assert [p.grid for p in found.panels] == [p.grid for p in right.panels]
    for a, b in zip(found.panels, right.panels, strict=True):
        np.testing.assert_allclose(a.values, b.values, atol=atol)
        if b.steps is not None:
            np.testing.assert_allclose(a.steps, b.steps, atol=1e-4)


@pytest.mark.parametrize("encoding", ["learned-1d", "relative-2d", "rope-mixed"])
def test_static_file(seen, exported, encoding):
    path = exported(encoding)
    found = positions(path)
    same(found, seen(encoding))
    assert found.encoding == encoding
    assert found.model == path.stem


@pytest.mark.parametrize(
    "encoding", ["learned-1d", "relative-2d", "rope-2d", "rope-mixed", "sincos-2d"]
)
def test_dynamic_file_before_and_after_resampling(seen, exported, encoding):
    found = positions(exported(encoding, dynamic="size"), resolutions=["128x160"])
    same(found, seen(encoding, "128x160"), atol=2e-5)
    assert found.panels[0].note == "native"


def test_a_static_file_at_another_size_holds_the_resampled_table(seen, exported):
    path = exported("learned-1d", 144)
    (found,) = positions(path, kind="matrix").panels
    right = seen("learned-1d", 144, kind="matrix").panels[1]
    np.testing.assert_allclose(found.values, right.values, atol=1e-5)
    assert found.note == right.note == "bicubic antialias"
    with pytest.raises(SizeError, match="holds positions for 144x144 only"):
        positions(path, resolutions=[96])


@pytest.mark.parametrize("dynamic", ["none", "size"])
def test_file_of_a_transformers_model(tmp_path, dynamic):
    import transformers

    torch.manual_seed(0)
    config = transformers.Dinov2Config(
        image_size=84, patch_size=14, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        mlp_ratio=2,
    )  # fmt: skip
    model = transformers.Dinov2Model(config).eval()
    torch.nn.init.normal_(model.embeddings.position_embeddings)
    model.save_pretrained(tmp_path / "tiny")
    name = f"hf:{tmp_path / 'tiny'}"
    report = vitpe_deploy.export(
        name, dynamic=dynamic, verify=False, output_dir=tmp_path / "out", threads=2
    )
    sizes = ["112x56"] if dynamic == "size" else []
    found = positions(report.artifacts[0].path, kind="matrix", resolutions=sizes)
    same(found, positions(name, kind="matrix", resolutions=sizes), atol=2e-5)


def test_somebody_elses_dynamic_file_with_a_resize(tmp_path):
    """No metadata, the table resized in the graph as plain exporters do it."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((1, 8, 4, 4)).astype(np.float32)
    weights = {
        "kernel": rng.standard_normal((8, 3, 4, 4)).astype(np.float32),
        "table": table,
        "cls": rng.standard_normal((1, 1, 8)).astype(np.float32),
        "cls_position": rng.standard_normal((1, 1, 8)).astype(np.float32),
        "head": np.array([1, 8], np.int64),
        "tokens": np.array([0, 8, -1], np.int64),
        "bias": rng.standard_normal(8).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["map"], strides=[4, 4], kernel_shape=[4, 4]),
        helper.make_node("Shape", ["map"], ["size"], start=2),
        helper.make_node("Concat", ["head", "size"], ["sizes"], axis=0),
        helper.make_node("Resize", ["table", "", "", "sizes"], ["resized"], mode="cubic"),
        helper.make_node("Reshape", ["resized", "tokens"], ["flat_table"]),
        helper.make_node("Transpose", ["flat_table"], ["rows"], perm=[0, 2, 1]),
        helper.make_node("Concat", ["cls_position", "rows"], ["positions"], axis=1),
        helper.make_node("Reshape", ["map", "tokens"], ["flat"]),
        helper.make_node("Transpose", ["flat"], ["patches"], perm=[0, 2, 1]),
        helper.make_node("Add", ["patches", "bias"], ["biased"]),
        helper.make_node("Concat", ["cls", "biased"], ["embedded"], axis=1),
        helper.make_node("Add", ["embedded", "positions"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path = tmp_path / "theirs.onnx"
    onnx.save(model, path)
    (panel,) = positions(path, kind="matrix", resolutions=["16x16"]).panels
    rows = np.concatenate([weights["cls_position"][0], table[0].reshape(8, 16).T])
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(panel.values, unit @ unit.T, atol=1e-5)
    assert panel.prefix_tokens == 1
    assert positions(path, resolutions=["24x12"]).panels[0].values.shape == (6, 3, 6, 3)
    with pytest.raises(UsageError, match="does not say its native one"):
        positions(path)


def test_trained_file_of_somebody_else(make_dinov2, dinov2_dir):
    """DINOv2-small as published: 37x37 positions, resized in the graph, equal transformers' own."""
    (found,) = positions(make_dinov2.onnx_path(), kind="matrix").panels
    right = positions(f"hf:{dinov2_dir}", kind="matrix", resolutions=[224]).panels[1]
    assert (found.grid, found.prefix_tokens) == ((16, 16), 1)
    assert found.note == "as in the file"
    np.testing.assert_allclose(found.values, right.values, atol=1e-4)
    # Trained positions say where they are: neighbours are alike, far ones are not.
    maps = found.values[1:, 1:].reshape(16, 16, 16, 16)
    assert maps[8, 8, 8, 9] > 0.5 > 0.1 > maps[8, 8, 1, 1]


def test_text_file(tmp_path):
    rng = np.random.default_rng(0)
    table = rng.standard_normal((1, 7, 4)).astype(np.float32)
    words = rng.standard_normal((50, 4)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["words", "ids"], ["x"]),
        helper.make_node("Add", ["x", "table"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 7])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(words, "words")],
    )
    path = tmp_path / "text.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path
    )
    plot = positions(path)
    unit = table[0] / np.linalg.norm(table[0], axis=1, keepdims=True)
    assert plot.kind == "matrix"
    np.testing.assert_allclose(plot.panels[0].values, unit @ unit.T, atol=1e-6)


def test_clear_errors(tmp_path, exported):
    with pytest.raises(ArtifactError, match=r"nowhere\.onnx does not exist"):
        positions("nowhere.onnx")
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    with pytest.raises(ArtifactError, match="not a whole ONNX file"):
        positions(str(text))
    with pytest.raises(UsageError, match="not read from OpenVINO files"):
        positions("model.xml")
    with pytest.raises(UsageError, match="mean nothing for the file"):
        positions(exported("learned-1d"), encoding="sincos-2d")
    with pytest.raises(UsageError, match="not a reference model"), warnings.catch_warnings():
        positions("vit_tiny_patch16_2224")
    with pytest.raises(UsageError, match="nothing to draw of the none positions"):
        positions(exported("none"))
