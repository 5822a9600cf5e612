"""Preprocessing equals the libraries' own: timm's evaluation transform, torchvision's presets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.needs import older
from vitpe_deploy.errors import UsageError
from vitpe_deploy.images import load_image, prepare, resize_values
from vitpe_deploy.preprocess import Preprocess

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def _pictures(folder: Path) -> list[Path]:
    """Photographs, and what is odd about pictures: narrow, tall, smaller than the input."""
    generator = np.random.default_rng(0)
    odd = []
    for height, width in ((61, 200), (203, 71), (40, 33)):
        path = folder.parent / f"odd-{height}x{width}.png"
        Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path)
        odd.append(path)
    return [*sorted(folder.iterdir())[:2], *odd]


@pytest.mark.parametrize("size", [(96, 96), (96, 160), (160, 64)])
@pytest.mark.parametrize(("crop", "mode"), [(0.875, "center"), (0.9, "squash"), (1.0, "center")])
@pytest.mark.parametrize("kernel", ["bicubic", "bilinear"])
def test_equals_timms_transform(
    photographs: Path, size: tuple[int, int], crop: float, mode: str, kernel: str
) -> None:
    from timm.data import create_transform

    if older("timm", "1.0.31") and size[0] != size[1] and (kernel, mode) == ("bicubic", "center"):
        pytest.skip("timm before 1.0.31 resizes for sizes that are not square bilinearly")
    theirs = create_transform(
        input_size=(3, *size), interpolation=kernel, mean=MEAN, std=STD, crop_pct=crop,
        crop_mode=mode,
    )  # fmt: skip
    rule = Preprocess(
        mean=MEAN,
        std=STD,
        interpolation=kernel,
        crop=crop,
        fit="squash" if mode == "squash" else "center-crop",
    )
    for path in _pictures(photographs):
        expected = theirs(Image.open(path).convert("RGB")).numpy()
        np.testing.assert_allclose(prepare(load_image(path), *size, rule), expected, atol=1e-5)


def test_equals_torchvisions_preset(photographs: Path) -> None:
    from torchvision.transforms._presets import ImageClassification
    from torchvision.transforms.functional import InterpolationMode

    theirs = ImageClassification(
        crop_size=224, resize_size=256, interpolation=InterpolationMode.BICUBIC
    )
    rule = Preprocess(crop=224 / 256, fit="center-crop")
    for path in _pictures(photographs):
        expected = theirs(Image.open(path).convert("RGB")).numpy()
        np.testing.assert_allclose(prepare(load_image(path), 224, 224, rule), expected, atol=1e-5)


def test_fits_differ_on_a_picture_of_another_shape() -> None:
    image = np.random.default_rng(0).integers(0, 256, (60, 100, 3), dtype=np.uint8)
    made = [
        prepare(image, 32, 32, Preprocess(fit=fit, crop=0.8))
        for fit in ("box", "center-crop", "squash")
    ]
    for k, one in enumerate(made):
        for other in made[k + 1 :]:
            assert np.abs(one - other).mean() > 0.05


def test_unknown_fit_is_refused_with_the_closest() -> None:
    with pytest.raises(UsageError, match="fit 'centre-crop' is not known") as caught:
        Preprocess(fit="centre-crop")
    assert "Did you mean 'center-crop'?" in caught.value.hint


def test_manifest_form_keeps_the_fit() -> None:
    rule = Preprocess(fit="squash", crop=0.9)
    assert Preprocess.from_dict(rule.as_dict()) == rule
    assert Preprocess.from_dict({"crop": 0.9}).fit == "box"  # files from before there was a choice


def test_values_are_resampled_channel_by_channel() -> None:
    values = np.random.default_rng(0).standard_normal((2, 3, 10, 12)).astype(np.float32)
    resized = resize_values(values, 20, 6, "bilinear")
    assert resized.shape == (2, 3, 20, 6)
    plane = Image.fromarray(values[1, 2]).resize((6, 20), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(resized[1, 2], np.asarray(plane))
