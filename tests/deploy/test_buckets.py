"""Buckets: one weights file for several sizes, the choice among them, refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitpe_deploy
from vitpe_deploy.bucket_index import read_index
from vitpe_deploy.buckets import nearest
from vitpe_deploy.cli import bench_main, export_main, inspect_main, run_main, verify_main
from vitpe_deploy.errors import ArtifactError, SizeError, UsageError
from vitpe_deploy.images import prepare
from vitpe_deploy.models.presets import VIT_PRESETS, with_options
from vitpe_deploy.models.vit import VisionTransformer
from vitpe_deploy.request import Resolution
from vitpe_deploy.results import ExportReport

MODEL = "vit_tiny_patch16_224"
WIDE = {"depth": 2, "embed_dim": 192, "num_heads": 3, "num_classes": 7, "image_size": 64}
"""Wide enough that weights outweigh the graph, as in networks that people use."""

SIZES = [(64, 64), (64, 96), (96, 96)]


@pytest.fixture(scope="module")
def buckets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExportReport]:
    """Three buckets in both formats, verified."""
    folder = tmp_path_factory.mktemp("buckets")
    report = vitpe_deploy.export(
        MODEL, buckets=SIZES, model_kwargs=WIDE, formats=["onnx", "openvino"], output_dir=folder
    )
    return folder, report


def reference() -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(with_options(VIT_PRESETS[MODEL], WIDE)).eval()


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_every_bucket_is_proved_in_every_engine(buckets: tuple[Path, ExportReport]) -> None:
    _, report = buckets
    assert report.verdict == "passed"
    proved = {(row.runtime, row.artifact[-4:], row.resolution) for row in report.parity}
    for size in SIZES:
        for engine, suffix in (("onnxruntime", "onnx"), ("openvino", "onnx"), ("openvino", ".xml")):
            assert (engine, suffix, size) in proved


@pytest.mark.parametrize(("suffix", "data"), [(".onnx", ".onnx.data"), (".xml", ".bin")])
def test_size_on_disk_is_one_model_and_two_per_cent(
    buckets: tuple[Path, ExportReport], tmp_path: Path, suffix: str, data: str
) -> None:
    """The larger position tables are in it: that of 96x96 is 2.8 % of these weights by itself."""
    folder, _ = buckets
    kind = "onnx" if suffix == ".onnx" else "openvino"
    vitpe_deploy.export(
        MODEL, 96, model_kwargs=WIDE, formats=[kind], output_dir=tmp_path, verify=False
    )
    models = (suffix, data)
    one = sum(p.stat().st_size for p in tmp_path.iterdir() if p.name.endswith(models))
    shared = sum(p.stat().st_size for p in folder.iterdir() if p.name.endswith(data))
    tables = sum((h // 16 * w // 16 + 1) * 192 * 4 for h, w in SIZES[:2])
    assert shared <= 1.02 * one + tables
    graphs = [p.stat().st_size for p in folder.iterdir() if p.name.endswith(suffix)]
    assert len(graphs) == 3
    assert max(graphs) < 0.05 * one  # the files of sizes hold no weights


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_pictures_go_to_the_nearest_bucket_and_answers_keep_their_order(
    buckets: tuple[Path, ExportReport], engine: str
) -> None:
    folder, _ = buckets
    pictures = [picture(300, 310), picture(40, 62, 1), picture(70, 66, 2), picture(200, 300, 3)]
    sizes = [(96, 96), (64, 96), (64, 64), (64, 96)]
    network = reference()
    with vitpe_deploy.load(folder, runtime=engine) as model:
        assert [(s.height, s.width) for s in model.sizes] == SIZES
        logits = model(pictures)["logits"]
        for k, size in enumerate(sizes):
            assert model.choose(pictures[k]) == Resolution(*size)
            x = torch.from_numpy(prepare(pictures[k], *size, model.preprocess))[None]
            with torch.inference_mode():
                right = network(x)[0].numpy()
            assert np.abs(logits[k] - right).max() <= 1e-4 * np.abs(right).max()
        fixed = model(pictures[0], size=(64, 96))["logits"][0]
        assert np.abs(fixed - logits[0]).max() > 1e-3 * np.abs(fixed).max()
        assert len(model.top(pictures, 2)) == 4


def test_prepared_inputs_need_the_size_of_a_bucket(buckets: tuple[Path, ExportReport]) -> None:
    folder, _ = buckets
    values = np.random.default_rng(0).standard_normal((1, 3, 64, 96)).astype(np.float32)
    with vitpe_deploy.load(folder) as model:
        with torch.inference_mode():
            right = reference()(torch.from_numpy(values)).numpy()
        np.testing.assert_allclose(model(values)["logits"], right, atol=1e-5)
        other = np.concatenate([values, values[:, :, :16]], axis=2)
        with pytest.raises(SizeError, match="no bucket of 80x96; there are: 64x64, 64x96, 96x96"):
            model(other)
        assert model(other, resize=True)["logits"].shape == (1, 7)
        with pytest.raises(SizeError, match="no bucket of 32x32"):
            model(picture(9, 9), size=32)


def test_exif_orientation_turns_the_choice(
    buckets: tuple[Path, ExportReport], tmp_path: Path
) -> None:
    folder, _ = buckets
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying, seen standing
    Image.fromarray(picture(90, 60)).save(tmp_path / "turned.jpg", exif=exif)
    with vitpe_deploy.load(folder) as model:
        assert model.choose(tmp_path / "turned.jpg") == Resolution(64, 96)


def test_nearest_in_closed_form() -> None:
    sizes = [Resolution(224, 224), Resolution(224, 384), Resolution(384, 384)]
    assert nearest(sizes, 2000, 3000) == Resolution(224, 384)  # 1.5 is nearer to 1.71 than to 1
    assert nearest(sizes, 3000, 2000) == Resolution(384, 384)
    assert nearest(sizes, 100, 101) == Resolution(224, 224)
    # between equal shapes the ratio of areas decides: 293 is below their geometric mean, 294 above
    assert nearest(sizes, 293, 293) == Resolution(224, 224)
    assert nearest(sizes, 294, 294) == Resolution(384, 384)


def test_commands_take_buckets(
    buckets: tuple[Path, ExportReport], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, report = buckets
    index = next(path for path in report.indexes if ".onnx." in path)
    Image.fromarray(picture(64, 90)).save(tmp_path / "a.png")

    assert run_main([index, str(tmp_path / "a.png"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["results"][0]["top"]) == 5

    assert verify_main([index, "--runtime", "ort", "--res", "64x96", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["resolution"] for row in document["parity"]] == [[64, 96]]
    assert verify_main([index, "--res", "32"]) == 2
    assert "has no such bucket" in capsys.readouterr().err
    assert verify_main([str(folder)]) == 2  # an index of either format
    assert "holds several exports" in capsys.readouterr().err

    assert inspect_main([index, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["sizes"]["buckets"] == [list(size) for size in SIZES]

    assert bench_main([index, "--runtime", "openvino", "--device", "NPU", "--json"]) == 1
    assert "no such device here" in capsys.readouterr().out  # fixed shapes: only the device lacks


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "never")
    for arguments, message in (
        (["--res", "64"], "--buckets contradicts --res"),
        (["--dynamic", "size"], "--buckets contradicts --dynamic size"),
        (["--buckets", "64"], "--buckets names one size twice"),
        (["--buckets", "70"], "--buckets 70 does not fit patch size 16"),
    ):
        assert export_main([MODEL, "--buckets", "64,96", *arguments, "-o", out]) == 2
        assert message in capsys.readouterr().err
    assert not Path(out).exists()


def test_an_incomplete_folder_names_what_is_missing(
    buckets: tuple[Path, ExportReport], tmp_path: Path
) -> None:
    folder, _ = buckets
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved)
    with vitpe_deploy.load(moved) as model:  # nothing points out of the folder
        assert model(picture(64, 64))["logits"].shape == (1, 7)
    index = next(moved.glob("*.onnx.buckets.json"))
    next(moved.glob("*.onnx.data")).unlink()
    with pytest.raises(ArtifactError, match=r"is incomplete: .*\.onnx\.data is missing"):
        vitpe_deploy.load(index)
    document = json.loads(index.read_text())
    document["weights"] = "../elsewhere.data"
    index.write_text(json.dumps(document))
    with pytest.raises(ArtifactError, match="names a file outside its folder"):
        read_index(index)
    index.write_text("{}")
    with pytest.raises(ArtifactError, match="is not an index of buckets"):
        read_index(index)


def test_same_input_same_bytes(buckets: tuple[Path, ExportReport], tmp_path: Path) -> None:
    folder, _ = buckets
    vitpe_deploy.export(MODEL, buckets=SIZES, model_kwargs=WIDE, output_dir=tmp_path, verify=False)
    for path in (p for p in tmp_path.iterdir() if not p.name.endswith(".manifest.json")):
        assert path.read_bytes() == (folder / path.name).read_bytes(), path.name


def test_text_towers_have_no_buckets(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="this model reads text"):
        vitpe_deploy.export("text_clip_base", buckets=[64], output_dir=tmp_path)
