"""Windows in files of others: attention by hand is fused, tokens are moved once per block."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from timm.layers import set_fused_attn
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2

import vitpe_deploy

DEPTH = 2
SIZES = {"img_size": 32, "embed_dim": 16, "depths": (DEPTH,), "num_heads": (2,), "num_classes": 5}


@pytest.fixture(scope="module", params=[SwinTransformer, SwinTransformerV2])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("windows")
    set_fused_attn(False)
    try:
        net = request.param(window_size=4, **SIZES).eval().requires_grad_(False)
    finally:
        set_fused_attn(True)
    torch.manual_seed(0)
    for parameter in net.parameters():  # attention far from uniform, so that a wrong one shows
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.zeros(1, 3, 32, 32)
    file = str(folder / "theirs.onnx")
    torch.onnx.export(net, (x,), file, dynamo=True, opset_version=20, verbose=False)
    kinds = Counter(node.op_type for node in onnx.load(file, load_external_data=False).graph.node)
    assert kinds["Softmax"] == DEPTH
    assert kinds["Transpose"] >= 4 * DEPTH
    return vitpe_deploy.export(file, output_dir=folder / "ours")


def test_both_engines_agree_with_the_file(report: Any) -> None:
    assert {row.runtime for row in report.parity} == {"onnxruntime", "openvino"}
    for row in report.parity:
        assert row.passed
        assert row.max_rel is not None
        assert row.max_rel <= 1e-5


def test_every_block_is_fused_and_moved_once(report: Any) -> None:
    changed = {p.name: p.changed for p in report.passes}
    assert changed["hand-attention"] == DEPTH
    assert changed["token-order"] >= 2 * DEPTH
    nodes = onnx.load(Path(report.artifacts[0].path)).graph.node
    kinds = Counter(node.op_type for node in nodes)
    assert kinds["MultiHeadAttention"] == DEPTH
    assert kinds["Softmax"] == 0
    # plain and shifted windows: into each, and back to the grid
    assert 0 < kinds["Gather"] <= DEPTH + 1


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256"])
def test_traced_networks_move_tokens_once_per_block(name: str, tmp_path: Path) -> None:
    """Not through a file: the windows of this project's own trace are gathers."""
    kwargs = {"embed_dim": 16, "depths": (2, 2), "num_heads": (2, 2)}
    side = 56 if "224" in name else 64
    report = vitpe_deploy.export(name, side, model_kwargs=kwargs, output_dir=tmp_path)
    assert all(row.passed and (row.max_rel or 1) <= 1e-5 for row in report.parity)
    kinds = Counter(node.op_type for node in onnx.load(report.artifacts[0].path).graph.node)
    # two blocks and the merging of patches; the map of the last two is one window
    assert kinds["Gather"] == 3
    assert kinds["Transpose"] <= 1
