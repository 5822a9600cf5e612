"""A file with an attention bias: no file says how its library resamples such a table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from timm.models.beit import Beit

import vitpe_deploy
from vitpe_deploy.errors import SizeError

TINY = {
    "patch_size": 16, "embed_dim": 32, "depth": 1, "num_heads": 2, "num_classes": 5,
    "use_rel_pos_bias": True, "use_abs_pos_emb": False, "init_values": 0.5,
}  # fmt: skip


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = Beit(img_size=64, **TINY).eval().requires_grad_(False)
    model.blocks[0].attn.relative_position_bias_table.normal_(0, 2)
    for linear in (model.blocks[0].attn.qkv, model.blocks[0].attn.proj):
        linear.weight.normal_(0, 0.3)
    path = tmp_path_factory.mktemp("bias") / "beit.onnx"
    torch.onnx.export(model, (torch.zeros(1, 3, 64, 64),), path, dynamo=True, verbose=False)
    return path, model.state_dict()


def test_the_rule_has_to_be_named(
    exported: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    with pytest.raises(SizeError, match="libraries resample such tables differently"):
        vitpe_deploy.export(str(exported[0]), (64, 96), output_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_named_rule_is_kept(
    exported: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    path, weights = exported
    report = vitpe_deploy.export(
        str(path), (64, 96), interpolation="bilinear", antialias=False, output_dir=tmp_path
    )
    assert report.verdict == "passed"
    model = Beit(img_size=(64, 96), **TINY).eval()
    key = "blocks.0.attn.relative_position_bias_table"
    old = weights[key][:-3].reshape(1, 7, 7, 2).permute(0, 3, 1, 2)
    new = F.interpolate(old, (7, 11), mode="bilinear").permute(0, 2, 3, 1).reshape(-1, 2)
    kept = {k: v for k, v in weights.items() if "relative_position_index" not in k}
    model.load_state_dict({**kept, key: torch.cat([new, weights[key][-3:]])}, strict=False)
    pixels = np.random.default_rng(0).standard_normal((1, 3, 64, 96), dtype=np.float32)
    with torch.no_grad():
        wanted = model(torch.from_numpy(pixels)).numpy()
    with vitpe_deploy.load(report.artifacts[0].path) as loaded:
        (found,) = loaded(pixels).values()
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()
