"""Right classes beside latency: the file that holds them, and the figure that comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitpe_deploy.bench.correct import agreement, classify
from vitpe_deploy.bench.labels import read_labels, save_pictures
from vitpe_deploy.bench.protocol import Judge
from vitpe_deploy.errors import ArtifactError, UsageError
from vitpe_deploy.inputs import ImageInput
from vitpe_deploy.preprocess import Preprocess
from vitpe_deploy.request import Resolution
from vitpe_deploy.runtimes.base import Array, Opened, Runtime, RuntimeInfo, TensorInfo

NAMES = ("ant", "bee", "7")


class Brightness(Runtime):
    """Three classes: dark, middle, bright, by the mean of [B, 1, 4, 4]."""

    batches: list[int]

    def _open(self) -> Opened:
        self.batches = []
        info = RuntimeInfo("brightness", "1", "CPU", "CPU", "f32", 1)
        given = TensorInfo("pixel_values", (None, 1, 4, 4), "float32")
        return Opened(info, (given,), (TensorInfo("logits", (None, 3), "float32"),))

    def _run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        x = inputs["pixel_values"]
        self.batches.append(len(x))
        mean = x.reshape(len(x), -1).mean(1)
        return {"logits": -np.abs(mean[:, None] - np.array([0.0, 0.5, 1.0]))}

    def _close(self) -> None:
        pass


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    (folder / "deep").mkdir(parents=True)
    for name, value in (("deep/a.png", 0), ("b.png", 128), ("c.png", 255), ("d.png", 250)):
        Image.fromarray(np.full((4, 4), value, np.uint8)).save(folder / name)
    return folder


def labels(folder: Path, text: str) -> Path:
    path = folder.parent / "labels.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_lines_are_pictures_and_classes(pictures: Path) -> None:
    file = labels(pictures, "file,label\ndeep/a.png,ant\nc.png,2\nb.png, bee\n")
    found = read_labels(file, pictures, NAMES)
    assert [p.relative_to(pictures).as_posix() for p in found.paths] == [
        "deep/a.png",
        "c.png",
        "b.png",
    ]
    assert found.classes == (0, 2, 1)
    assert found.top1([0, 2, 0]) == pytest.approx(2 / 3)


def test_name_of_a_class_goes_before_a_number(pictures: Path) -> None:
    assert read_labels(labels(pictures, "b.png,7\n"), pictures, NAMES).classes == (2,)
    assert read_labels(labels(pictures, "b.png,7\n"), pictures, ()).classes == (7,)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("b.png\n", "is not FILE,LABEL"),
        ("e.png,0\n", "'e.png', which is not in"),
        ("b.png,wasp\n", "'wasp' is not a class"),
        ("b.png,3\n", "'3' is not a class"),
        ("file,label\n", "names no picture"),
    ],
)
def test_mistakes_are_named(pictures: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_labels(labels(pictures, text), pictures, NAMES)


def test_missing_file(pictures: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_labels(pictures / "no.csv", pictures, NAMES)


def test_every_picture_is_classified_once(pictures: Path, tmp_path: Path) -> None:
    """Batches of 3 over 4 pictures: the last is filled up, and the fill is not counted."""
    text = "d.png,2\nb.png,1\nc.png,2\ndeep/a.png,0\n"
    found = read_labels(labels(pictures, text), pictures, NAMES)
    rule = Preprocess(mean=(0.0,) * 3, std=(1.0,) * 3)
    stored = save_pictures(
        tmp_path / "p.npy", found, Resolution(4, 4), layout=ImageInput(1), preprocess=rule
    )
    assert np.load(stored).shape == (4, 1, 4, 4)
    with Brightness() as runtime:
        classes = classify(runtime, stored, 3)
        assert runtime.batches == [3, 3]
    assert classes == [2, 1, 2, 0]
    assert found.top1(classes) == 1.0


def test_int8_is_judged_by_agreement_and_not_by_tolerance() -> None:
    """Outputs 1 % off fail a tolerance of 1e-4 and pass a cosine of 0.99, and the other way."""
    generator = np.random.default_rng(0)
    inputs = [generator.random((2, 1, 4, 4), np.float32) for _ in range(3)]
    with Brightness() as runtime:
        right = [runtime.run({"pixel_values": x}) for x in inputs]
        near = [{"logits": o["logits"] * 1.01} for o in right]
        far = [{"logits": -o["logits"]} for o in right]
        assert not agreement(runtime, inputs, near, Judge()).passed
        by_floor = agreement(runtime, inputs, near, Judge(floor=0.99))
        assert by_floor.passed
        assert (by_floor.criterion, by_floor.limit) == ("cosine", 0.99)
        assert not agreement(runtime, inputs, far, Judge(floor=0.99)).passed
        assert agreement(runtime, inputs, near, Judge(rtol=0.02)).limit == 0.02
