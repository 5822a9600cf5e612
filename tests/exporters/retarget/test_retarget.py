"""Files that plain ``torch.onnx.export`` wrote, changed to another size and compared with torch.

The oracle is the library's own model at the new size, its table resampled by
``torch.nn.functional.interpolate``; nothing of the graph's reading is shared with it.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import vitpe_deploy
from vitpe_deploy import api
from vitpe_deploy.cli_summary import verify_summary
from vitpe_deploy.errors import SizeError, SourceError, UnsupportedError, UsageError
from vitpe_deploy.retarget.analysis import find_positions
from vitpe_deploy.retarget.read import read_graph
from vitpe_deploy.runtimes import open_runtime
from vitpe_deploy.sources.onnx_graph import BY_RULE

TINY = {"embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 10, "patch_size": 16}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """A ViT at 96x96, batch 1, by torch's first exporter, and its weights."""
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    model = VisionTransformer(img_size=96, **TINY).eval().requires_grad_(False)
    model.pos_embed.normal_(0, 0.5)
    path = tmp_path_factory.mktemp("foreign") / "foreign.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (torch.zeros(1, 3, 96, 96),), str(path), dynamo=False, opset_version=17
        )
    return path, model.state_dict()


def expected(weights: dict[str, torch.Tensor], pixels: np.ndarray[Any, Any]) -> Any:
    """The library at the size of the pixels."""
    from timm.models.vision_transformer import VisionTransformer

    grid = (pixels.shape[2] // 16, pixels.shape[3] // 16)
    table = weights["pos_embed"]
    picture = table[:, 1:].reshape(1, 6, 6, 32).permute(0, 3, 1, 2)
    new = F.interpolate(picture, grid, mode="bicubic", antialias=True)
    rows = torch.cat([table[:, :1], new.flatten(2).transpose(1, 2)], dim=1)
    model = VisionTransformer(img_size=pixels.shape[2:], **TINY).eval()
    model.load_state_dict({**weights, "pos_embed": rows})
    with torch.no_grad():
        return model(torch.from_numpy(pixels)).numpy()


def largest_difference(path: Path, weights: dict[str, torch.Tensor], *shape: int) -> float:
    """Over both engines, relative to the largest value."""
    pixels = np.random.default_rng(0).standard_normal((shape[0], 3, *shape[1:])).astype(np.float32)
    right = expected(weights, pixels)
    worst = 0.0
    for engine in ("onnxruntime", "openvino"):
        with open_runtime(engine, path) as runtime:
            (given,) = runtime.run({runtime.inputs[0].name: pixels}).values()
        assert given.shape == right.shape
        worst = max(worst, float(np.abs(given - right).max() / np.abs(right).max()))
    return worst


def test_positions_are_found_without_names(exported: tuple[Path, Any]) -> None:
    (found,) = find_positions(read_graph(exported[0]))
    assert (found.kind, found.grid, found.prefix) == ("table", (6, 6), 1)


def test_another_static_size(exported: tuple[Path, Any], tmp_path: Path) -> None:
    report = vitpe_deploy.export(str(exported[0]), (144, 80), output_dir=tmp_path)
    assert report.verdict == "passed"
    assert report.resample_rule == "bicubic antialias"
    assert "PyTorch" in report.reference
    assert largest_difference(Path(report.artifacts[0].path), exported[1], 1, 144, 80) < 1e-5


def test_verification_names_the_file_as_its_reference(
    exported: tuple[Path, Any], tmp_path: Path
) -> None:
    """No PyTorch model takes part: neither the report nor its summary may say so."""
    made = vitpe_deploy.export(str(exported[0]), (96, 64), verify=False, output_dir=tmp_path)
    path = Path(made.artifacts[0].path)
    report = vitpe_deploy.verify(path, runtimes=["onnxruntime"])
    assert (report.verdict, report.reference) == ("passed", BY_RULE)
    assert report.stored_reference is None
    assert f"against: the {BY_RULE} (" in verify_summary(report, bundle=False)
    packed = api.bundle(path)
    report = vitpe_deploy.verify(packed, runtimes=["onnxruntime"])
    assert (report.reference, report.stored_reference) == ("stored", BY_RULE)
    assert f"against: stored outputs of the {BY_RULE} (" in verify_summary(report, bundle=True)


def test_dynamic_in_everything(exported: tuple[Path, Any], tmp_path: Path) -> None:
    report = vitpe_deploy.export(str(exported[0]), dynamic="all", output_dir=tmp_path)
    assert report.verdict == "passed"
    path = Path(report.artifacts[0].path)
    for shape in ((1, 96, 96), (3, 64, 160), (2, 176, 48)):
        assert largest_difference(path, exported[1], *shape) < 1e-5


def test_refusals(exported: tuple[Path, Any], tmp_path: Path) -> None:
    with pytest.raises(SizeError, match="patch size 16"):
        vitpe_deploy.export(str(exported[0]), 100, output_dir=tmp_path)
    with pytest.raises(UsageError, match="--pe contradicts"):
        vitpe_deploy.export(str(exported[0]), 64, encoding="rope-2d", output_dir=tmp_path)
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    with pytest.raises(SourceError):
        vitpe_deploy.export(str(broken), 64, output_dir=tmp_path)


def test_a_weight_over_tokens_is_refused(tmp_path: Path) -> None:
    """A mixer's weights fit one number of tokens; the node is named."""

    class Mixer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = torch.nn.Conv2d(3, 8, 16, 16)
            self.mix = torch.nn.Linear(36, 36)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.mix(self.patch(x).flatten(2))

    path = tmp_path / "mixer.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Mixer().eval(), (torch.zeros(1, 3, 96, 96),), str(path), dynamo=False, opset_version=17
        )
    with pytest.raises(UnsupportedError, match="MatMul"):
        find_positions(read_graph(path))
