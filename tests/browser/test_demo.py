"""The page under ``docs/browser``: the same answers as Python, and nothing but its own files."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import vitpe_deploy

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]
ENGINE = "onnxruntime-web@1.30"
MODEL = "digits-rope-2d"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page with an fp32 and an int8 file of a trained model, and pictures to ask about."""
    folder = tmp_path_factory.mktemp("browser")
    npm = shutil.which("npm")
    assert npm is not None, "the page needs npm to get onnxruntime-web"
    subprocess.run(
        [npm, "install", "--silent", "--prefix", str(folder / "npm"), ENGINE], check=True
    )
    pictures = folder / "site" / "pictures"
    pictures.mkdir(parents=True)
    for k, pixels in enumerate(_pictures()):
        Image.fromarray(pixels).save(pictures / f"{k}.png")
    files = []
    for precision in ("fp32", "int8"):
        report = vitpe_deploy.export(
            MODEL, precision=precision, output_dir=folder / "out", verify=False,
            calibration=pictures if precision == "int8" else None,
        )  # fmt: skip
        files.append(report.artifacts[0].path)
    subprocess.run(
        [
            sys.executable, str(ROOT / "docs" / "browser" / "build.py"), str(folder / "site"),
            *files, "--engine", str(folder / "npm" / "node_modules" / "onnxruntime-web" / "dist"),
        ],
        check=True,
    )  # fmt: skip
    return folder / "site"


def _pictures() -> list[np.ndarray]:
    """Digits, and one wide photograph-like picture that has to be resized and cropped."""
    generator = np.random.default_rng(0)
    wide = generator.integers(0, 256, (50, 90, 3), dtype=np.uint8)
    digits = load_digits().images[:6] / 16 * 255
    return [wide, *(np.repeat(d.astype(np.uint8)[..., None], 3, axis=-1) for d in digits)]


def test_answers_are_those_of_python(site: Path, browser: Any, chromium_module: ModuleType) -> None:
    with chromium_module.serving(site) as address:
        browser.open(f"{address}/index.html")
        for name in json.loads((site / "models" / "index.json").read_text()):
            errors = []
            with vitpe_deploy.load(site / "models" / name) as model:
                for picture in sorted((site / "pictures").iterdir()):
                    wanted = model(picture)["logits"][0]
                    found = browser.evaluate(
                        f"""(async () => {{
                            const {{ answer }} = await import("./app.mjs");
                            const blob = await (await fetch("pictures/{picture.name}")).blob();
                            return (await answer("{name}", blob)).outputs.logits;
                        }})()"""
                    )
                    assert int(np.argmax(found)) == wanted.argmax(), (name, picture.name)
                    errors.append(np.abs(np.array(found) - wanted).max() / np.abs(wanted).max())
            # Where an int8 activation lies between two steps, 1e-7 decides which one it takes.
            assert np.median(errors) <= 1e-3, (name, errors)
            assert max(errors) <= (1e-3 if "fp32" in name else 1e-2), (name, errors)
        assert browser.errors == []
        assert all(request.startswith(address) for request in browser.requests)


def test_page_shows_the_best_class(site: Path, browser: Any, chromium_module: ModuleType) -> None:
    with chromium_module.serving(site) as address:
        browser.resize(360, 640, phone=True)
        browser.open(f"{address}/index.html")
        shown = browser.evaluate(
            """(async () => {
                const chooser = document.querySelector("#model");
                while (!chooser.options.length) await new Promise((r) => setTimeout(r, 50));
                const blob = await (await fetch("pictures/1.png")).blob();
                const files = new DataTransfer();
                files.items.add(new File([blob], "1.png"));
                const picture = document.querySelector("#picture");
                picture.files = files.files;
                picture.dispatchEvent(new Event("change"));
                const answer = document.querySelector("#answer");
                while (!answer.children.length) await new Promise((r) => setTimeout(r, 50));
                return [answer.children[0].textContent, document.body.scrollWidth];
            })()"""
        )
        assert shown[0].startswith("0 ")
        assert shown[1] <= 360
        assert browser.errors == []
