"""A file that plain ``torch.onnx.export`` wrote of torchvision's ViT, at another size.

The oracle is torchvision's own network of that size, its table by ``interpolate_embeddings``. The
file does not say that rule (corners aligned), so the flags do.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
from torchvision.models import VisionTransformer
from torchvision.models.vision_transformer import interpolate_embeddings

import vitpe_deploy
from vitpe_deploy.runtimes import open_runtime


def build(size: int) -> VisionTransformer:
    torch.manual_seed(0)
    network = VisionTransformer(size, 16, 2, 2, 32, 64, num_classes=5).eval().requires_grad_(False)
    network.encoder.pos_embedding.normal_(0, 0.5)
    network.heads.head.weight.normal_(0, 0.5)
    return network


def test_another_size(tmp_path: Path) -> None:
    native, path = build(64), tmp_path / "foreign.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(native, (torch.zeros(1, 3, 64, 64),), str(path), dynamo=True)
    report = vitpe_deploy.export(
        str(path), 96, interpolation="bicubic", antialias=False, align_corners=True,
        output_dir=tmp_path / "out", threads=2,
    )  # fmt: skip
    assert (report.verdict, report.resample_rule) == ("passed", "bicubic align_corners")
    network = build(96)
    network.load_state_dict(interpolate_embeddings(96, 16, OrderedDict(native.state_dict())))
    pixels = np.random.default_rng(0).standard_normal((1, 3, 96, 96)).astype(np.float32)
    with torch.no_grad():
        right = network(torch.from_numpy(pixels)).numpy()
    for engine in ("onnxruntime", "openvino"):
        with open_runtime(engine, Path(report.artifacts[0].path)) as runtime:
            (given,) = runtime.run({runtime.inputs[0].name: pixels}).values()
        assert np.abs(given - right).max() <= 1e-5 * np.abs(right).max(), engine
