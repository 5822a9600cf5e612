"""Our files in another target's spelling, without their model: same numbers, other operators."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import vitpe_deploy
from exporters.onnx_file import write_onnx
from exporters.respell.plain import spell_out
from vitpe_deploy.build_request import make_request
from vitpe_deploy.cli_summary import export_summary
from vitpe_deploy.errors import SizeError, UnsupportedError, UsageError
from vitpe_deploy.manifest import manifest_path, read_manifest
from vitpe_deploy.runtimes import open_runtime
from vitpe_deploy.sources.own_file import own_file

TINY = {"image_size": 64, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 10}
TEXT = {"embed_dim": 32, "depth": 2, "num_heads": 2, "projection_dim": 16, "vocab_size": 99}


def kinds(path: Path) -> Counter[str]:
    """Operators of a file, those of other domains with their domain."""
    nodes = onnx.load(path).graph.node
    return Counter(f"{n.domain}.{n.op_type}".lstrip(".") for n in nodes)


def written(report: Any) -> Path:
    return Path(report.artifacts[0].path)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One file per way in which attention meets positions, none verified yet."""
    folder = tmp_path_factory.mktemp("ours")
    vit: dict[str, Any] = {"model": "vit_tiny_patch16_224", "model_kwargs": TINY}
    made = {
        "timm": {"model": "timm:vit_tiny_patch16_224", "model_kwargs": {"depth": 3}},
        "rope": {**vit, "encoding": "rope-2d"},
        "bias": {**vit, "encoding": "relative-2d", "dynamic": "batch"},
        "size": {**vit, "encoding": "learned-1d", "dynamic": "all"},
        "text": {"model": "text_clip_base", "model_kwargs": TEXT},
    }
    return {
        name: written(
            vitpe_deploy.export(**options, verify=False, output_dir=folder / name, threads=1)
        )
        for name, options in made.items()
    }


def difference(one: Path, other: Path, *shape: int, dtype: str = "float32") -> float:
    """Between two files in ONNX Runtime and in OpenVINO, relative to the largest value."""
    generator = np.random.default_rng(5)
    x = generator.standard_normal(shape).astype(np.float32)
    if dtype == "int64":
        x = generator.integers(1, 90, shape)
    worst = 0.0
    with open_runtime("onnxruntime", one, threads=1) as runtime:
        (right,) = runtime.run({runtime.inputs[0].name: x}).values()
    for engine in ("onnxruntime", "openvino"):
        with open_runtime(engine, other, threads=1) as runtime:
            (given,) = runtime.run({runtime.inputs[0].name: x}).values()
        worst = max(worst, float(np.abs(given - right).max() / np.abs(right).max()))
    return worst


INPUTS: dict[str, tuple[int, ...]] = {
    "timm": (1, 3, 224, 224),
    "rope": (1, 3, 64, 64),
    "bias": (3, 3, 64, 64),
    "size": (2, 3, 48, 112),
    "text": (1, 77),
}


@pytest.mark.parametrize("name", list(INPUTS))
def test_portable_and_back(name: str, ours: dict[str, Path], tmp_path: Path) -> None:
    original = ours[name]
    depth = {"timm": 3}.get(name, 2)
    before = kinds(original)
    assert before["com.microsoft.MultiHeadAttention"] == depth  # C25
    report = vitpe_deploy.export(str(original), target="portable", output_dir=tmp_path, threads=1)
    assert all(row.passed for row in report.parity)
    assert report.verdict == "unverified"  # as the original is
    assert report.reference == "original file"
    path = written(report)
    assert path.name == f"{original.stem}-portable.onnx"
    assert not [kind for kind in kinds(path) if "." in kind]
    assert [entry.domain for entry in onnx.load(path).opset_import] == [""]
    assert kinds(path)["Softmax"] == depth
    assert path.stat().st_size <= 1.02 * original.stat().st_size + 20_000
    dtype = "int64" if name == "text" else "float32"
    assert difference(original, path, *INPUTS[name], dtype=dtype) < 2e-6

    said, was = read_manifest(path), read_manifest(original)
    changed = {"files", "sha256", "size_bytes", "target", "reference", "parity", "verdict"}
    assert {k for k, v in said.model_dump().items() if v != was.model_dump()[k]} <= {
        *changed, "layer_values",
    }  # fmt: skip
    assert (said.target, said.opset, said.verdict) == ("portable", 20, "unverified")
    assert {row.runtime for row in said.parity} == {"onnxruntime", "openvino"}

    back = vitpe_deploy.export(str(path), output_dir=tmp_path, threads=1)
    assert all(row.passed for row in back.parity)
    assert written(back).name == original.name
    again = kinds(written(back))
    assert again["com.microsoft.MultiHeadAttention"] == depth
    # the last query is the class token alone, which no rotation turns
    turned = before["com.microsoft.RotaryEmbedding"]
    assert again["com.microsoft.RotaryEmbedding"] == max(turned - 1, 0)
    assert turned == (4 if name == "rope" else 0)
    assert "Softmax" not in again
    assert difference(original, written(back), *INPUTS[name], dtype=dtype) < 2e-6


def test_opset_23_has_one_attention_per_block(ours: dict[str, Path], tmp_path: Path) -> None:
    report = vitpe_deploy.export(
        str(ours["timm"]), target="portable", opset=23, output_dir=tmp_path, threads=1
    )
    found = kinds(written(report))
    assert all(row.passed for row in report.parity)
    assert (found["Attention"], found["Softmax"], report.artifacts[0].opset) == (3, 0, 23)
    assert vitpe_deploy.inspect(written(report)).fusing.attention == 3


def test_pytorch_still_agrees_and_consumers_are_told(ours: dict[str, Path], tmp_path: Path) -> None:
    """The manifest still knows the model, so vitpe-verify compares with PyTorch itself."""
    path = written(
        vitpe_deploy.export(
            str(ours["rope"]), target="portable", verify=False, output_dir=tmp_path, threads=1
        )
    )
    assert read_manifest(path).verdict == "unverified"
    assert vitpe_deploy.verify(path, threads=1).verdict == "passed"
    before, after = (
        {c.name: c for c in vitpe_deploy.inspect(p).file.consumers}  # type: ignore[union-attr]
        for p in (ours["rope"], path)
    )
    standard = "standard-only importers"
    assert before[standard].runs is False
    assert "--target portable" in before[standard].reasons[-1]
    assert after[standard].runs is None
    assert "standard operators only, opset 20" in after[standard].reasons[0]


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_written_out(tmp_path: Path, interleaved: bool, computed: bool) -> None:
    """One node against its spelling, for both pairings, tables read at positions out of order."""
    generator = np.random.default_rng(0)
    helper, float_ = onnx.helper, onnx.TensorProto.FLOAT
    tables = {
        "positions": np.array([[2, 0, 5, 3, 3]] * 2, dtype=np.int64),
        "cos": generator.standard_normal((6, 3)).astype(np.float32),
        "sin": generator.standard_normal((6, 3)).astype(np.float32),
    }
    given = "_given" if computed else ""
    node = helper.make_node(
        "RotaryEmbedding", ["x", *tables], ["y"], domain="com.microsoft",
        num_heads=2, interleaved=int(interleaved),
    )  # fmt: skip
    proto = helper.make_model(
        helper.make_graph(
            [*(helper.make_node("Identity", [f"{k}{given}"], [k]) for k in tables if given), node],
            "rotary",
            [helper.make_tensor_value_info("x", float_, [2, 5, 12])],
            [helper.make_tensor_value_info("y", float_, [2, 5, 12])],
            [onnx.numpy_helper.from_array(v, f"{k}{given}") for k, v in tables.items()],
        ),
        opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)],
        ir_version=9,
    )
    model = ir.from_proto(proto)
    write_onnx(model, tmp_path / "fused.onnx", {})
    assert spell_out(model) == 1
    write_onnx(model, tmp_path / "plain.onnx", {})
    assert "com.microsoft.RotaryEmbedding" not in kinds(tmp_path / "plain.onnx")
    assert difference(tmp_path / "fused.onnx", tmp_path / "plain.onnx", 2, 5, 12) < 1e-6


@pytest.mark.parametrize("verdict", ["passed", "unverified", "failed"])
def test_what_is_equal_to_a_file_has_its_verdict(
    ours: dict[str, Path], tmp_path: Path, verdict: str
) -> None:
    path = tmp_path / ours["rope"].name
    path.write_bytes(ours["rope"].read_bytes())
    manifest = read_manifest(ours["rope"]).model_copy(update={"verdict": verdict})
    manifest_path(path).write_text(manifest.as_json(), encoding="utf-8")
    report = vitpe_deploy.export(str(path), target="portable", output_dir=tmp_path, threads=1)
    assert all(row.passed for row in report.parity)
    assert report.verdict == read_manifest(written(report)).verdict == verdict
    said = "not verified: the original file was not verified itself"
    assert (said in export_summary(report)) == (verdict == "unverified")


def test_without_a_manifest_or_at_another_size_portable_is_portable(
    ours: dict[str, Path], tmp_path: Path
) -> None:
    alone = tmp_path / "alone.onnx"
    alone.write_bytes(ours["timm"].read_bytes())
    report = vitpe_deploy.export(
        str(alone), target="portable", verify=False, output_dir=tmp_path / "a", threads=1
    )
    assert not [kind for kind in kinds(written(report)) if "." in kind]


def test_refusals(ours: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--layers has no meaning"):
        vitpe_deploy.export(
            str(ours["rope"]), target="portable", verify_layers=True, output_dir=tmp_path
        )
    model = ir.load(ours["rope"])
    first = next(iter(model.graph))
    first.domain = "com.example"
    with pytest.raises(UnsupportedError, match=r"com\.example"):
        spell_out(model)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("rope", {"encoding": "rope-2d"}, "--pe contradicts"),
        ("rope", {"weights": "w.safetensors"}, "--weights contradicts"),
        ("rope", {"model_kwargs": {"depth": 3}}, "--model-kwarg contradicts"),
        ("rope", {"seed": 5}, "--seed contradicts"),
        ("rope", {"tower": "vision"}, "--tower contradicts"),
        ("rope", {"pos_embed": "pos"}, "--pos-embed contradicts"),
        ("text", {"max_length": 40}, "--max-length contradicts"),
        ("size", {"interpolation": "bilinear"}, "--interpolation, --antialias or --align-corners"),
        ("rope", {"allow_floor": True}, "--allow-floor has no meaning"),
        ("rope", {"int8_method": "dynamic"}, "--int8-method has no meaning"),
        ("rope", {"verify_resolutions": [96]}, "--verify-res needs a file with a dynamic size"),
        ("size", {"verify": False, "verify_resolutions": [96]}, "--no-verify contradicts"),
        ("rope", {"opset": 17}, "--opset 17 is not possible"),
    ],
)
def test_no_flag_is_ignored(
    name: str, options: dict[str, Any], words: str, ours: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises((UsageError, UnsupportedError)) as caught:
        vitpe_deploy.export(
            str(ours[name]), target="portable", output_dir=tmp_path / "out", **options
        )
    assert words in caught.value.message
    assert not (tmp_path / "out").exists()


def test_buckets_are_not_a_respelling(ours: dict[str, Path], tmp_path: Path) -> None:
    """They go the way of --res: this file's kernels have one size, and another is refused."""
    source = str(ours["timm"])
    assert own_file(make_request(source, 224)) is not None
    assert own_file(make_request(source, buckets=[224])) is None
    with pytest.raises(SizeError, match="--buckets 256 is not possible"):
        vitpe_deploy.export(source, buckets=[224, 256], output_dir=tmp_path / "out", threads=1)
