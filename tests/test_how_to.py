"""Every command of ``docs/how-to`` is run, in an empty folder with what the page speaks of."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(p for p in (ROOT / "docs" / "how-to").glob("*.md") if p.name != "README.md")
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)

SMALLER = {
    "timm:deit_tiny_patch16_224": "timm:deit_tiny_patch16_224 --model-kwarg depth=2 "
    "--model-kwarg embed_dim=32 --model-kwarg num_heads=2",
    "swin_tiny_patch4_window7_224": "swin_micro_patch4_window4_64",
}
"""Models that a page names, as networks that a test can afford."""


def _photo(folder: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "photo.png")


def _digit_photos(folder: Path) -> None:
    from sklearn.datasets import load_digits

    (folder / "photos").mkdir()
    for k, image in enumerate(load_digits().images[:24]):
        Image.fromarray((image / 16 * 255).astype(np.uint8)).save(folder / "photos" / f"{k}.png")


def _checkpoint(folder: Path) -> None:
    import timm
    from safetensors.torch import save_file

    model = timm.create_model("deit_tiny_patch16_224", depth=2, embed_dim=32, num_heads=2)
    save_file(model.state_dict(), folder / "checkpoint.safetensors")
    _photo(folder)


def _foreign_file(folder: Path) -> None:
    import timm

    model = timm.create_model(
        "vit_tiny_patch16_224", depth=2, embed_dim=32, num_heads=2, img_size=96, num_classes=5
    ).eval()
    torch.nn.init.normal_(model.pos_embed, std=0.5)
    torch.onnx.export(
        model, (torch.zeros(1, 3, 96, 96),), folder / "model.onnx", dynamo=True, verbose=False
    )


def _clip(folder: Path) -> None:
    from transformers import CLIPConfig, CLIPModel

    small = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "projection_dim": 16,
    }  # fmt: skip
    config = CLIPConfig(
        text_config={**small, "vocab_size": 99, "max_position_embeddings": 20, "eos_token_id": 98},
        vision_config={**small, "image_size": 64, "patch_size": 16},
        projection_dim=16,
    )
    CLIPModel(config).save_pretrained(folder / "clip")


def _dinov2(folder: Path, dinov2_dir: Path) -> None:
    (folder / "dinov2-small").symlink_to(dinov2_dir)
    _photo(folder)


PREPARE: dict[str, Callable[..., None]] = {
    "ci-gates": lambda folder: None,
    "clip-towers": _clip,
    "dinov2-openvino": _dinov2,
    "foreign-onnx": _foreign_file,
    "int8-own-images": _digit_photos,
    "swin-dynamic": lambda folder: None,
    "timm-npu-buckets": _checkpoint,
}


def _run(page: Path, folder: Path) -> None:
    script = "\n".join(SHELL.findall(page.read_text(encoding="utf-8")))
    for name, smaller in SMALLER.items():
        script = script.replace(name, smaller)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=folder, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_every_page_is_run_and_listed() -> None:
    assert {p.stem for p in PAGES} == set(PREPARE)
    listed = (ROOT / "docs" / "how-to" / "README.md").read_text(encoding="utf-8")
    assert all(f"({p.name})" in listed for p in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_commands_of_a_page(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest, make_dinov2: ModuleType
) -> None:
    del make_dinov2
    if page.stem == "dinov2-openvino":
        _dinov2(tmp_path, request.getfixturevalue("dinov2_dir"))
    else:
        PREPARE[page.stem](tmp_path)
    _run(page, tmp_path)
    manifests = [p for p in tmp_path.rglob("*.manifest.json") if "vitpe-tmp" not in str(p)]
    assert manifests
    for path in manifests:
        assert json.loads(path.read_text())["verdict"] == "passed", path.name
