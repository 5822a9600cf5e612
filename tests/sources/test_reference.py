"""Reference networks through the whole pipeline, and refusals that say where an encoding lives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import vitpe_deploy
from vitpe_deploy.errors import SizeError, UsageError
from vitpe_deploy.models.networks import find_preset, preset_names
from vitpe_deploy.models.presets import with_options
from vitpe_deploy.runtimes import open_runtime

TEXT = {"embed_dim": 32, "depth": 2, "num_heads": 2, "vocab_size": 99, "projection_dim": 16}
DETR = {
    "image_size": 96,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 2,
    "feedforward_dim": 64,
    "num_classes": 10,
}


def build(name: str, **options: Any) -> Any:
    network, preset = find_preset(name)
    torch.manual_seed(0)
    return network.build(with_options(preset, options)).eval()


def export(name: str, folder: Path, resolution: Any = None, **options: Any) -> tuple[Path, Any]:
    report = vitpe_deploy.export(name, resolution, output_dir=folder, **options)
    assert report.verdict == "passed"
    return Path(report.artifacts[0].path), report


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_text_tower_of_any_length(engine: str, tmp_path: Path) -> None:
    """C26 and C27: one file, lengths 1 to 77, end tokens at different places; 78 fails."""
    path, report = export("text_clip_base", tmp_path, dynamic="all", model_kwargs=TEXT)
    assert path.name == "text_clip_base-dynall-fp32.onnx"
    assert {row.resolution for row in report.parity} == {(1, 77), (1, 38), (1, 1)}
    tower = build("text_clip_base", **TEXT)
    with open_runtime(engine, path, threads=1) as runtime:
        for length in (1, 8, 77):
            ids = np.random.default_rng(length).integers(1, 98, (3, length))
            for row, place in enumerate((0, length // 2, length - 1)):
                ids[row, place] = 98
            found = runtime.run({"input_ids": ids.astype(np.int64)})["pooled"]
            with torch.inference_mode():
                right = tower(torch.from_numpy(ids)).numpy()
            assert np.abs(found - right).max() <= 1e-5 * np.abs(right).max()
        with pytest.raises(SizeError, match="length 78 is outside what this file takes: 1 to 77"):
            runtime.run({"input_ids": np.ones((1, 78), dtype=np.int64)})


def test_text_tower_of_one_length(tmp_path: Path) -> None:
    path, _ = export("text_clip_base", tmp_path, model_kwargs=TEXT)
    assert path.name == "text_clip_base-len77-fp32.onnx"
    dims = [d.dim_value for d in onnx.load(path).graph.input[0].type.tensor_type.shape.dim]
    assert dims == [1, 77]


@pytest.mark.parametrize(("length", "stretched"), [(16, False), (248, True)])
def test_max_length_cuts_or_stretches(length: int, stretched: bool, tmp_path: Path) -> None:
    path, report = export("text_clip_base", tmp_path, model_kwargs=TEXT, max_length=length)
    assert path.name == f"text_clip_base-len{length}-fp32.onnx"
    table = build("text_clip_base", **TEXT).encoding.table.detach().numpy().reshape(77, 32)
    arrays = [onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer]
    (baked,) = [a[0] for a in arrays if a.shape == (1, length, 32)]
    assert np.array_equal(baked[:16], table[:16])
    if stretched:
        np.testing.assert_allclose(baked[24], table[21], rtol=1e-6)
        assert not np.array_equal(baked[21], table[21])
    assert {row.resolution for row in report.parity} == {(1, length)}


def test_detr_encoder_at_other_sizes(tmp_path: Path) -> None:
    path, report = export("detr_encoder_patch16_512", tmp_path, dynamic="size", model_kwargs=DETR)
    assert len({row.resolution for row in report.parity}) == 3
    network = build("detr_encoder_patch16_512", **DETR)
    x = np.random.default_rng(0).standard_normal((1, 3, 48, 144)).astype(np.float32)
    with open_runtime("openvino", path, threads=1) as runtime:
        found = runtime.run({"pixel_values": x})["logits"]
    with torch.inference_mode():
        right = network(torch.from_numpy(x)).numpy()
    assert np.abs(found - right).max() <= 1e-5 * np.abs(right).max()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "vit_tiny_patch16_224", "encoding": "window-bias"}, "lives in: swin"),
        ({"model": "swin_micro_patch4_window4_64", "encoding": "rope-2d"}, "swin network"),
        ({"model": "vit_tiny_patch16_224", "encoding": "relative-3d"}, "lives in: video"),
        ({"model": "vit_tiny_patch16_224", "dynamic": "length"}, "--dynamic length is for text"),
        ({"model": "vit_tiny_patch16_224", "max_length": 20}, "--max-length has no meaning"),
        ({"model": "text_clip_base", "dynamic": "size"}, "--dynamic size is for pictures"),
        ({"model": "text_clip_base", "resolution": 224}, "size of pictures"),
        ({"model": "text_clip_base", "max_length": 100}, "--max-length 100 is not a length"),
        ({"model": "vit_tinny_patch16_224"}, "is not a reference model"),
        (
            {"model": "vit_tiny_patch16_224", "model_kwargs": {"pe.stdd": 1}},
            "pe.stdd is not an option",
        ),
    ],
)
def test_refusals_say_where_to_look(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises((UsageError, SizeError)) as caught:
        vitpe_deploy.export(output_dir=tmp_path / "out", **options)
    assert words in caught.value.message
    assert not (tmp_path / "out").exists()


def test_length_over_the_limit_names_both_numbers() -> None:
    """S06."""
    with pytest.raises(SizeError, match=r"78.*77"):
        build("text_clip_base", **TEXT)(torch.ones(1, 78, dtype=torch.int64))


def test_presets_of_all_networks_are_known() -> None:
    names = preset_names()
    assert len(names) == len(set(names))
    for expected in (
        "vit_small_patch16_224",
        "vit_small_patch14_518",
        "swin_tiny_patch4_window7_224",
        "swinv2_tiny_window8_256",
        "text_clip_base",
        "video_micro_patch8_48",
        "detr_encoder_patch16_512",
    ):
        assert expected in names


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_dynamic_file_refuses_sizes_outside_its_limits(engine: str, tmp_path: Path) -> None:
    """A graph cannot refuse: 100 rows would lose 4 pixels, 512 is outside the range."""
    tiny = {"image_size": 96, "embed_dim": 32, "depth": 1, "num_heads": 2, "num_classes": 10}
    report = vitpe_deploy.export(
        "vit_tiny_patch16_224",
        dynamic="size",
        size_range="32:256",
        model_kwargs=tiny,
        formats=["onnx", "openvino"],
        output_dir=tmp_path,
    )
    paths = [Path(a.path) for a in report.artifacts]
    for path in paths if engine == "openvino" else paths[:1]:
        with open_runtime(engine, path, threads=1) as runtime:
            for size, words in (
                ((96, 100), "width 100 is not a size"),
                ((16, 96), "height 16 is outside"),
                ((96, 272), "width 272 is outside"),
            ):
                with pytest.raises(SizeError, match=words):
                    runtime.run({"pixel_values": np.zeros((1, 3, *size), np.float32)})
            assert runtime.run({"pixel_values": np.ones((1, 3, 256, 32), np.float32)})


def test_range_that_does_not_fit_the_patch_is_refused(tmp_path: Path) -> None:
    for span in ("100:256", "96:256:10"):
        with pytest.raises(UsageError, match="do not fit patch size 16"):
            vitpe_deploy.export(dynamic="size", size_range=span, output_dir=tmp_path / "out")


@pytest.mark.parametrize(
    "option",
    ["depth=0", "num_heads=0", "patch_size=-16", "num_classes=-1", "mlp_ratio=nan", "drop_rate=1"],
)
def test_numbers_that_no_network_has_are_refused(option: str) -> None:
    name, value = option.split("=")
    with pytest.raises(UsageError, match=f"--model-kwarg {name} must be from"):
        with_options(find_preset("vit_tiny_patch16_224")[1], {name: value})
