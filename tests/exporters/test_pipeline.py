"""The main job end to end on a tiny ViT, in both engines, over sizes and batches."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

import vitpe_deploy
from exporters.passes import PASSES
from exporters.passes.base import GraphPass, PassContext, PassOutcome
from tests.exporters.conftest import MODEL, TINY, Export
from vitpe_deploy.errors import ArtifactError, ParityError, UnsupportedError, UsageError
from vitpe_deploy.manifest import read_manifest
from vitpe_deploy.models.presets import VIT_PRESETS, with_options
from vitpe_deploy.models.vit import VisionTransformer
from vitpe_deploy.progress import Silent
from vitpe_deploy.runtimes import open_runtime

ENGINES = ("onnxruntime", "openvino")
RESAMPLERS = {"Resize", "Upsample", "Interpolate"}


def reference(**options: Any) -> VisionTransformer:
    """The eager network that an export of the tiny ViT must equal."""
    config = with_options(VIT_PRESETS[MODEL], {**TINY, **options})
    torch.manual_seed(0)
    return VisionTransformer(config).eval()


def operators(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node}


def run(path: Path, engine: str, pixels: np.ndarray) -> dict[str, np.ndarray]:
    with open_runtime(engine, path, threads=2) as runtime:
        return runtime.run({"pixel_values": pixels})


def pixels(height: int, width: int, batch: int = 1, seed: int = 7) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.standard_normal((batch, 3, height, width)).astype(np.float32)


def max_rel(found: np.ndarray, right: torch.Tensor) -> float:
    expected = right.numpy()
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("size", [(96, 96), (160, 160), (48, 48), (96, 160), (160, 96)])
@pytest.mark.parametrize("engine", ENGINES)
def test_static_file_equals_eager_model(
    export_tiny: Export, size: tuple[int, int], engine: str
) -> None:
    path, report = export_tiny(size)
    assert report.verdict == "passed"
    x = pixels(*size)
    with torch.inference_mode():
        right = reference()(torch.from_numpy(x))
    assert max_rel(run(path, engine, x)["logits"], right) <= 1e-5
    assert not operators(path) & RESAMPLERS


def test_size_that_was_asked_is_the_size_of_the_file(export_tiny: Export) -> None:
    path, report = export_tiny((96, 160))
    graph = onnx.load(path).graph
    dims = [d.dim_value for d in graph.input[0].type.tensor_type.shape.dim]
    assert dims == [1, 3, 96, 160]
    assert path.name == "vit_tiny_patch16_224-96x160-fp32.onnx"
    assert report.artifacts[0].resolution == (96, 160)
    assert {row.runtime for row in report.parity} == set(ENGINES)
    assert all(row.resolution == (96, 160) for row in report.parity)


def test_height_and_width_are_not_interchangeable(export_tiny: Export) -> None:
    """C07: the transposed picture in the transposed file gives something else."""
    tall, wide = export_tiny((160, 96))[0], export_tiny((96, 160))[0]
    x = pixels(160, 96)
    straight = run(tall, "onnxruntime", x)["logits"]
    turned = run(wide, "onnxruntime", np.ascontiguousarray(x.transpose(0, 1, 3, 2)))["logits"]
    assert np.abs(straight - turned).max() > 1e-2 * np.abs(straight).max()


def test_native_table_is_in_the_file_bit_for_bit(export_tiny: Export) -> None:
    """C08."""
    path, _ = export_tiny()
    table = reference().encoding.table.detach().numpy()
    arrays = [onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer]
    assert any(a.shape == table.shape and np.array_equal(a, table) for a in arrays)


def test_resampled_table_keeps_the_cls_row(export_tiny: Export) -> None:
    """The baked table has the new grid's rows, its first untouched; nothing is left to compute."""
    path, _ = export_tiny((160, 160))
    table = reference().encoding.table.detach().numpy()
    arrays = [onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer]
    baked = [a for a in arrays if a.shape == (1, 1 + 10 * 10, 32)]
    assert len(baked) == 1
    assert np.array_equal(baked[0][0, 0], table[0, 0])
    assert np.abs(baked[0][0, 1:37] - table[0, 1:]).max() > 0.1


SIZES = [(96, 96), (160, 160), (48, 48), (64, 128), (128, 64), (16, 16)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("size", SIZES)
def test_dynamic_size_runs_and_matches_everywhere(
    export_tiny: Export, size: tuple[int, int], engine: str
) -> None:
    """C09: one file, any size, both engines."""
    path, report = export_tiny(dynamic="size")
    assert report.verdict == "passed"
    assert not operators(path) & (RESAMPLERS | {"Loop", "If", "ScatterND"})
    x = pixels(*size)
    with torch.inference_mode():
        right = reference()(torch.from_numpy(x))
    assert max_rel(run(path, engine, x)["logits"], right) <= 1e-5


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_dynamic_batch(export_tiny: Export, batch: int, engine: str) -> None:
    """C16."""
    path, report = export_tiny(dynamic="batch")
    assert path.name.endswith("-96x96-bdyn-fp32.onnx")
    assert {row.batch for row in report.parity} == {1, 2}
    x = pixels(96, 96, batch)
    with torch.inference_mode():
        right = reference()(torch.from_numpy(x))
    assert max_rel(run(path, engine, x)["logits"], right) <= 1e-5


def test_dynamic_all_verifies_native_smaller_and_non_square(export_tiny: Export) -> None:
    _, report = export_tiny(160, dynamic="all")
    sizes = {row.resolution for row in report.parity}
    assert {(160, 160), (96, 96), (48, 48)} <= sizes
    assert any(h != w for h, w in sizes)
    assert {(row.resolution, row.batch) for row in report.parity} == {
        (size, batch) for size in sizes for batch in (1, 2)
    }


OUTPUTS = ["logits", "pooled", "cls", "tokens", "feature-map", "block:1"]


@pytest.mark.parametrize("engine", ENGINES)
def test_outputs_have_true_symbolic_shapes(export_tiny: Export, engine: str) -> None:
    path, _ = export_tiny(dynamic="all", outputs=OUTPUTS, model_kwargs={"register_tokens": 3})
    declared = {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in onnx.load(path).graph.output
    }
    assert list(declared) == OUTPUTS
    assert declared["logits"] == ["batch", 10]
    assert declared["pooled"] == declared["cls"] == ["batch", 32]
    assert declared["feature-map"] == ["batch", 32, "height//16", "width//16"]
    for name in ("tokens", "block:1"):
        batch, tokens, width = declared[name]
        assert (batch, width) == ("batch", 32)
        assert eval_dim(tokens, height=64, width=144) == 4 + 4 * 9
    x = pixels(64, 144, batch=2)
    network = reference(register_tokens=3)
    with torch.inference_mode():
        features = network.forward_features(torch.from_numpy(x))
    found = run(path, engine, x)
    assert found["feature-map"].shape == (2, 32, 4, 9)
    for name in ("pooled", "cls", "tokens", "feature-map"):
        assert max_rel(found[name], features[name]) <= 1e-5


def eval_dim(text: str, **sizes: int) -> int:
    """The value of a symbolic dimension such as ``(height//16)*(width//16) + 4``."""
    assert set(text) <= set("heightwd0123456789()*/+- ")
    return int(eval(text, {"__builtins__": {}}, sizes))


def test_mean_pool_layer_scale_and_inert_dropout() -> None:
    options = {"pool": "mean", "layer_scale": True, "drop_rate": 0.5, "register_tokens": 2}
    network = reference(**options)
    x = torch.from_numpy(pixels(96, 96))
    with torch.inference_mode():
        first, again = network(x), network(x)
        features = network.forward_features(x)
    assert torch.equal(first, again)
    assert torch.allclose(features["pooled"], features["tokens"][:, 3:].mean(1), atol=1e-6)


def test_options_of_the_reference_model_export(export_tiny: Export) -> None:
    options = {
        "pool": "mean",
        "layer_scale": True,
        "drop_rate": 0.1,
        "distillation_token": True,
        "num_classes": 0,
    }
    path, report = export_tiny((64, 96), model_kwargs=options)
    assert report.verdict == "passed"
    assert [o.name for o in onnx.load(path).graph.output] == ["pooled"]


@pytest.mark.parametrize("encoding", ["none", "learned-1d", "sincos-2d"])
@pytest.mark.parametrize("dynamic", ["none", "all"])
def test_encodings_of_the_spine(export_tiny: Export, encoding: str, dynamic: str) -> None:
    _, report = export_tiny((64, 128), encoding=encoding, dynamic=dynamic)
    assert report.verdict == "passed"
    assert max(row.max_rel for row in report.parity) <= 1e-5
    assert report.encoding == encoding


def test_embedding_of_the_seed_case() -> None:
    """S04: 32 px, patch 8, width 64, batch 2."""
    network = reference(image_size=32, patch_size=8, embed_dim=64)
    tokens, _, grid = network.embed(torch.zeros(2, 3, 32, 32))
    assert tokens.shape == (2, 17, 64)
    assert grid == (4, 4)


@pytest.mark.parametrize("opset", [18, 19, 20, 21, 22, 23])
@pytest.mark.parametrize("target", ["ort", "portable"])
def test_opset_asked_is_opset_written(export_tiny: Export, opset: int, target: str) -> None:
    """C19, first half."""
    path, report = export_tiny(64, opset=opset, target=target)
    versions = {o.domain: o.version for o in onnx.load(path).opset_import}
    assert versions[""] == opset
    assert report.verdict == "passed"
    if target == "portable":
        assert set(versions) == {""}
        assert ("Attention" in operators(path)) == (opset >= 23)
        assert path.stem.endswith("-portable")


@pytest.mark.parametrize("opset", [12, 17, 24])
def test_opset_that_does_not_work_is_refused_with_the_limit(opset: int, tmp_path: Path) -> None:
    """C19, second half."""
    with pytest.raises(UnsupportedError) as caught:
        vitpe_deploy.export(MODEL, opset=opset, output_dir=tmp_path / "out")
    assert f"--opset {opset}" in caught.value.message
    assert ("--opset 18" in caught.value.hint) == (opset < 18)
    assert not (tmp_path / "out").exists()


def test_moved_folder_works_and_lone_file_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C33, with weights in an external data file."""
    monkeypatch.setattr("exporters.onnx_file.EXTERNAL_BYTES", 1000)
    report = vitpe_deploy.export(MODEL, 64, model_kwargs=TINY, output_dir=tmp_path / "out")
    assert report.verdict == "passed"
    path = Path(report.artifacts[0].path)
    assert path.with_name(path.name + ".data").is_file()
    moved = tmp_path / "elsewhere"
    shutil.move(tmp_path / "out", moved)
    assert vitpe_deploy.verify(moved / path.name, runtimes=["ort", "openvino"]).verdict == "passed"
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(moved / path.name, alone)
    for runtime in ENGINES:
        with pytest.raises(ArtifactError, match=f"{path.name}.data"):
            run(alone / path.name, runtime, pixels(64, 64))
    shutil.copy(moved / f"{path.name}.manifest.json", alone)
    with pytest.raises(ArtifactError, match=f"{path.name}.data is missing"):
        vitpe_deploy.verify(alone / path.name)


def test_openvino_input_name_and_shape_are_those_asked_for(export_tiny: Export) -> None:
    """C36."""
    path, report = export_tiny((64, 96), formats=["openvino"])
    assert path.suffix == ".xml"
    with open_runtime("openvino", path, threads=1) as runtime:
        (only,) = runtime.inputs
        assert (only.name, only.shape) == ("pixel_values", (1, 3, 64, 96))
        assert [o.name for o in runtime.outputs] == ["logits"]
    x = pixels(64, 96)
    with torch.inference_mode():
        right = reference()(torch.from_numpy(x))
    assert max_rel(run(path, "openvino", x)["logits"], right) <= 1e-5
    assert report.artifacts[0].format == "openvino"
    assert [row.runtime for row in report.parity] == ["openvino"]


def test_metadata_says_what_the_file_is(export_tiny: Export) -> None:
    path, _ = export_tiny((96, 160))
    props = {p.key: p.value for p in onnx.load(path).metadata_props}
    assert props["vitpe.model"] == MODEL
    assert props["vitpe.encoding"] == "learned-1d"
    assert json.loads(props["vitpe.resolution"]) == [96, 160]
    assert json.loads(props["vitpe.native_resolution"]) == [96, 96]
    assert json.loads(props["vitpe.patch_size"]) == [16, 16]
    assert props["vitpe.prefix_tokens"] == "1"
    assert json.loads(props["vitpe.outputs"]) == ["logits"]
    preprocess = json.loads(props["vitpe.preprocess"])
    assert {"mean", "std", "layout", "color_order", "interpolation", "crop"} <= set(preprocess)
    assert len(props["vitpe.weights_sha256"]) == 64
    for key in ("schema", "version", "encoding_params", "dynamic", "precision"):
        assert f"vitpe.{key}" in props


_EXPORT = """
import sys, vitpe_deploy
vitpe_deploy.export("vit_tiny_patch16_224", (64, 96), output_dir=sys.argv[1], verify=False,
    formats=["onnx", "openvino"], dynamic=sys.argv[2], model_kwargs={kwargs})
"""


@pytest.mark.parametrize("dynamic", ["none", "all"])
def test_same_input_same_bytes_in_two_processes(tmp_path: Path, dynamic: str) -> None:
    script = _EXPORT.format(kwargs=TINY)
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / name), dynamic],
            cwd=Path(__file__).parents[2],
        )
        for name in ("one", "two")
    ]
    assert [p.wait(timeout=300) for p in runs] == [0, 0]
    first = {p.name: p.read_bytes() for p in (tmp_path / "one").iterdir()}
    second = {p.name: p.read_bytes() for p in (tmp_path / "two").iterdir()}
    assert first == second
    assert len(first) == 5
    for name, content in first.items():
        assert str(tmp_path).encode() not in content, name
        assert b"site-packages" not in content, name
        assert b".py" not in content, name


def test_a_file_does_not_depend_on_the_others_written_with_it(tmp_path: Path) -> None:
    found = []
    for place, formats in enumerate((["onnx"], ["onnx", "openvino"])):
        report = vitpe_deploy.export(
            MODEL,
            64,
            model_kwargs=TINY,
            formats=formats,
            verify=False,
            output_dir=tmp_path / str(place),
        )
        found.append(Path(report.artifacts[0].path).read_bytes())
    assert found[0] == found[1]


def test_files_are_complete_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr("exporters.proof.make_case", fail)
    with pytest.raises(RuntimeError, match="disk"):
        vitpe_deploy.export(MODEL, 64, model_kwargs=TINY, output_dir=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_existing_file_is_refused_without_force(export_tiny: Export) -> None:
    path, _ = export_tiny((96, 160))
    before = path.read_bytes()
    with pytest.raises(UsageError, match="exists already"):
        vitpe_deploy.export(MODEL, (96, 160), model_kwargs=TINY, output_dir=path.parent)
    assert path.read_bytes() == before


def test_sizes_appear_together_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from exporters import pipeline

    whole, out = pipeline.trace, tmp_path / "out"

    def second_fails(*given: Any, **options: Any) -> Any:
        if options["size"].height == 64:
            raise UnsupportedError("the second size")
        return whole(*given, **options)

    options: dict[str, Any] = {"model_kwargs": TINY, "output_dir": out, "verify": False}
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "trace", second_fails)
        with pytest.raises(UnsupportedError, match="the second size"):
            vitpe_deploy.export(MODEL, [96, 64], **options)
    assert list(tmp_path.iterdir()) == []
    report = vitpe_deploy.export(MODEL, [96, 64], **options)
    assert [a.resolution for a in report.artifacts] == [(96, 96), (64, 64)]
    assert all(Path(a.path).is_file() for a in report.artifacts)
    assert {row.artifact for row in report.passes} == {a.path for a in report.artifacts}


def test_failed_parity_keeps_the_file_and_marks_it(tmp_path: Path) -> None:
    report = vitpe_deploy.export(MODEL, 64, model_kwargs=TINY, output_dir=tmp_path, rtol=1e-12)
    assert report.verdict == "failed"
    path = Path(report.artifacts[0].path)
    assert path.is_file()
    assert read_manifest(path).verdict == "failed"
    row = report.parity[0]
    assert not row.passed
    assert row.limit_needed == pytest.approx(row.max_rel)
    assert 1e-12 < row.limit_needed < 1e-4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dynamic": "batch", "batch": 4}, "--batch 4 contradicts"),
        ({"size_range": "64:128:16"}, "--res-range needs a dynamic size"),
        ({"verify": False, "verify_resolutions": [64]}, "--no-verify contradicts"),
        ({"verify_resolutions": [64]}, "--verify-res needs a file with a dynamic size"),
        ({"dynamic": "length"}, "--dynamic length is for text"),
        ({"outputs": ["logit"]}, "'logit' is not an output"),
        ({"outputs": ["block:2"]}, "blocks 0 to 1"),
        ({"encoding": "lerned-1d"}, "'lerned-1d' is not a positional encoding"),
        ({"skip_passes": ["attention"]}, "would be wrong"),
        ({"precision": "fp17"}, "'fp17' is not known"),
        ({"encoding": "none", "interpolation": "bilinear"}, "no meaning for none"),
        ({"dynamic": "size", "size_range": "64:96:16", "resolution": 128}, "outside --res-range"),
    ],
)
def test_contradictions_are_refused(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        vitpe_deploy.export(MODEL, model_kwargs=TINY, output_dir=tmp_path / "out", **options)
    assert words in caught.value.message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("size", [97, (96, 100), (8, 96)])
def test_sizes_that_do_not_fit_are_refused_before_loading(
    size: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "vitpe_deploy.sources.reference.ReferenceSource.load", lambda _: pytest.fail("loaded")
    )
    with pytest.raises(UsageError, match="does not fit patch size 16"):
        vitpe_deploy.export(MODEL, size, output_dir=tmp_path / "out")


@pytest.mark.parametrize(
    ("interpolation", "antialias"), [("bilinear", True), ("bilinear", False), ("bicubic", False)]
)
@pytest.mark.parametrize("dynamic", ["none", "size"])
def test_rule_override_is_followed_and_reported(
    export_tiny: Export, interpolation: str, antialias: bool, dynamic: str
) -> None:
    _, report = export_tiny(
        (64, 144), dynamic=dynamic, interpolation=interpolation, antialias=antialias
    )
    assert report.verdict == "passed"
    assert interpolation in report.resample_rule
    assert ("antialias" in report.resample_rule) == antialias


class Lines(Silent):
    """Keeps result lines, and whether they were good."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bool | None]] = []

    def line(
        self, text: str, *, label: str = "", value: str = "", good: bool | None = None
    ) -> None:
        self.seen.append((text, good))


def test_verify_passes_checks_each_graph_after_each(tmp_path: Path) -> None:
    lines = Lines()
    report = vitpe_deploy.export(
        MODEL, [64, 96], model_kwargs=TINY, output_dir=tmp_path, verify_passes=True,
        progress=lines,
    )  # fmt: skip
    after = [(text, good) for text, good in lines.seen if text.startswith("after ")]
    assert [text.split(":")[0] for text, _ in after].count("after attention") == 2
    assert all(good and "max rel" in text for text, good in after)
    assert report.verdict == "passed"


class Wrong(GraphPass):
    """Scales the head by three in a thousand: inside the tolerance of fp16, not of a pass."""

    name = "wrong"

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        del context
        for name, value in model.graph.initializers.items():
            if name.startswith("head") and value.const_value is not None:
                value.const_value = ir.tensor(value.const_value.numpy() * np.float32(1.003))
        outcome = PassOutcome()
        outcome.changed = 1
        return outcome


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8-weights"])
def test_verify_passes_stops_at_a_pass_that_changes_an_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    monkeypatch.setattr("exporters.passes.PASSES", (*PASSES[:-1], Wrong, PASSES[-1]))
    lines = Lines()
    with pytest.raises(ParityError, match="pass 'wrong' changed output 'logits'") as caught:
        vitpe_deploy.export(
            MODEL, 64, model_kwargs=TINY, output_dir=tmp_path / "out", verify_passes=True,
            precision=precision, progress=lines,
        )  # fmt: skip
    assert (caught.value.exit_code, caught.value.kind) == (3, "parity")
    assert "limit 1e-04" in caught.value.message
    assert lines.seen[-1][0].startswith("after wrong: max rel 3.0e-03")
    assert lines.seen[-1][1] is False
    assert not list(tmp_path.rglob("*.onnx"))
