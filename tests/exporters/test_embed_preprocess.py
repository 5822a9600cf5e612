"""Files that take pixels: folded where exact, nodes elsewhere, equal to the preprocessing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import vitpe_deploy
from exporters.embed_preprocess import embed_preprocess
from tests.exporters.conftest import MODEL, TINY
from vitpe_deploy.cli import bench_main, export_main, verify_main
from vitpe_deploy.images import prepare, structured_image
from vitpe_deploy.manifest import read_manifest
from vitpe_deploy.pixels import PixelInput
from vitpe_deploy.preprocess import Preprocess
from vitpe_deploy.runtimes import open_runtime

ODD = Preprocess(mean=(0.1, 0.5, 0.7), std=(0.2, 0.3, 0.6), color_order="BGR", scale=1 / 200)
"""No two channels alike, so that a mix-up of any two is seen."""


def convolution(**attributes: Any) -> ir.Model:
    """One convolution of [1, 3, 8, 8] with kernel 4, as a graph."""
    generator = np.random.default_rng(0)
    weight = generator.standard_normal((5, 3, 4, 4)).astype(np.float32)
    bias = generator.standard_normal(5).astype(np.float32)
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("Conv", ["x", "w", "b"], ["y"], name="patches", **attributes)],
            "g",
            [onnx.helper.make_tensor_value_info("x", 1, [1, 3, 8, 8])],
            [onnx.helper.make_tensor_value_info("y", 1, [1, 5, "rows", "columns"])],
            [onnx.numpy_helper.from_array(weight, "w"), onnx.numpy_helper.from_array(bias, "b")],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 20)],
        ir_version=10,
    )
    return ir.from_proto(model)


@pytest.mark.parametrize("order", ["nhwc", "nchw"])
@pytest.mark.parametrize(
    ("attributes", "folds", "reason"),
    [
        ({"strides": [4, 4]}, True, ""),
        ({"strides": [4, 4], "auto_pad": "VALID"}, True, ""),
        ({"strides": [2, 2], "pads": [1, 1, 1, 1]}, False, "patches pads by"),
        ({"strides": [4, 4], "auto_pad": "SAME_UPPER"}, False, "patches pads by SAME_UPPER"),
    ],
)
def test_convolution_behind_pixels_equals_convolution_behind_values(
    tmp_path: Path, order: str, attributes: dict[str, Any], folds: bool, reason: str
) -> None:
    picture = structured_image(8, 8)
    values = prepare(picture, 8, 8, ODD)[None]
    plain = convolution(**attributes)
    ir.save(plain, tmp_path / "plain.onnx")
    with open_runtime("ort", tmp_path / "plain.onnx") as runtime:
        right = runtime.run({"x": values})["y"]

    model = convolution(**attributes)
    layout = PixelInput(3, order)
    run = embed_preprocess(model, layout, ODD, may_fold=True)
    assert run.outcome.changed == int(folds)
    reasons = [refusal.reason for refusal in run.outcome.refused]
    assert len(reasons) == int(not folds)
    assert all(reason in found for found in reasons)
    operators = [node.op_type for node in model.graph]
    assert ("Mul" in operators) is not folds
    ir.save(model, tmp_path / "pixels.onnx")
    onnx.checker.check_model(tmp_path / "pixels.onnx", full_check=True)
    with open_runtime("ort", tmp_path / "pixels.onnx") as runtime:
        given = runtime.run({"pixels": layout.from_pictures(picture[None])})["y"]
    assert np.abs(given - right).max() <= 2e-6 * np.abs(right).max()


@pytest.mark.parametrize(
    "options",
    [
        {"resolution": (96, 64), "formats": ["onnx", "openvino"]},
        {"resolution": (96, 64), "pixel_order": "nchw"},
        {"dynamic": "all", "size_range": "32:160:16"},
        {"buckets": [64, 96], "formats": ["onnx", "openvino"]},
        {"resolution": 96, "precision": "fp16"},
    ],
    ids=["static", "nchw", "dynamic", "buckets", "fp16"],
)
def test_files_that_take_pixels_are_proved(tmp_path: Path, options: dict[str, Any]) -> None:
    report = vitpe_deploy.export(
        MODEL, model_kwargs=TINY, embed_preprocess=True, output_dir=tmp_path, **options
    )
    assert report.verdict == "passed"
    assert {row.runtime for row in report.parity} == {"onnxruntime", "openvino"}
    embedded = [p for p in report.passes if p.name == "embed-preprocess"]
    half = options.get("precision") == "fp16"
    if "dynamic" not in options:  # there the graph also reads the size of its input
        assert all(p.changed == int(not half) for p in embedded)
    assert len(embedded) == len(report.artifacts)
    manifest = read_manifest(Path(report.artifacts[0].path))
    assert manifest.inputs[0].dtype == "uint8"
    assert manifest.layout() == PixelInput(3, options.get("pixel_order", "nhwc"))

    # The loader gives the same answer as the file that takes values.
    plain = vitpe_deploy.export(
        MODEL, 96, model_kwargs=TINY, output_dir=tmp_path / "plain", verify=False
    )
    picture = np.random.default_rng(3).integers(0, 256, (200, 200, 3), dtype=np.uint8)
    place = report.indexes[0] if report.indexes else report.artifacts[0].path
    with vitpe_deploy.load(plain.artifacts[0].path) as values, vitpe_deploy.load(place) as pixels:
        if options.get("resolution") == (96, 64):
            assert pixels([picture, picture])["logits"].shape == (2, 10)
        else:
            right = values(picture)["logits"]
            limit = 1e-2 if half else 1e-4
            assert np.abs(pixels(picture)["logits"] - right).max() <= limit * np.abs(right).max()


def test_timm_verify_bundle_and_bench_understand_pixels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["timm:vit_tiny_patch16_224", "--model-kwarg", "depth=1", "--res", "32x48"]
    assert export_main([*arguments, "--embed-preprocess", "-o", str(tmp_path), "-q"]) == 0
    path = str(next(tmp_path.glob("*.onnx")))
    assert verify_main([path, "--runtime", "ort", "--json"]) == 0
    capsys.readouterr()
    assert verify_main([path, "--bundle", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["reference"], document["verdict"]) == ("stored", "passed")
    flags = ["--runtime", "ort,torch", "--iters", "2", "--rounds", "1", "--warmup", "1"]
    assert bench_main([path, *flags, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert [row["runtime"] for row in rows] == ["onnxruntime", "torch"]
    assert all(row["agreement"]["max_rel"] <= 1e-4 for row in rows)


def test_arrays_of_exactly_the_files_shape_go_in_as_they_are(tmp_path: Path) -> None:
    """Pictures are cropped by the rule; inputs that are prepared must not be cropped again."""
    report = vitpe_deploy.export(
        "timm:vit_tiny_patch16_224", 32, model_kwargs={"depth": 1}, embed_preprocess=True,
        output_dir=tmp_path, verify=False,
    )  # fmt: skip
    pixels = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    with vitpe_deploy.load(report.artifacts[0].path) as model:
        assert model.preprocess.crop < 1
        np.testing.assert_array_equal(model.prepare(pixels), pixels)
        assert np.any(model.prepare(list(pixels)) != pixels)


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["-o", str(tmp_path / "never")]
    for arguments, message in (
        ([MODEL, "--pixel-order", "nhwc"], "--pixel-order is for files that take pixels"),
        ([MODEL, "--embed-preprocess", "--pixel-order", "nhcw"], "Did you mean 'nhwc'?"),
        (["text_clip_base", "--embed-preprocess"], "this model reads text"),
        (
            [MODEL, "--embed-preprocess", "--precision", "int8-weights", "--format", "openvino"],
            "does not go with --precision int8-weights",
        ),
    ):
        assert export_main([*arguments, *out]) == 2
        assert message in capsys.readouterr().err
