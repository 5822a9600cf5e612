"""What config.json and preprocessor_config.json say; nothing here loads weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vitpe_deploy.errors import SizeError, SourceError, UnsupportedError, UsageError
from vitpe_deploy.request import ModelRequest, ResampleOverride, Resolution
from vitpe_deploy.sources import open_source
from vitpe_deploy.sources.base import ModelFacts


def _facts(folder: Path, config: Any, preprocessor: Any = None) -> ModelFacts:
    folder.mkdir(exist_ok=True)
    text = config if isinstance(config, str) else json.dumps(config)
    (folder / "config.json").write_text(text)
    if preprocessor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return open_source(ModelRequest(model=f"hf:{folder}")).facts()


VIT = {"model_type": "vit", "architectures": ["ViTModel"], "image_size": 96, "patch_size": 16}
DINO = {"model_type": "dinov2", "architectures": ["Dinov2Model"], "image_size": 84,
        "patch_size": 14}  # fmt: skip


def test_facts_of_each_family(tmp_path: Path) -> None:
    facts = _facts(tmp_path / "model-a", {**VIT, "num_hidden_layers": 3, "num_channels": 1})
    assert (facts.name, facts.spec) == ("model-a", "hf:model-a")
    assert facts.native == Resolution(96, 96)
    assert facts.grid_divisor == (16, 16)
    assert (facts.depth, facts.prefix_tokens, facts.encoding) == (3, 1, "learned-1d")
    assert facts.input.shape(Resolution(96, 96), 2) == (2, 1, 96, 96)
    assert facts.default_outputs == ("tokens", "pooled")
    deit = _facts(tmp_path, {**VIT, "model_type": "deit", "architectures": ["DeiTModel"]})
    assert deit.prefix_tokens == 2
    registers = {**DINO, "model_type": "dinov2_with_registers", "num_register_tokens": 7}
    assert _facts(tmp_path, registers).prefix_tokens == 8
    del registers["num_register_tokens"]
    assert _facts(tmp_path, registers).prefix_tokens == 5
    head = _facts(tmp_path, {**VIT, "architectures": ["ViTForImageClassification"]})
    assert head.default_outputs == ("logits",)
    assert head.outputs == ("logits", "cls", "tokens", "feature-map")


def test_missing_values_are_the_libraries_defaults(tmp_path: Path) -> None:
    facts = _facts(tmp_path, {"model_type": "vit"})
    assert (facts.native, facts.grid_divisor, facts.depth) == (Resolution(224, 224), (16, 16), 12)


def test_unknown_type_says_what_is_near(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="of type 'swinv3', which the installed") as refused:
        _facts(tmp_path, {"model_type": "swinv3"})
    assert "Did you mean 'swinv2'?" in refused.value.hint


@pytest.mark.parametrize("text", ["{", "", "[]", "\x00\x01"])
def test_damaged_config(tmp_path: Path, text: str) -> None:
    with pytest.raises(SourceError, match=r"config\.json .*is not"):
        _facts(tmp_path, text)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("patch_size", 0), ("patch_size", "16"), ("patch_size", [16]), ("image_size", [1, 2, 3]),
        ("image_size", None), ("num_hidden_layers", "twelve"), ("num_channels", -1),
    ],
)  # fmt: skip
def test_impossible_numbers(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(SourceError, match=f"config.json says {key} = "):
        _facts(tmp_path, {**VIT, key: value})


def test_no_config_and_no_name(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"there is no config\.json"):
        open_source(ModelRequest(model=f"hf:{tmp_path}")).facts()
    with pytest.raises(UsageError, match="'hf:' names nothing"):
        open_source(ModelRequest(model="hf:"))


def test_options_of_other_sources_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(VIT))
    for given in ({"encoding": "none"}, {"pos_embed": "x"}, {"tower": "text"}):
        with pytest.raises(UnsupportedError, match="has no meaning for hf:"):
            open_source(ModelRequest(model=f"hf:{tmp_path}", **given)).facts()  # type: ignore[arg-type]
    open_source(ModelRequest(model=f"hf:{tmp_path}", resample=ResampleOverride("bilinear")))


def test_image_size_lists(tmp_path: Path) -> None:
    square = _facts(tmp_path, {**VIT, "image_size": [96, 96]})
    square.size_rule.check(Resolution(64, 144))
    assert square.native == Resolution(96, 96)


def test_only_square_grids_are_resampled(tmp_path: Path) -> None:
    """transformers takes the root of the number of positions as rows and columns."""
    for size in ([64, 96], [64, 144]):  # 24 positions fail, 36 are silently read as 6x6
        facts = _facts(tmp_path, {**VIT, "image_size": size})
        facts.size_rule.check(Resolution(*size))
        with pytest.raises(SizeError, match=f"square grid.* are 4x{size[1] // 16}") as refused:
            facts.size_rule.check(Resolution(128, 128))
        assert refused.value.hint == f"Use 64x{size[1]}."
        with pytest.raises(UnsupportedError, match=r"with a dynamic size: .*square grid"):
            facts.sizes(symbolic=True)
        with pytest.raises(UnsupportedError, match=f"square grid.* are 4x{size[1] // 16}"):
            _facts(tmp_path, {**DINO, "image_size": [56, size[1] // 16 * 14]})


def test_patch_size_lists(tmp_path: Path) -> None:
    listed = _facts(tmp_path, {**VIT, "patch_size": [16, 16]})
    with pytest.raises(SizeError, match="when patch_size is a list"):
        listed.size_rule.check(Resolution(128, 128))
    tall = _facts(tmp_path, {**DINO, "patch_size": [14, 7], "image_size": [84, 42]})
    assert tall.native == Resolution(84, 42)
    tall.size_rule.check(Resolution(98, 49))
    with pytest.raises(SizeError, match="does not fit patch size 14x7") as refused:
        tall.size_rule.check(Resolution(100, 50))
    assert refused.value.hint.startswith("Height 98 or 112, width 49 or 56.")


def test_preprocessing_of_both_generations(tmp_path: Path) -> None:
    new = {
        "do_center_crop": True, "crop_size": {"height": 224, "width": 224},
        "size": {"shortest_edge": 256}, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.1, 0.2, 0.3],
        "resample": 2, "rescale_factor": 0.5,
    }  # fmt: skip
    found = _facts(tmp_path, VIT, new).preprocess
    assert (found.mean, found.std) == ((0.5, 0.4, 0.3), (0.1, 0.2, 0.3))
    assert (found.interpolation, found.crop, found.scale) == ("bilinear", 0.875, 0.5)
    old = {"do_center_crop": True, "crop_size": 224, "size": 256, "resample": 1}
    found = _facts(tmp_path, VIT, old).preprocess
    assert (found.interpolation, found.crop, found.scale) == ("lanczos", 0.875, 1 / 255)
    raw = {"do_rescale": False, "do_normalize": False, "image_mean": [9, 9, 9]}
    found = _facts(tmp_path, VIT, raw).preprocess
    assert (found.mean, found.std, found.scale) == ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 1.0)
    grey = _facts(tmp_path, VIT, {"image_mean": [0.5], "image_std": [0.25]}).preprocess
    assert (grey.mean, grey.std) == ((0.5,) * 3, (0.25,) * 3)


@pytest.mark.parametrize(
    "content", [{"image_mean": 5}, {"resample": "cubic"}, {"image_std": [0.0, 1.0, 1.0]}]
)
def test_damaged_preprocessing(tmp_path: Path, content: Any) -> None:
    with pytest.raises(SourceError, match=r"preprocessor_config\.json"):
        _facts(tmp_path, VIT, content)
