"""A file in, answers out: pictures, arrays, batches, wrong sizes, folders."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitpe_deploy
from vitpe_deploy import digits
from vitpe_deploy.errors import ArtifactError, SizeError, UsageError
from vitpe_deploy.request import ModelRequest, Resolution

TINY = {"depth": 2, "embed_dim": 32, "num_heads": 2, "num_classes": 7}
COUNT = 42
"""Digits that are classified; not a multiple of the batch."""


@pytest.fixture(scope="module")
def digit_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[int]]:
    """Test digits as grey PNG files of 8x8 pixels, and their labels."""
    from vitpe_deploy.digits import dataset

    folder = tmp_path_factory.mktemp("digits")
    part = dataset.load("test")
    paths = []
    for k, pixels in enumerate(part.pixels[:COUNT]):
        paths.append(folder / f"digit{k:02}.png")
        Image.fromarray(pixels).save(paths[-1])
    return paths, [int(label) for label in part.labels[:COUNT]]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained digits model in both formats, batch 4."""
    folder = tmp_path_factory.mktemp("classifier")
    report = vitpe_deploy.export(
        "digits-learned-1d", 32, batch=4, formats=["onnx", "openvino"], output_dir=folder
    )
    assert report.verdict == "passed"
    return folder


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for every batch and size."""
    folder = tmp_path_factory.mktemp("dynamic")
    vitpe_deploy.export(
        "vit_tiny_patch16_224", dynamic="all", model_kwargs={**TINY, "image_size": 96},
        output_dir=folder, verify=False,
    )  # fmt: skip
    return folder


def _reference(model: str, inputs: np.ndarray) -> np.ndarray:
    """PyTorch's logits."""
    from vitpe_deploy.sources import open_source

    loaded = open_source(ModelRequest(model)).load()
    with torch.no_grad():
        outputs = loaded.call(loaded.fresh(), torch.from_numpy(inputs), ("logits",))
    return outputs["logits"].numpy()


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_pictures_give_their_labels(
    classifier: Path, digit_files: tuple[list[Path], list[int]], runtime: str
) -> None:
    paths, labels = digit_files
    with vitpe_deploy.load(classifier, runtime=runtime) as model:
        assert model.info.runtime == runtime
        found = model.top(paths, 3)
        outputs = model(paths)
        inputs = model.prepare(paths)
    assert [len(row) for row in found] == [3] * COUNT
    right = sum(row[0].label == str(label) for row, label in zip(found, labels, strict=True))
    assert right >= 0.95 * COUNT
    from vitpe_deploy.digits import dataset

    trained_on = dataset.pictures(dataset.load("test").pixels[:COUNT], Resolution(32, 32))
    np.testing.assert_allclose(inputs, trained_on, atol=1e-6)
    expected = _reference("digits-learned-1d", inputs)
    np.testing.assert_allclose(outputs["logits"], expected, atol=1e-4 * np.abs(expected).max())
    assert [row[0].index for row in found] == expected.argmax(1).tolist()


def test_every_form_of_a_picture_is_the_same(
    classifier: Path, digit_files: tuple[list[Path], list[int]]
) -> None:
    path = digit_files[0][0]
    image = Image.open(path)
    array = np.asarray(image.convert("RGB"))
    with vitpe_deploy.load(classifier) as model:
        expected = model(str(path))["logits"]
        assert expected.shape == (1, 10)
        for form in (path, image, array, [array], array[None], model.prepare(path)):
            np.testing.assert_array_equal(model(form)["logits"], expected)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 9])
def test_batches_are_filled_up_and_cut(classifier: Path, count: int) -> None:
    values = np.random.default_rng(0).standard_normal((count, 1, 32, 32)).astype(np.float32)
    with vitpe_deploy.load(classifier) as model:
        found = model(values)["logits"]
    assert found.shape == (count, 10)
    expected = _reference("digits-learned-1d", values)
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


def test_wrong_size_names_both_and_is_resampled_when_asked(classifier: Path) -> None:
    values = np.random.default_rng(0).standard_normal((1, 1, 48, 32)).astype(np.float32)
    with vitpe_deploy.load(classifier) as model:
        with pytest.raises(SizeError, match="takes 32x32, got 48x32"):
            model(values)
        resized = model(values, resize=True)["logits"]
        np.testing.assert_array_equal(resized, model(model.prepare(values, resize=True))["logits"])
        with pytest.raises(SizeError, match="takes 32x32, asked for 48x48"):
            model(np.zeros((40, 40, 3), np.uint8), size=48)


def test_symbolic_sizes_take_any_that_fits(dynamic: Path) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (70, 90, 3), dtype=np.uint8)
    with vitpe_deploy.load(dynamic) as model:
        assert model.size is None
        assert model.prepare(picture).shape == (1, 3, 96, 96)  # native
        assert model.prepare(picture, size=(64, 128)).shape == (1, 3, 64, 128)
        assert model([picture] * 11, size=Resolution(64, 48))["logits"].shape == (11, 7)
        with pytest.raises(SizeError, match="height 70 is not a size of this file"):
            model(picture, size=(70, 96))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.zeros((1, 1, 32, 32), np.int64), "is int64, the model takes float32"),
        (np.zeros((3, 3), np.float32), "does not fit, pixel_values has 4 dimensions"),
        (np.zeros((1, 4, 32, 32), np.float32), r"has shape \[1, 4, 32, 32\], the model takes"),
        (np.zeros((0, 1, 32, 32), np.float32), "there is nothing to run"),
        ([], "cannot run on list of length 0"),
        (7, "cannot run on int"),
        ([None], "a picture cannot be NoneType"),
        (np.zeros((5, 5, 4), np.uint8), r"a picture cannot be uint8 \[5, 5, 4\]"),
    ],
)
def test_what_is_no_input_is_refused(classifier: Path, inputs: object, message: str) -> None:
    with vitpe_deploy.load(classifier) as model, pytest.raises(UsageError, match=message):
        model(inputs)


def test_folder_decides_by_device_and_runtime(classifier: Path, tmp_path: Path) -> None:
    with vitpe_deploy.load(classifier) as model:
        assert (model.path.suffix, model.info.runtime) == (".onnx", "onnxruntime")
    with vitpe_deploy.load(classifier, device="AUTO") as model:
        assert (model.path.suffix, model.info.runtime) == (".xml", "openvino")
    both = tmp_path / "both"
    shutil.copytree(classifier, both)
    one = next(both.glob("*.onnx"))
    for name in (one.name, f"{one.name}.manifest.json"):
        shutil.copy(both / name, both / f"second-{name}")
    with pytest.raises(UsageError, match="holds several exports"):
        vitpe_deploy.load(both)
    with pytest.raises(ArtifactError, match="holds no exported model"):
        vitpe_deploy.load(tmp_path)
    with pytest.raises(ArtifactError, match="does not exist"):
        vitpe_deploy.load(tmp_path / "never.onnx")


def test_files_without_logits_say_so(tmp_path: Path) -> None:
    vitpe_deploy.export(
        "vit_tiny_patch16_224", 96, model_kwargs=TINY, outputs=["cls"], output_dir=tmp_path,
        verify=False,
    )  # fmt: skip
    with (
        vitpe_deploy.load(tmp_path) as model,
        pytest.raises(UsageError, match="gives no logits but cls"),
    ):
        model.top(np.zeros((96, 96, 3), np.uint8))


def test_closed_models_do_not_run(classifier: Path) -> None:
    model = vitpe_deploy.load(classifier)
    model.close()
    model.close()
    with pytest.raises(UsageError, match="is not open"):
        model(np.zeros((32, 32, 3), np.uint8))


def test_labels_of_the_digits_are_their_names() -> None:
    assert tuple(str(k) for k in range(10)) == digits.LABELS
