"""Agreement of int8 files with float32 on trained weights: digits, and DINOv2 on photographs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

import vitpe_deploy
from vitpe_deploy.images import load_image, prepare
from vitpe_deploy.manifest import read_manifest
from vitpe_deploy.runtimes import open_runtime

Array = npt.NDArray[Any]
Say = Callable[[str], None]

ENGINE_OF = {"onnx": "onnxruntime", "openvino": "openvino"}
CALIBRATING_DIGITS = 64
SIZE_PX = 224
CALIBRATING = ("astronaut.png", "coffee.png", "motorcycle_left.png", "hubble_deep_field.jpg")
JUDGING = ("chelsea.png", "rocket.jpg", "coins.png", "ihc.png", "brick.png")
"""Pictures that scikit-image ships; none calibrates and judges."""


def digits_rows(
    formats: Sequence[str], only: Sequence[str] | None, threads: int, say: Say
) -> list[dict[str, Any]]:
    """Every embedded model in int8, calibrated on training digits, on all test digits."""
    from digits_accuracy import NATIVE_PX, Variant, test_inputs, torch_logits

    from vitpe_deploy import digits
    from vitpe_deploy.digits import dataset

    rows = []
    test, train = dataset.load("test"), dataset.load("train")
    for model in only or digits.PRESETS:
        x = test_inputs(model, test.pixels, NATIVE_PX)
        right = torch_logits(Variant(model), {NATIVE_PX: x})[NATIVE_PX].argmax(-1)
        with tempfile.TemporaryDirectory(prefix="vitpe-int8-") as folder:
            data = Path(folder) / "train.npz"
            np.savez(
                data, pixel_values=test_inputs(model, train.pixels[:CALIBRATING_DIGITS], NATIVE_PX)
            )
            for form in formats:
                say(f"{model}: {form}")
                path, method = _exported(model, form, data, Path(folder), threads)
                given = np.concatenate([y["logits"] for y in _run(path, form, x[:, None], threads)])
                classes = given.argmax(-1)
                rows.append(
                    {
                        "model": model,
                        "runtime": ENGINE_OF[form],
                        "method": method,
                        "top1": float((classes == right).mean()),
                        "accuracy": float((classes == test.labels).mean()),
                        "torch_accuracy": float((right == test.labels).mean()),
                        "inputs": len(x),
                    }
                )
    return rows


def photograph_rows(formats: Sequence[str], threads: int, say: Say) -> list[dict[str, Any]]:
    """The trained DINOv2-small in int8, calibrated and judged on different photographs."""
    from make_dinov2 import build

    rows = []
    with tempfile.TemporaryDirectory(prefix="vitpe-int8-") as work:
        folder = Path(work)
        model = f"hf:{build(folder / 'dinov2-small')}"
        data = folder / "photographs"
        data.mkdir()
        for place, crop in enumerate(_crops(CALIBRATING, count=4, seed=0)):
            Image.fromarray(crop).save(data / f"{place:02}.png")
        size_wanted = {"outputs": ("cls", "tokens"), "output_dir": folder, "threads": threads}
        plain = vitpe_deploy.export(model, SIZE_PX, verify=False, **size_wanted)  # type: ignore[arg-type]
        preprocess = read_manifest(Path(plain.artifacts[0].path)).preprocessing()
        inputs = [
            prepare(picture, SIZE_PX, SIZE_PX, preprocess)[None]
            for picture in _crops(JUDGING, count=2, seed=1)
        ]
        right = _run(Path(plain.artifacts[0].path), "onnx", inputs, threads)
        for form in formats:
            say(f"DINOv2-small: {form}")
            path, method = _exported(
                model, form, data, folder, threads, size=SIZE_PX, outputs=("cls", "tokens")
            )
            given = _run(path, form, inputs, threads)
            cls = np.array(
                [_cosine(r["cls"], g["cls"]).min() for r, g in zip(right, given, strict=True)]
            )
            patches = np.concatenate(
                [
                    _cosine(_patches(r["tokens"]), _patches(g["tokens"])).ravel()
                    for r, g in zip(right, given, strict=True)
                ]
            )
            rows.append(
                {
                    "file": method,
                    "runtime": ENGINE_OF[form],
                    "cls_cosine": float(cls.min()),
                    "patch_cosine": float(patches.mean()),
                    "least_patch_cosine": float(patches.min()),
                    "inputs": len(inputs),
                }
            )
    return rows


def _exported(
    model: str,
    form: str,
    data: Path,
    folder: Path,
    threads: int,
    *,
    size: int | None = None,
    outputs: Sequence[str] = (),
) -> tuple[Path, str]:
    """The int8 file that an export chooses on this machine, and how it was made."""
    report = vitpe_deploy.export(
        model,
        size,
        formats=(form,),
        precision="int8",
        calibration=data,
        outputs=outputs,
        verify=False,
        output_dir=folder / form,
        threads=threads,
    )
    path = Path(report.artifacts[0].path)
    return path, read_manifest(path).method or "?"


def _run(
    path: Path, form: str, inputs: Sequence[Array] | Array, threads: int
) -> list[dict[str, Array]]:
    with open_runtime(ENGINE_OF[form], path, threads=threads) as runtime:
        name = runtime.inputs[0].name
        return [runtime.run({name: x}) for x in inputs]


def _crops(names: Sequence[str], *, count: int, seed: int) -> list[Array]:
    """Square crops of photographs, between 0.6 and 1 of the shorter side."""
    found = util.find_spec("skimage")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("error: scikit-image is not installed\nRun: pip install scikit-image")
    data = Path(found.submodule_search_locations[0]) / "data"
    generator = np.random.default_rng(seed)
    crops = []
    for name in names:
        picture = load_image(data / name)
        for _ in range(count):
            side = int(min(picture.shape[:2]) * generator.uniform(0.6, 1))
            y, x = (int(generator.integers(0, n - side + 1)) for n in picture.shape[:2])
            crops.append(np.ascontiguousarray(picture[y : y + side, x : x + side]))
    return crops


def _patches(tokens: Array) -> Array:
    """[B, 1 + N, D] without the class token."""
    return tokens[:, 1:]


def _cosine(one: Array, other: Array) -> Array:
    """Of the last axis, in float64."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    cosine: Array = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
    return cosine
