"""Files in fp16 and int8 against eager PyTorch, on a tiny ViT and on trained digits."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

import exporters.onnx_file
import vitpe_deploy
from exporters.quantize.candidates import Candidate, _Found, choose
from exporters.quantize.fp16 import convert
from exporters.quantize.job import QuantizeJob
from exporters.quantize.linear import int8_weights
from vitpe_deploy import api
from vitpe_deploy.calibration import CalibrationData, calibration_data
from vitpe_deploy.errors import ArtifactError, MissingExtraError, UsageError, VitpeError
from vitpe_deploy.inputs import ImageInput
from vitpe_deploy.manifest import read_manifest
from vitpe_deploy.models.presets import VIT_PRESETS, with_options
from vitpe_deploy.models.vit import VisionTransformer
from vitpe_deploy.preprocess import Preprocess
from vitpe_deploy.request import Precision, Resolution
from vitpe_deploy.runtimes import open_runtime

TINY = {"depth": 2, "embed_dim": 32, "num_heads": 2, "num_classes": 10}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """150 pictures of digits at the size of the model."""
    path = tmp_path_factory.mktemp("digits")
    for place, image in enumerate(load_digits().images[1500:1650]):
        grey = Image.fromarray((image * 255 / 16).astype(np.uint8))
        grey.resize((32, 32), Image.Resampling.BILINEAR).save(path / f"{place:03}.png")
    return path


def test_int8_chooses_by_measurement_and_verifies_again(digits: Path, tmp_path: Path) -> None:
    report = vitpe_deploy.export(
        "digits-learned-1d", precision="int8", calibration=digits, output_dir=tmp_path, threads=1
    )
    assert report.verdict == "passed"
    assert {c.artifact for c in report.candidates} == {report.artifacts[0].path}
    plain, *others = report.candidates
    assert (plain.method, plain.chosen, plain.agreement, plain.calibrated_on) == (
        "fp32",
        False,
        1,
        0,
    )
    assert {c.method.removesuffix("-reduced") for c in others} == {"dynamic", "static"}
    assert all(c.latency_ms and c.agreement and c.size_bytes > 0 for c in report.candidates)
    assert all((c.calibrated_on, c.judged_on) == (32, 118) for c in others)
    assert min(others, key=lambda c: c.latency_ms or 0.0).chosen
    assert [c.chosen for c in others].count(True) == 1
    for row in report.parity:
        assert (row.criterion, row.inputs) == ("top1", 118)
        assert row.top1_agreement is not None
        assert row.top1_agreement >= 0.99
    path = Path(report.artifacts[0].path)
    assert path.name == "digits-learned-1d-32x32-int8.onnx"
    fused = [n for n in onnx.load(path).graph.node if n.op_type == "MultiHeadAttention"]
    assert len(fused) == 3
    assert read_manifest(path).method == next(c.method for c in report.candidates if c.chosen)
    again = vitpe_deploy.verify(path, threads=1)
    assert again.verdict == "passed"
    assert all(row.inputs == 118 for row in again.parity)


@pytest.mark.parametrize("method", ["dynamic", "static", "dynamic-reduced", "static-reduced"])
def test_a_forced_method_gives_the_same_bytes(digits: Path, tmp_path: Path, method: str) -> None:
    hashes = set()
    for folder in ("a", "b"):
        report = vitpe_deploy.export(
            "digits-learned-1d", precision="int8", calibration=digits, int8_method=method,
            output_dir=tmp_path / folder, threads=1, verify=False,
        )  # fmt: skip
        hashes.add(report.artifacts[0].sha256)
        integers = [
            onnx.numpy_helper.to_array(w)
            for w in onnx.load(report.artifacts[0].path).graph.initializer
            if w.data_type == onnx.TensorProto.INT8 and len(w.dims) == 2
        ]
        top = max(int(np.abs(w.astype(int)).max()) for w in integers)
        assert top == (63 if method.endswith("-reduced") else 127)
    assert len(hashes) == 1


def test_a_floor_above_the_agreement_fails_and_keeps_the_file(digits: Path, tmp_path: Path) -> None:
    report = vitpe_deploy.export(
        "digits-learned-1d", precision="int8", calibration=digits, min_agreement=1.0,
        int8_method="dynamic", output_dir=tmp_path, threads=1,
    )  # fmt: skip
    path = Path(report.artifacts[0].path)
    assert report.verdict == "failed"
    assert path.is_file()
    assert read_manifest(path).verdict == "failed"


def test_an_engine_that_cannot_load_int8_is_a_failed_row(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_openvino(name: str, path: Path, **options: Any) -> Any:
        if name == "openvino":
            raise ArtifactError(f"openvino cannot load {path.name}: no kernel of that kind")
        return open_runtime(name, path, **options)

    monkeypatch.setattr("vitpe_deploy.parity.open_runtime", without_openvino)
    report = vitpe_deploy.export(
        "digits-learned-1d", precision="int8", calibration=digits, int8_method="static",
        min_agreement=0.9, output_dir=tmp_path, threads=1,
    )  # fmt: skip
    path = Path(report.artifacts[0].path)
    again = vitpe_deploy.verify(path, threads=1)
    packed = vitpe_deploy.verify(api.bundle(path, threads=1), threads=1)
    for found in (report, again, packed):
        rows = {row.runtime: row for row in found.parity}
        assert rows["onnxruntime"].passed
        assert not rows["openvino"].passed
        assert "no kernel of that kind" in str(rows["openvino"].problem)
        assert rows["openvino"].inputs == 0
        assert found.verdict == "failed"
    # a file that was changed since is no matter of engines: here by a doc_string of one letter
    path.write_bytes(path.read_bytes() + b"\x32\x01x")
    with pytest.raises(ArtifactError, match="no kernel"):
        vitpe_deploy.verify(path, threads=1)


def test_static_products_are_integer_in_the_engine(digits: Path, tmp_path: Path) -> None:
    """ONNX Runtime fuses each layer into one node; it must not multiply dequantised weights."""
    report = vitpe_deploy.export(
        "digits-learned-1d", precision="int8", calibration=digits, int8_method="static",
        output_dir=tmp_path, threads=1, verify=False,
    )  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(report.artifacts[0].path, options, ["CPUExecutionProvider"])
    kinds = Counter(n.op_type for n in onnx.load(tmp_path / "optimised.onnx").graph.node)
    assert kinds["MatMulIntegerToFloat"] >= 17
    facts = vitpe_deploy.inspect(report.artifacts[0].path).file
    assert facts is not None
    assert facts.consumers[0].runs
    assert set(facts.weight_dtypes) >= {"float32", "int8"}


class Heavy(nn.Module):
    """A tiny ViT whose residual stream passes 65504 after two blocks, in one channel."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.vit = VisionTransformer(with_options(VIT_PRESETS["vit_small_patch16_224"], TINY))
        with torch.no_grad():
            for block in self.vit.blocks:
                block.mlp.fc2.bias[3] = 4e4

    def forward(self, x: torch.Tensor) -> Any:
        out = self.vit(x)
        return out["logits"] if isinstance(out, dict) else out


@pytest.mark.parametrize("size", [96])
def test_an_overflowing_residual_stays_float32(tmp_path: Path, size: int) -> None:  # C28
    model = Heavy().eval()
    report = vitpe_deploy.export(
        model, size, precision="fp16", output_dir=tmp_path, threads=1, outputs=()
    )
    path = Path(report.artifacts[0].path)
    x = np.random.default_rng(3).standard_normal((1, 3, size, size)).astype(np.float32)
    with torch.no_grad():
        right = model(torch.from_numpy(x)).numpy()
    with open_runtime("onnxruntime", path, threads=1) as runtime:
        (found,) = runtime.run({runtime.inputs[0].name: x}).values()
        assert found.dtype == np.float32
        assert runtime.info.precision_executed == "f32"  # C29
    assert np.isfinite(found).all()
    assert np.abs(found - right).max() <= 1e-2 * np.abs(right).max()
    assert report.verdict == "passed"
    kinds = [w.data_type for w in onnx.load(path).graph.initializer if len(w.dims) == 2]
    assert kinds.count(onnx.TensorProto.FLOAT16) >= 8


@pytest.mark.parametrize("largest", [8e4, 700.0, 100.0])
def test_large_values_stay_float32_in_true_float16_arithmetic(largest: float) -> None:
    """Engines on a CPU may compute float16 in float32; numpy, behind onnx's evaluator, does not."""
    helper = onnx.helper
    info = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 4]) for n in "xy"]
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["h"]),
        helper.make_node("Add", ["h", "h"], ["s"]),
        helper.make_node("Sub", ["s", "h"], ["y"]),
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "residual", info[:1], info[1:]),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=9,
    )
    x = np.array([[1.0, 2.0, 3.0, np.sqrt(largest / 2)]], np.float32)
    graph = onnx_ir.from_proto(model)
    span = {"x": (1.0, float(x.max())), "h": (1.0, largest / 2), "s": (2.0, largest)}
    changed = convert(graph, span | {"y": (1.0, largest / 2)})
    assert changed == (3 if largest == 100.0 else 1 if largest == 700.0 else 0)
    (found,) = ReferenceEvaluator(onnx_ir.to_proto(graph)).run(None, {"x": x})
    np.testing.assert_allclose(found, x * x, rtol=2e-3)


@pytest.mark.parametrize("precision", ["fp16", "int8", "int8-weights"])
@pytest.mark.parametrize("kind", ["onnx", "openvino"])
def test_weights_apart_from_the_graph(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, kind: str
) -> None:  # C32, C31
    if kind == "openvino" and precision != "fp16":
        pytest.importorskip("nncf")
    monkeypatch.setattr(exporters.onnx_file, "EXTERNAL_BYTES", 1000)
    report = vitpe_deploy.export(
        "digits-learned-1d", precision=precision, formats=[kind], output_dir=tmp_path, threads=1,
        calibration=digits if precision == "int8" else None,
        int8_method="auto" if precision != "int8" else ("dynamic" if kind == "onnx" else "nncf"),
        min_agreement=0.9,
    )  # fmt: skip
    assert report.verdict == "passed"
    assert {r.runtime for r in report.parity} >= {"openvino"}


def test_what_calibrates_does_not_judge(tmp_path: Path) -> None:  # C30
    for count, calibrating_on in ((2, 1), (7, 3), (150, 32)):
        path = tmp_path / f"{count}.npz"
        samples = np.arange(count, dtype=np.float32)[:, None, None, None] * np.ones((1, 3, 4, 4))
        np.savez(path, pixel_values=samples.astype(np.float32))
        data = calibration_data(str(path), ImageInput(), Resolution(4, 4), 2, Preprocess())
        first = {float(v) for x in data.calibrate for v in x[:, 0, 0, 0]}
        rest = {float(v) for x in data.judge for v in x[:, 0, 0, 0]}
        assert not first & rest
        assert first | rest == set(map(float, range(count)))
        assert (data.calibrated_on, data.judged_on) == (calibrating_on, count - calibrating_on)
        assert all(len(x) == 2 for x in (*data.calibrate, *data.judge))
        # spread over the whole of a sorted folder, not its first class
        assert max(first) >= count - 1 - count / calibrating_on
    np.savez(path, pixel_values=samples[:1].astype(np.float32))
    with pytest.raises(UsageError, match="cannot judge"):
        calibration_data(str(path), ImageInput(), Resolution(4, 4), 1, Preprocess())


def test_candidates_are_chosen_by_latency_above_the_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fastest that agrees enough; below the floor the one that agrees most; fp32 never."""
    said = {"fp32": (9.0, 1.0), "fast": (1.0, 0.98), "good": (2.0, 0.995), "best": (3.0, 0.999)}
    files = {name: Candidate(name, (tmp_path / name,)) for name in said}
    for one in files.values():
        one.files[0].write_bytes(b"x" * 10)
    monkeypatch.setattr("exporters.quantize.candidates._outputs", lambda *_: [])
    monkeypatch.setattr(
        "exporters.quantize.candidates._agreement",
        lambda c, *_: _Found(said[c.method][1], "cosine"),
    )
    monkeypatch.setattr(
        "exporters.quantize.candidates._latencies_ms",
        lambda cs, *_: {c.method: said[c.method][0] for c in cs},
    )
    plain, *others = files.values()
    data = CalibrationData((), (), 3, 4)
    for floor, expected in ((0.99, "good"), (0.9, "fast"), (0.9999, "best")):
        job = QuantizeJob("a.onnx", Precision.INT8, ("y",), data, floor, "auto", 1)
        chosen, records = choose(plain, others, "onnxruntime", job)
        assert chosen == expected
        assert [(r.method, r.latency_ms) for r in records] == [(k, v[0]) for k, v in said.items()]
        assert [r.method for r in records if r.chosen] == [expected]
        assert {(r.calibrated_on, r.judged_on) for r in records} == {(0, 4), (3, 4)}


def test_int8_weights_round_to_the_nearest_step() -> None:
    weight = np.array([[1.0, -0.5], [0.26, 0.25]], np.float32)
    integers, scale = int8_weights(weight)
    assert integers.tolist() == [[127, -127], [33, 64]]
    np.testing.assert_allclose(scale, [1 / 127, 0.5 / 127], rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"precision": "int8"}, "needs calibration data"),
        ({"precision": "int8", "calibration": "nowhere"}, "does not exist"),
        ({"calibration": "random"}, "no meaning for --precision fp32"),
        ({"precision": "fp16", "int8_method": "static"}, "is for --precision int8"),
        ({"precision": "int8", "calibration": "random", "int8_method": "nncf"}, "not for --format"),
        ({"precision": "int8", "calibration": "random", "int8_method": "statc"}, "is not known"),
        ({"precision": "int8", "calibration": "random", "min_agreement": 0.0}, "above 0"),
    ],
)
def test_refusals(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        vitpe_deploy.export("digits-learned-1d", output_dir=tmp_path, **options)
    assert caught.value.exit_code == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arrays", "code", "words"),
    [
        ({"pixels": np.zeros((2, 1, 32, 32), np.float32)}, 2, "the model takes pixel_values"),
        ({"pixel_values": np.zeros((2, 3, 32, 32), np.float32)}, 2, "has shape"),
        ({"pixel_values": np.zeros((2, 1, 32, 32), np.int64)}, 2, "is int64"),
        ({"pixel_values": np.full((2, 1, 32, 32), np.nan, np.float32)}, 1, "NaN"),
        ({"pixel_values": np.array([{}], dtype=object)}, 1, "cannot be read"),
    ],
)
def test_calibration_files_are_checked(
    tmp_path: Path, arrays: dict[str, np.ndarray], code: int, words: str
) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    with pytest.raises(VitpeError, match=words) as caught:
        vitpe_deploy.export(
            "digits-learned-1d", precision="int8", calibration=path, output_dir=tmp_path / "out"
        )
    assert caught.value.exit_code == code


def test_openvino_int8_without_nncf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "nncf" else found(name, *a)
    )
    with pytest.raises(MissingExtraError, match="nncf") as caught:
        vitpe_deploy.export(
            "digits-learned-1d", precision="int8", calibration="random", formats=["openvino"],
            output_dir=tmp_path,
        )  # fmt: skip
    assert "vitpe-deploy[int8]" in caught.value.hint
