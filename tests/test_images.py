"""Pictures: values in closed form, Pillow's crops, damaged files."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitpe_deploy import images
from vitpe_deploy.errors import ArtifactError, UsageError
from vitpe_deploy.images import (
    Preprocess,
    list_images,
    load_image,
    noise,
    prepare,
    structured_image,
)

RAW = Preprocess(mean=(0, 0, 0), std=(1, 1, 1))
"""Pixels divided by 255 and nothing else."""


def _values(image: np.ndarray) -> np.ndarray:
    """What RAW makes of an untouched picture: [3, H, W]."""
    return (image.astype(np.float64) / 255).transpose(2, 0, 1)


# ------------------------------------------------------------------ structured_image


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (96, 96), (96, 160), (160, 96)])
def test_structured_shape_and_determinism(size: tuple[int, int]) -> None:
    first = structured_image(*size)
    assert first.shape == (*size, 3)
    assert first.dtype == np.uint8
    np.testing.assert_array_equal(first, structured_image(*size))


def test_structured_has_no_symmetry() -> None:
    image = structured_image(96, 96).astype(float)
    for other in (
        image[::-1],
        image[:, ::-1],
        image[::-1, ::-1],
        image.transpose(1, 0, 2),
        np.rot90(image),
        np.roll(image, 16, axis=0),
        np.roll(image, 16, axis=1),
        image[..., ::-1],
    ):
        assert np.abs(image - other).mean() > 15


def test_structured_quadrants_and_patches_differ() -> None:
    image = structured_image(96, 96).astype(float)
    quadrants = [image[y : y + 48, x : x + 48] for y in (0, 48) for x in (0, 48)]
    patches = [image[y : y + 16, x : x + 16] for y in range(0, 96, 16) for x in range(0, 96, 16)]
    for parts in (quadrants, patches):
        for i, a in enumerate(parts):
            assert a.std() > 3, i
            for b in parts[i + 1 :]:
                assert np.abs(a - b).mean() > 3


def test_structured_has_edges_and_spread_colours() -> None:
    image = structured_image(224, 224).astype(float)
    assert np.abs(np.diff(image, axis=0)).max() > 150
    assert np.abs(np.diff(image, axis=1)).max() > 150
    assert (image.std(axis=(0, 1)) > 30).all()
    assert (image.mean(axis=(0, 1)) > 60).all()
    assert (image.mean(axis=(0, 1)) < 200).all()


# ------------------------------------------------------------------ Preprocess


def test_preprocess_survives_json() -> None:
    rule = Preprocess(
        mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), interpolation="bilinear", crop=0.875
    )
    document = json.loads(json.dumps(rule.as_dict()))
    assert Preprocess.from_dict(document) == rule
    assert document["mean"] == [0.1, 0.2, 0.3]
    assert document["scale"] == 1 / 255
    assert set(document) == {
        "mean", "std", "layout", "color_order", "interpolation", "crop", "scale", "fit",
    }  # fmt: skip
    assert Preprocess.from_dict({}) == Preprocess()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"interpolation": "bicubik"}, "'bicubik' is not known"),
        ({"layout": "NHWC"}, "layout 'NHWC'"),
        ({"crop": 0}, "crop 0.0 is out of range"),
        ({"crop": 1.5}, "crop 1.5 is out of range"),
        ({"std": [1, 0, 1]}, "do not fit"),
        ({"mean": [0.5]}, "do not fit"),
        ({"mean": 0.5}, "mean 0.5 is not a number or three"),
        ({"scale": "much"}, "scale 'much' is not a number"),
        ({"croop": 1}, "no key 'croop'"),
    ],
)
def test_preprocess_refuses_what_it_does_not_know(
    document: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Preprocess.from_dict(document)


# ------------------------------------------------------------------ prepare


def test_same_size_is_only_normalised() -> None:
    image = structured_image(48, 80)
    rule = Preprocess(mean=(0.5, 0.25, 0.1), std=(0.2, 0.5, 2.0))
    got = prepare(image, 48, 80, rule)
    mean, std = (np.array(v)[:, None, None] for v in (rule.mean, rule.std))
    assert got.shape == (3, 48, 80)
    assert got.dtype == np.float32
    assert got.flags.c_contiguous
    np.testing.assert_allclose(got, (_values(image) - mean) / std, atol=1e-5)


def test_bgr_swaps_the_picture_and_not_the_statistics() -> None:
    image = structured_image(8, 8)
    rule = Preprocess(mean=(0.1, 0.2, 0.3), std=(1, 1, 1), color_order="BGR")
    want = _values(image)[::-1] - np.array([0.1, 0.2, 0.3])[:, None, None]
    np.testing.assert_allclose(prepare(image, 8, 8, rule), want, atol=1e-6)


@pytest.mark.parametrize(
    ("source", "target", "box"),
    [
        ((60, 100), (60, 60), (0, 20, 60, 80)),  # wide: the middle columns
        ((100, 60), (60, 60), (20, 0, 80, 60)),  # tall: the middle rows
        ((90, 60), (30, 60), (30, 0, 60, 60)),
    ],
)
def test_crop_is_the_centred_box_of_the_target_shape(
    source: tuple[int, int], target: tuple[int, int], box: tuple[int, int, int, int]
) -> None:
    image = structured_image(*source)
    top, left, bottom, right = box
    want = _values(image[top:bottom, left:right])
    np.testing.assert_allclose(prepare(image, *target, RAW), want, atol=1e-6)


def test_crop_fraction_keeps_the_middle() -> None:
    image = structured_image(80, 80)
    rule = Preprocess(mean=(0, 0, 0), std=(1, 1, 1), crop=0.5)
    np.testing.assert_allclose(
        prepare(image, 40, 40, rule), _values(image[20:60, 20:60]), atol=1e-6
    )


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_resize_uses_the_named_filter_antialiased(interpolation: str) -> None:
    image = structured_image(96, 96)
    rule = Preprocess(mean=(0, 0, 0), std=(1, 1, 1), interpolation=interpolation)
    flt = Image.Resampling[interpolation.upper()]
    want = np.asarray(Image.fromarray(image).resize((40, 40), flt))
    np.testing.assert_allclose(prepare(image, 40, 40, rule), _values(want), atol=1e-6)


def test_circle_stays_a_circle_in_any_target_shape() -> None:
    """The scale is the same on both axes, whatever the shapes of picture and target."""
    y, x = np.mgrid[:200, :300]
    disc = ((y - 99.5) ** 2 + (x - 149.5) ** 2 < 40**2)[..., None]
    image = np.repeat(disc * 255, 3, axis=2).astype(np.uint8)
    for height, width in ((96, 160), (160, 96), (128, 128)):
        mask = prepare(image, height, width, RAW)[0] > 0.5
        rows, columns = mask.any(axis=1).sum(), mask.any(axis=0).sum()
        assert abs(int(rows) - int(columns)) <= 1
        assert abs(rows - 80 * max(height / 200, width / 300)) <= 2


@pytest.mark.parametrize("source", [(1, 1), (1, 500), (500, 1), (33, 7)])
@pytest.mark.parametrize("target", [(1, 1), (14, 98), (98, 14)])
@pytest.mark.parametrize("crop", [0.1, 0.875, 1.0])
def test_odd_shapes_never_leave_the_picture(
    source: tuple[int, int], target: tuple[int, int], crop: float
) -> None:
    image = np.full((*source, 3), 200, dtype=np.uint8)
    got = prepare(image, *target, Preprocess(mean=(0, 0, 0), std=(1, 1, 1), crop=crop))
    np.testing.assert_allclose(got, np.full((3, *target), 200 / 255), atol=1e-6)


@pytest.mark.parametrize(
    "image", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3))]
)
def test_prepare_refuses_other_arrays(image: np.ndarray) -> None:
    with pytest.raises(UsageError, match=r"must be uint8 \[H, W, 3\]"):
        prepare(image, 4, 4, RAW)


# ------------------------------------------------------------------ load_image


def test_png_is_read_exactly(tmp_path: Path) -> None:
    image = structured_image(20, 30)
    Image.fromarray(image).save(tmp_path / "a.png")
    got = load_image(tmp_path / "a.png")
    np.testing.assert_array_equal(got, image)
    assert got.flags.writeable


@pytest.mark.parametrize(
    ("orientation", "upright"),
    [
        (1, lambda a: a),
        (2, lambda a: a[:, ::-1]),
        (3, lambda a: a[::-1, ::-1]),
        (4, lambda a: a[::-1]),
        (5, lambda a: a.transpose(1, 0, 2)),
        (6, lambda a: np.rot90(a, -1)),
        (7, lambda a: a[::-1, ::-1].transpose(1, 0, 2)),
        (8, lambda a: np.rot90(a)),
    ],
)
def test_exif_orientation_is_applied(
    tmp_path: Path, orientation: int, upright: Callable[[np.ndarray], np.ndarray]
) -> None:
    image = structured_image(20, 30)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(image).save(tmp_path / "a.png", exif=exif)
    np.testing.assert_array_equal(load_image(tmp_path / "a.png"), upright(image))


def test_other_pixel_kinds_become_rgb(tmp_path: Path) -> None:
    grey = structured_image(6, 7)[..., 0]
    three = np.repeat(grey[..., None], 3, axis=2)
    alpha = np.full((6, 7, 1), 3, dtype=np.uint8)
    cases = {
        "L": Image.fromarray(grey),
        "LA": Image.fromarray(np.concatenate([grey[..., None], alpha], axis=2)),
        "RGBA": Image.fromarray(np.concatenate([three, alpha], axis=2)),
        "I16": Image.fromarray(grey.astype(np.uint16) * 257),
        "I": Image.fromarray(grey.astype(np.int32) * 257),
    }
    for name, picture in cases.items():
        path = tmp_path / f"{name}.{'tif' if name == 'I' else 'png'}"
        picture.save(path)
        np.testing.assert_array_equal(load_image(path), three, err_msg=name)
    binary = Image.fromarray(grey > 100)
    binary.save(tmp_path / "1.png")
    np.testing.assert_array_equal(load_image(tmp_path / "1.png"), (three > 100) * np.uint8(255))


def test_palette_with_transparency_is_read_without_a_warning(tmp_path: Path) -> None:
    picture = Image.new("P", (2, 1))
    picture.putpalette([10, 20, 30, 200, 100, 50])
    picture.putpixel((1, 0), 1)
    picture.save(tmp_path / "p.png", transparency=bytes([0, 128]))
    got = load_image(tmp_path / "p.png")
    np.testing.assert_array_equal(got, [[[10, 20, 30], [200, 100, 50]]])


def test_pixels_without_a_range_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.ones((2, 2), dtype=np.float32)).save(tmp_path / "f.tif")
    Image.fromarray(np.full((2, 2), 70000, dtype=np.int32)).save(tmp_path / "i.tif")
    with pytest.raises(UsageError, match=r"f\.tif has floating-point"):
        load_image(tmp_path / "f.tif")
    with pytest.raises(UsageError, match=r"i\.tif has 32-bit"):
        load_image(tmp_path / "i.tif")


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif", "webp", "bmp", "gif"])
def test_damaged_pictures_are_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"cut.{suffix}"
    Image.fromarray(structured_image(64, 64)).save(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ArtifactError, match=rf"cut\.{suffix}"):
        load_image(path)
    path.write_bytes(b"hello")
    with pytest.raises(ArtifactError, match=rf"cut\.{suffix} is not a picture"):
        load_image(path)


def test_missing_picture_and_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.png does not exist"):
        load_image(tmp_path / "none.png")
    with pytest.raises(UsageError, match="is a folder"):
        load_image(tmp_path)


def test_bombs_are_refused_before_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "big.png"
    Image.new("L", (1, 1)).save(path)
    content = bytearray(path.read_bytes())
    # The header chunk: length, "IHDR", width, height, five more bytes, checksum.
    content[16:24] = struct.pack(">II", 12500, 12000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"big\.png claims 12000x12500 pixels"):
        load_image(path)
    content[16:24] = struct.pack(">II", 2**20, 2**20)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"big\.png claims more pixels than the limit"):
        load_image(path)
    Image.fromarray(structured_image(40, 30)).save(tmp_path / "small.png")
    monkeypatch.setattr(images, "MAX_PIXELS", 1199)
    with pytest.raises(UsageError, match=r"small\.png claims 40x30 pixels, the limit is 1199"):
        load_image(tmp_path / "small.png")


# ------------------------------------------------------------------ list_images, noise


def test_list_is_sorted_recursive_and_skips_the_rest(tmp_path: Path) -> None:
    for name in ("b.PNG", "a/z.jpg", "a/y.webp", "c.jpeg", "notes.txt", ".hidden/h.png", "._d.png"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / "folder.png").mkdir()
    names = [p.relative_to(tmp_path).as_posix() for p in list_images(tmp_path)]
    assert names == ["a/y.webp", "a/z.jpg", "b.PNG", "c.jpeg"]


def test_empty_missing_and_file_instead_of_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no picture"):
        list_images(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        list_images(tmp_path / "none")
    (tmp_path / "f.png").touch()
    with pytest.raises(UsageError, match="is a file"):
        list_images(tmp_path / "f.png")


def test_noise_is_pcg64_and_standard_normal() -> None:
    got = noise(7, 2, 64, 96)
    assert (got.shape, got.dtype) == ((2, 3, 64, 96), np.float32)
    want = np.random.Generator(np.random.PCG64(7)).standard_normal(got.size, dtype=np.float32)
    np.testing.assert_array_equal(got.ravel(), want)
    assert abs(float(got.mean())) < 0.02
    assert abs(float(got.std()) - 1) < 0.02
    assert np.abs(noise(8, 2, 64, 96) - got).mean() > 0.5
