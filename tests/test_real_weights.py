"""Trained DINOv2-small weights and photographs, end to end.

The default run keeps to small sizes; ``-m slow`` adds the native size, 518x518.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx.utils import Extractor

import vitpe_deploy
from vitpe_deploy.errors import SizeError
from vitpe_deploy.images import load_image, prepare
from vitpe_deploy.preprocess import Preprocess
from vitpe_deploy.request import ModelRequest
from vitpe_deploy.runtimes import open_runtime
from vitpe_deploy.sources import open_source

TOKENS = "/backbone/layernorm/Add_1_output_0"
RESIZING = {"Resize", "Upsample", "Interpolate"}


@pytest.fixture(scope="module")
def network(dinov2_dir: Path) -> Any:
    """The rebuilt network, loaded by the library itself."""
    from transformers import Dinov2Model

    return Dinov2Model.from_pretrained(dinov2_dir).eval()


@pytest.fixture(scope="module")
def original(make_dinov2: ModuleType, dinov2_dir: Path) -> onnxruntime.InferenceSession:
    """The package's own graph, cut after the backbone, height and width made symbolic."""
    model = onnx.load(make_dinov2.onnx_path())
    dims = model.graph.input[0].type.tensor_type.shape.dim
    dims[2].dim_param, dims[3].dim_param = "height", "width"
    del model.graph.value_info[:]
    value = onnx.helper.make_tensor_value_info(TOKENS, onnx.TensorProto.FLOAT, None)
    model.graph.value_info.append(value)
    backbone = Extractor(model).extract_model(["input_image"], [TOKENS])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    return onnxruntime.InferenceSession(
        backbone.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


@pytest.fixture(scope="module")
def two_photographs(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parity is what costs here: two pictures on top of noise and the structured one."""
    folder = tmp_path_factory.mktemp("two")
    for name in ("astronaut", "chelsea"):
        shutil.copy(photographs / f"{name}.png", folder)
    return folder


def _photo(folder: Path, name: str, height: int, width: int) -> np.ndarray[Any, Any]:
    return prepare(load_image(folder / f"{name}.png"), height, width, Preprocess())[None]


@pytest.mark.parametrize("size", [(224, 224), (280, 196), (518, 518)])
def test_rebuilt_weights_are_the_trained_ones(
    size: tuple[int, int], network: Any, original: Any, photographs: Path
) -> None:
    """Native, and two sizes to which the package's graph resizes its table itself."""
    pixels = _photo(photographs, "astronaut", *size)
    (right,) = original.run([TOKENS], {"input_image": pixels})
    with torch.no_grad():
        given = network(torch.from_numpy(pixels)).last_hidden_state.numpy()
    assert given.shape == right.shape == (1, 1 + size[0] // 14 * (size[1] // 14), 384)
    assert np.abs(right).max() > 5
    assert np.abs(given - right).max() <= 2e-5 * np.abs(right).max()


def test_trained_weights_know_two_views_of_one_scene(network: Any, photographs: Path) -> None:
    from skimage import data

    left, right, _ = data.stereo_motorcycle()
    views = [prepare(picture, 224, 224, Preprocess())[None] for picture in (left, right)]
    views.append(_photo(photographs, "chelsea", 224, 224))
    with torch.no_grad():
        cls = network(torch.from_numpy(np.concatenate(views))).last_hidden_state[:, 0]
    assert _cosine(cls[0], cls[1]) > 0.98
    assert _cosine(cls[0], cls[2]) < 0.5


def test_every_tensor_is_loaded_and_facts_are_right(dinov2_dir: Path) -> None:
    source = open_source(ModelRequest(model=f"hf:{dinov2_dir}"))
    facts = source.facts()
    assert str(facts.native) == "518x518"
    assert (facts.depth, facts.prefix_tokens, facts.grid_divisor) == (12, 1, (14, 14))
    assert (facts.preprocess.interpolation, facts.preprocess.crop) == ("bicubic", 0.875)
    loaded = source.load()
    assert loaded.num_parameters == 22_056_192
    table = loaded.fresh().get_parameter("embeddings.position_embeddings")
    assert table.shape == (1, 1370, 384)


def test_a_size_that_does_not_fit_names_both_axes(dinov2_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(SizeError) as refused:
        vitpe_deploy.export(f"hf:{dinov2_dir}", "384x512", output_dir=tmp_path)
    assert refused.value.exit_code == 2
    assert refused.value.message == "--res 384x512 does not fit patch size 14."
    assert refused.value.hint.startswith("Height 378 or 392, width 504 or 518.")
    assert list(tmp_path.iterdir()) == []


def test_static_export_on_photographs(
    dinov2_dir: Path, photographs: Path, two_photographs: Path, network: Any, tmp_path: Path
) -> None:
    report = vitpe_deploy.export(
        f"hf:{dinov2_dir}",
        (378, 504),
        formats=("onnx", "openvino"),
        outputs=("cls", "tokens"),
        images=two_photographs,
        output_dir=tmp_path,
        threads=2,
    )
    assert report.verdict == "passed"
    assert report.resample_rule == "bicubic"
    assert report.weights == "from hf:dinov2-small"
    assert {(r.runtime, r.resolution, r.inputs) for r in report.parity} == {
        ("onnxruntime", (378, 504), 6),
        ("openvino", (378, 504), 6),
    }
    assert all(r.max_rel is not None and r.max_rel <= 2e-5 for r in report.parity)
    path = Path(report.artifacts[0].path)
    assert path.name == "dinov2-small-378x504-fp32.onnx"
    assert not {n.op_type for n in onnx.load(path).graph.node} & RESIZING

    photos = {n: _photo(photographs, n, 378, 504) for n in ("astronaut", "chelsea")}
    with torch.no_grad():
        right = {
            n: network(torch.from_numpy(x)).last_hidden_state[:, 0].numpy()
            for n, x in photos.items()
        }
    with open_runtime("onnxruntime", path, device="CPU", threads=2) as runtime:
        given = {n: runtime.run({"pixel_values": x})["cls"] for n, x in photos.items()}
    for name, vector in right.items():
        assert _cosine(given[name], vector) > 1 - 1e-6


def _cosine(a: Any, b: Any) -> float:
    a, b = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_dynamic_export_at_small_sizes(
    dinov2_dir: Path, photographs: Path, network: Any, tmp_path: Path
) -> None:
    """Verified by hand at sizes far from 518x518; the pipeline's own sizes are the slow test."""
    report = vitpe_deploy.export(
        f"hf:{dinov2_dir}", dynamic="size", outputs=("cls", "tokens"), verify=False,
        output_dir=tmp_path, threads=2,
    )  # fmt: skip
    path = Path(report.artifacts[0].path)
    assert path.name == "dinov2-small-dynsize-fp32.onnx"
    assert not {n.op_type for n in onnx.load(path).graph.node} & RESIZING
    cases = {size: _photo(photographs, "coffee", *size) for size in ((112, 112), (196, 280))}
    for runtime_name in ("onnxruntime", "openvino"):
        with open_runtime(runtime_name, path, device="CPU", threads=2) as runtime:
            for size, pixels in cases.items():
                with torch.no_grad():
                    right = network(torch.from_numpy(pixels)).last_hidden_state.numpy()
                given = runtime.run({"pixel_values": pixels})
                error = np.abs(given["tokens"] - right).max() / np.abs(right).max()
                assert error <= 2e-5, (runtime_name, size)
                assert _cosine(given["cls"], right[:, 0]) > 1 - 1e-6


@pytest.mark.slow
def test_dynamic_export_at_its_own_sizes(
    dinov2_dir: Path, two_photographs: Path, tmp_path: Path
) -> None:
    report = vitpe_deploy.export(
        f"hf:{dinov2_dir}",
        dynamic="size",
        outputs=("cls", "tokens"),
        images=two_photographs,
        verify_resolutions=[(378, 504)],
        output_dir=tmp_path,
        threads=2,
    )
    assert report.verdict == "passed"
    verified = {row.resolution for row in report.parity}
    assert {(518, 518), (252, 252), (378, 504)} <= verified
    assert any(height < width for height, width in verified)
    assert {row.runtime for row in report.parity} == {"onnxruntime", "openvino"}
    assert all(row.max_rel is not None and row.max_rel <= 2e-5 for row in report.parity)
