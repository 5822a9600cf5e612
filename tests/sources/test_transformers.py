"""hf: exports against the library itself: C02, C09, C10, C11, heads, floors and overrides."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitpe_deploy.errors import SizeError

FAMILIES = ["vit", "deit", "dinov2", "dinov2_with_registers"]
PREFIX = {"vit": 1, "deit": 2, "dinov2": 1, "dinov2_with_registers": 4}
RULE = dict.fromkeys(FAMILIES, "bicubic") | {"dinov2_with_registers": "bicubic antialias"}
RESIZING = {"Resize", "Upsample", "Interpolate"}
BOTH = ("onnx", "openvino")


@pytest.mark.parametrize("family", FAMILIES)
def test_static_non_square_with_head(family: str, kit: Any, export: Any) -> None:
    """C02, C07: baked positions, all outputs, every file in every engine."""
    module = kit.build(family, head=True)
    patch = module.config.patch_size
    outputs = ("logits", "cls", "tokens", "feature-map")
    size = (4 * patch, 9 * patch)
    exported = export(kit.save(module), size, formats=BOTH, outputs=outputs)
    assert exported.report.resample_rule == RULE[family]
    assert not exported.operators & RESIZING
    assert exported.input_shape() == [1, 3, *size]

    pixels = kit.pictures(*size)
    logits = kit.forward(module, pixels).logits.numpy()
    encoder = getattr(module, module.base_model_prefix)
    tokens = kit.forward(encoder, pixels).last_hidden_state.numpy()
    assert tokens.shape[1] == PREFIX[family] + 4 * 9
    patches = tokens[:, PREFIX[family] :].reshape(1, 4, 9, -1).transpose(0, 3, 1, 2)
    right = {"logits": logits, "tokens": tokens, "cls": tokens[:, 0], "feature-map": patches}
    for engine, given in exported.run(pixels):
        assert list(given) == list(outputs), engine
        for name in outputs:
            assert kit.max_rel(given[name], right[name]) <= 1e-5, (engine, name)


@pytest.mark.parametrize("family", FAMILIES)
def test_dynamic_runs_at_every_size(family: str, kit: Any, export: Any) -> None:
    """C09, C11: native, below, non-square above; height and width stay apart."""
    module = kit.build(family)
    patch = module.config.patch_size
    formats = BOTH if family == "dinov2_with_registers" else ("onnx",)
    exported = export(kit.save(module), formats=formats, dynamic="all")
    assert exported.report.resample_rule == RULE[family]
    assert not exported.operators & RESIZING
    assert exported.input_shape() == ["batch", 3, "height", "width"]
    verified = {row.resolution for row in exported.report.parity}
    assert len(verified) == 3
    assert {row.batch for row in exported.report.parity} == {1, 2}
    assert any(height != width for height, width in verified)

    right = {}
    for grid, batch in (((6, 6), 1), ((3, 3), 2), ((9, 9), 1), ((8, 10), 3), ((4, 9), 1)):
        pixels = kit.pictures(*(n * patch for n in grid), batch=batch)
        right[grid] = (pixels, kit.forward(module, pixels).last_hidden_state.numpy())
    for engine, run in exported.engines():
        for grid, (pixels, tokens) in right.items():
            assert kit.max_rel(run(pixels)["tokens"], tokens) <= 1e-5, (engine, grid)


def test_static_size_is_the_size_asked_for(kit: Any, export: Any) -> None:
    """C10: the config says 96, the file is 144, and its positions are interpolated."""
    module = kit.build("vit", num_hidden_layers=1)
    exported = export(kit.save(module), 144)
    assert exported.input_shape() == [1, 3, 144, 144]
    pixels = kit.pictures(144, 144)
    right = kit.forward(module, pixels).last_hidden_state.numpy()
    assert right.shape == (1, 82, 32)
    for engine, given in exported.run(pixels):
        assert kit.max_rel(given["tokens"], right) <= 1e-5, engine
    with torch.no_grad():
        module.embeddings.position_embeddings[:, 1:] = 0
    assert kit.max_rel(kit.forward(module, pixels).last_hidden_state, right) > 0.1


def _resampled_by_hand(module: Any, grid: tuple[int, int], **rule: Any) -> Any:
    """The same network with its table interpolated once by torch, at its new native size."""
    old = module.config.image_size // module.config.patch_size
    table = module.embeddings.position_embeddings
    patches = table[:, 1:].reshape(1, old, old, -1).permute(0, 3, 1, 2)
    new = F.interpolate(patches, grid, **rule).flatten(2).transpose(1, 2)
    module.embeddings.position_embeddings = nn.Parameter(torch.cat((table[:, :1], new), 1))
    size = tuple(n * module.config.patch_size for n in grid)
    module.embeddings.image_size = size
    module.embeddings.patch_embeddings.image_size = size  # where transformers 4 looks
    return module


@pytest.mark.parametrize(
    ("options", "rule", "said"),
    [
        ({"antialias": True}, {"mode": "bicubic", "antialias": True}, "bicubic antialias"),
        (
            {"interpolation": "bilinear", "align_corners": True},
            {"mode": "bilinear", "align_corners": True},
            "bilinear align_corners",
        ),
    ],
)
@pytest.mark.parametrize("dynamic", ["none", "size"])
def test_override_of_the_rule(
    options: Any, rule: Any, said: str, dynamic: str, kit: Any, export: Any
) -> None:
    module = kit.build("vit", num_hidden_layers=1)
    folder = kit.save(module)
    pixels = kit.pictures(64, 144)
    own = kit.forward(module, pixels).last_hidden_state.numpy()
    exported = export(folder, (64, 144), dynamic=dynamic, **options)
    assert exported.report.resample_rule == said
    with torch.no_grad():
        right = _resampled_by_hand(module, (4, 9), **rule)(pixels).last_hidden_state.numpy()
    assert kit.max_rel(own, right) > 1e-2
    for engine, given in exported.run(pixels):
        assert kit.max_rel(given["tokens"], right) <= 1e-5, engine


def test_floors_only_when_allowed(kit: Any, export: Any) -> None:
    module = kit.build("dinov2", num_hidden_layers=1)
    folder = kit.save(module)
    with pytest.raises(SizeError, match=r"--res 100 does not fit patch size 14") as refused:
        export(folder, 100)
    assert refused.value.hint.startswith("Use 98 or 112.")
    assert "--allow-floor" in refused.value.hint
    exported = export(folder, 100, allow_floor=True)
    assert exported.input_shape() == [1, 3, 100, 100]
    pixels = kit.pictures(100, 100)
    right = kit.forward(module, pixels).last_hidden_state.numpy()
    assert right.shape == (1, 1 + 7 * 7, 32)
    for engine, given in exported.run(pixels):
        assert kit.max_rel(given["tokens"], right) <= 1e-5, engine
    # What floors: the last two rows and columns are not looked at.
    cut = kit.forward(module, pixels[..., :98, :98]).last_hidden_state.numpy()
    np.testing.assert_allclose(cut, right, rtol=1e-5, atol=1e-5)


def test_two_letters_of_one_axis_each_are_named(kit: Any, export: Any) -> None:
    folder = kit.folder("dinov2")
    for weights in folder.glob("*.safetensors"):
        weights.unlink()  # a size is refused before weights are looked for
    with pytest.raises(SizeError) as refused:
        export(folder, (384, 512))
    assert refused.value.message == "--res 384x512 does not fit patch size 14."
    assert refused.value.hint.startswith("Height 378 or 392, width 504 or 518.")


def test_a_module_is_exported_like_its_folder(kit: Any, export: Any) -> None:
    """And the module keeps its mode, its gradients and its weights."""
    module = kit.build("vit", head=True, num_hidden_layers=1).train()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    exported = export(module, (64, 144))
    assert module.training
    assert all(p.requires_grad for p in module.parameters())
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert exported.report.resample_rule == "bicubic"
    pixels = kit.pictures(64, 144)
    right = kit.forward(module.eval(), pixels).logits.numpy()
    for engine, given in exported.run(pixels):
        assert kit.max_rel(given["logits"], right) <= 1e-5, engine


def test_folder_may_move(kit: Any, export: Any, tmp_path: Path) -> None:
    """No path of this machine is in the file, only the folder's name."""
    folder = kit.folder("vit", num_hidden_layers=1)
    first = export(folder).path().read_bytes()
    moved = shutil.move(folder, tmp_path / "elsewhere" / folder.name)
    assert export(Path(moved)).path().read_bytes() == first
    assert str(tmp_path).encode() not in first
