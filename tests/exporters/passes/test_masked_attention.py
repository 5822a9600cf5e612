"""Soft masks without denormal weights: the same numbers, which masks are meant, what stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import vitpe_deploy
from exporters.passes.masked_attention import MaskedAttention
from tests.exporters.passes.conftest import execute, graph, operators
from vitpe_deploy.request import Target

B, N, M, D = 3, 6, 2, 8
RNG = np.random.default_rng(41)
TINY = np.finfo(np.float32).tiny


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def masks(depth: float) -> np.ndarray:
    """Tokens of the first half do not see those of the second."""
    half = np.arange(N) < N // 2
    apart = half[:, None] != half[None]
    return (numbers(1, M, N, N) + np.where(apart, depth, 0)).astype(np.float32)


def attention(depth: float, *, inputs: str = "q, k, v, , , b", extra: str = "") -> ir.Model:
    text = f"""
    net (float[{B}, {N}, {D}] q, float[{B}, {N}, {D}] k, float[{B}, {N}, {D}] v{extra})
        => (float[{B}, {N}, {D}] y) {{
        y = com.microsoft.MultiHeadAttention <num_heads = {M}, scale = 0.6> ({inputs})
    }}"""
    return graph(text, b=masks(depth))


def feeds(scale: float = 1.0) -> dict[str, np.ndarray]:
    return {name: numbers(B, N, D) * np.float32(scale) for name in "qkv"}


@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_same_numbers_however_large_the_logits(scale: float, run_pass: Any) -> None:
    """At 8 some masked logits are the largest of their row: the mask is a soft one."""
    model, given = attention(-100.0), feeds(scale)
    before = execute(model, **given)["y"]
    assert run_pass(MaskedAttention, model, opset=23).changed == 1
    assert "MultiHeadAttention" not in operators(model)
    np.testing.assert_allclose(execute(model, **given)["y"], before, rtol=1e-5, atol=1e-4)


def test_no_weight_is_denormal(run_pass: Any) -> None:
    model = attention(-100.0)
    run_pass(MaskedAttention, model, opset=23)
    softmax = next(n for n in model.graph if n.op_type == "Softmax")
    ((reader, _),) = softmax.outputs[0].uses()
    for name, value in (("raw", softmax.outputs[0]), ("lifted", reader.outputs[0])):
        value.name = name
        value.shape, value.type = ir.Shape([B, M, N, N]), ir.TensorType(ir.DataType.FLOAT)
        model.graph.outputs.append(value)
    found = execute(model, **feeds())
    assert (found["raw"] < TINY).any()  # zero where the kernel rounds denormal numbers away
    assert (found["lifted"] >= TINY).all()
    np.testing.assert_array_equal(found["lifted"][found["raw"] > 1e-20],
                                  found["raw"][found["raw"] > 1e-20])  # fmt: skip


@pytest.mark.parametrize("depth", [0.0, -10.0, -1000.0, -np.inf, np.finfo(np.float32).min])
def test_other_biases_keep_the_fused_node(depth: float, run_pass: Any) -> None:
    model = attention(depth)
    outcome = run_pass(MaskedAttention, model, opset=23)
    assert (outcome.changed, outcome.refused) == (0, [])
    assert operators(model) == ["MultiHeadAttention"]


@pytest.mark.parametrize(
    ("target", "opset"), [(Target.ORT, 22), (Target.OPENVINO, 23), (Target.PORTABLE, 23)]
)
def test_other_targets_and_opsets_keep_the_fused_node(
    target: Target, opset: int, run_pass: Any
) -> None:
    model = attention(-100.0)
    outcome = run_pass(MaskedAttention, model, target=target, opset=opset)
    assert (outcome.changed, outcome.refused) == (0, [])


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        (attention(-100.0), {"half": True}, "float16"),
        (
            attention(-100.0, inputs="q, k, v, , m, b", extra=f", int32[{B}, {N}] m"),
            {},
            "mask or a past",
        ),
    ],
)
def test_what_is_left_alone_says_why(
    model: ir.Model, options: dict[str, Any], reason: str, run_pass: Any
) -> None:
    outcome = run_pass(MaskedAttention, model, opset=23, **options)
    assert outcome.changed == 0
    (refusal,) = outcome.refused
    assert reason in refusal.reason


@pytest.mark.parametrize("name", ["timm:swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256"])
@pytest.mark.parametrize("dynamic", ["none", "size"])
def test_shifted_windows_of_networks(name: str, dynamic: str, tmp_path: Path) -> None:
    kwargs = {"embed_dim": 16, "depths": (2, 2), "num_heads": (2, 2)}
    side = 112 if "window7" in name else 128
    report = vitpe_deploy.export(
        name, side, model_kwargs=kwargs, dynamic=dynamic, opset=23, output_dir=tmp_path / "ours"
    )
    assert {p.name: p.changed for p in report.passes}["masked-attention"] == 2
    assert all(row.passed and (row.max_rel or 1) <= 1e-5 for row in report.parity)
    inspected = vitpe_deploy.inspect(report.artifacts[0].path)
    assert (inspected.fusing.attention, inspected.fusing.by_hand) == (2, 2)
    if dynamic == "none":
        portable = vitpe_deploy.export(
            report.artifacts[0].path, target="portable", opset=23, output_dir=tmp_path / "portable"
        )
        nodes = onnx.load(portable.artifacts[0].path).graph.node
        assert [n.op_type for n in nodes].count("Attention") == 4
        assert portable.verdict == "passed"
