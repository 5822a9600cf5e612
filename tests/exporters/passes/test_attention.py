"""Attention: every spelling gives what torch gives, and reshapes fall away only where they may."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F

from exporters.passes.attention import SpellAttention
from tests.exporters.passes.conftest import execute, graph, operators
from vitpe_deploy.request import Target

B, N, M, H = 2, 5, 2, 4
D = M * H
RNG = np.random.default_rng(1)


def array(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def shaped(model: ir.Model, **shapes: tuple[int, ...]) -> ir.Model:
    """Shapes that inference cannot find behind the explicit node."""
    for node in model.graph:
        for value in node.outputs:
            if value.name in shapes:
                value.shape = ir.Shape(shapes[value.name])
                value.type = ir.TensorType(ir.DataType.FLOAT)
    return model


def packed(*, windows: bool = False) -> ir.Model:
    """Heads split off one packed projection; with ``windows`` the split also regroups tokens."""
    rows, tokens = (1, B * N) if windows else (B, N)
    text = f"""
    attention (float[{rows}, {tokens}, {3 * D}] x, float[1, {M}, {N}, {N}] bias)
        => (float[{rows}, {tokens}, {D}] y) {{
        split = Reshape(x, five)
        heads = Transpose <perm = [2, 0, 3, 1, 4]> (split)
        q = Gather <axis = 0> (heads, i0)
        k = Gather <axis = 0> (heads, i1)
        v = Gather <axis = 0> (heads, i2)
        attended = vitpe.Attention <scale : float = 0.5> (q, k, v, bias)
        turned = Transpose <perm = [0, 2, 1, 3]> (attended)
        y = Reshape(turned, three)
    }}"""
    model = graph(
        text,
        five=np.array([B, N, 3, M, H], dtype=np.int64),
        three=np.array([rows, tokens, D], dtype=np.int64),
        i0=np.array(0, dtype=np.int64),
        i1=np.array(1, dtype=np.int64),
        i2=np.array(2, dtype=np.int64),
    )
    return shaped(model, attended=(B, M, N, H), turned=(B, N, M, H), y=(rows, tokens, D))


def right(x: np.ndarray, bias: np.ndarray) -> np.ndarray:
    q, k, v = torch.from_numpy(x).reshape(B, N, 3, M, H).permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=torch.from_numpy(bias), scale=0.5)
    return y.transpose(1, 2).reshape(x.shape[0], x.shape[1], D).numpy()


@pytest.mark.parametrize("target", list(Target))
@pytest.mark.parametrize("windows", [False, True])
def test_every_spelling_is_right(target: Target, windows: bool, run_pass: Any) -> None:
    model = packed(windows=windows)
    outcome = run_pass(SpellAttention, model, target=target)
    assert outcome.changed == 1
    x, bias = array(*model.graph.inputs[0].shape), array(1, M, N, N)
    np.testing.assert_allclose(execute(model, x=x, bias=bias)["y"], right(x, bias), atol=1e-6)


def test_reshapes_of_a_packed_projection_fall_away(run_pass: Any) -> None:
    model = packed()
    run_pass(SpellAttention, model)
    left = [name for name in operators(model) if name not in ("Gather", "Transpose", "Reshape")]
    assert left == ["Split", "MultiHeadAttention"]
    assert model.graph.outputs[0].producer().op_type == "MultiHeadAttention"  # type: ignore[union-attr]


def test_regrouped_tokens_keep_their_reshape(run_pass: Any) -> None:
    """Windows: [1, B*N, D] is not [B, N, D], though both join to the same numbers."""
    model = packed(windows=True)
    run_pass(SpellAttention, model)
    assert model.graph.outputs[0].producer().op_type == "Reshape"  # type: ignore[union-attr]
    assert "Split" not in operators(model)


@pytest.mark.parametrize("target", list(Target))
def test_separate_and_free_operands(target: Target, run_pass: Any) -> None:
    """Query from its own projection, key rotated beforehand, value plain; result not joined."""
    text = f"""
    attention (float[{B}, {N}, {D}] x, float[{B}, {M}, {N}, {H}] k, float[{B}, {M}, {N}, {H}] v)
        => (float[{B}, {M}, {N}, {H}] y) {{
        split = Reshape(x, four)
        q = Transpose <perm = [0, 2, 1, 3]> (split)
        attended = vitpe.Attention <scale : float = 0.25> (q, k, v)
        y = Identity(attended)
    }}"""
    model = graph(text, four=np.array([B, N, M, H], dtype=np.int64))
    model = shaped(model, attended=(B, M, N, H), y=(B, M, N, H))
    run_pass(SpellAttention, model, target=target)
    x, k, v = array(B, N, D), array(B, M, N, H), array(B, M, N, H)
    q = torch.from_numpy(x).reshape(B, N, M, H).transpose(1, 2)
    expected = F.scaled_dot_product_attention(
        q, torch.from_numpy(k), torch.from_numpy(v), scale=0.25
    )
    np.testing.assert_allclose(execute(model, x=x, k=k, v=v)["y"], expected.numpy(), atol=1e-6)
