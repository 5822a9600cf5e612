"""Unread tokens: results stay, the last block shrinks, and nothing happens when all are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from exporters.passes.unread_tokens import KEPT_TOKENS, UnreadTokens
from tests.exporters.passes.conftest import execute, graph, operators

D, N = 8, 6
RNG = np.random.default_rng(0)


def weight(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def block(tail: str, outputs: str = "float[B, C] y") -> ir.Model:
    """One attention block over a packed projection, then ``tail`` reads ``z`` [B, N, D]."""
    text = f"""
    block (float[B, {N}, {D}] x) => ({outputs}) {{
        packed0 = MatMul(x, w_qkv)
        packed = Add(packed0, b_qkv)
        q, k, v = Split <axis = 2, num_outputs = 3> (packed)
        heads = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v)
        proj0 = MatMul(heads, w_proj)
        proj = Add(proj0, b_proj)
        mid = Add(x, proj)
        normed = LayerNormalization <axis = -1> (mid, scale)
        fc0 = MatMul(normed, w_fc)
        fc = Gelu(fc0)
        z = Add(mid, fc)
        {tail}
    }}"""
    model = graph(
        text,
        w_qkv=weight(D, 3 * D),
        b_qkv=weight(3 * D),
        w_proj=weight(D, D),
        b_proj=weight(D),
        scale=weight(D),
        w_fc=weight(D, D),
        zero=np.array(0, dtype=np.int64),
        one=np.array(1, dtype=np.int64),
        i0=np.array([0], dtype=np.int64),
        i1=np.array([1], dtype=np.int64),
        i3=np.array([3], dtype=np.int64),
        far=np.array([2**62], dtype=np.int64),
    )
    for node in model.graph:  # shape inference stops at the contrib node
        for value in node.outputs:
            if value.name in ("heads", "proj0", "proj", "mid", "normed", "fc0", "fc", "z"):
                value.shape = ir.Shape(["B", N, D])
                value.type = ir.TensorType(ir.DataType.FLOAT)
    return model


TAILS = {
    "first token": ("y = Gather <axis = 1> (z, zero)", (0, 1)),
    "second token": ("y = Gather <axis = 1> (z, one)", (1, 2)),
    "slice of two": ("y = Slice(z, i1, i3, i1)", (1, 3)),
    "two selects": (
        "a = Gather <axis = 1> (z, zero)\n b = Gather <axis = 1> (z, one)\n y = Add(a, b)",
        (0, 2),
    ),
}


@pytest.mark.parametrize("name", TAILS)
@pytest.mark.parametrize("batch", [1, 3])
def test_selected_tokens_keep_their_values(name: str, batch: int, run_pass: Any) -> None:
    tail, kept = TAILS[name]
    outputs = f"float[B, K, {D}] y" if name == "slice of two" else f"float[B, {D}] y"
    model = block(tail, outputs)
    x = weight(batch, N, D)
    before = execute(model, x=x)["y"]
    outcome = run_pass(UnreadTokens, model)
    after = execute(model, x=x)["y"]
    assert outcome.changed == 1
    assert outcome.facts[KEPT_TOKENS] == kept
    assert np.abs(before).max() > 1
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


def test_last_block_works_on_the_selected_token_alone(run_pass: Any) -> None:
    """The query is projected from one token, keys and values from all."""
    model = block("y = Gather <axis = 1> (z, zero)", f"float[B, {D}] y")
    run_pass(UnreadTokens, model)
    names = operators(model)
    assert names.count("MatMul") == 4  # q, kv, proj, fc: the packed one became two
    assert names.count("Slice") == 1  # x is cut once, for the query and for the residual
    shapes = {v.name: v.shape for n in model.graph for v in n.outputs if v.shape is not None}
    assert [shapes[n][1] for n in ("heads", "mid", "z")] == [1, 1, 1]
    weights = {n: v.shape for n, v in model.graph.initializers.items()}
    assert tuple(weights["w_qkv.q"]) == (D, D)
    assert tuple(weights["w_qkv.kv"]) == (D, 2 * D)
    assert "w_qkv" not in weights


@pytest.mark.parametrize(
    ("tail", "outputs"),
    [
        ("y = ReduceMean <keepdims = 0> (z, i1)", f"float[B, {D}] y"),
        ("y = Gather <axis = 1> (z, zero)", f"float[B, {D}] y, float[B, {N}, {D}] z"),
        ("y = Slice(z, i1, far, i1)", f"float[B, K, {D}] y"),
    ],
)
def test_nothing_happens_when_all_tokens_are_read(tail: str, outputs: str, run_pass: Any) -> None:
    model = block(tail, outputs)
    before = operators(model)
    outcome = run_pass(UnreadTokens, model)
    assert outcome.changed == 0
    assert operators(model) == before


def test_refusal_says_why(run_pass: Any) -> None:
    tail = "y = Gather <axis = 1> (z, zero)"
    model = block(tail, f"float[B, {D}] y, float[B, {N}, {D}] z")
    (refusal,) = run_pass(UnreadTokens, model).refused
    assert "reads all tokens" in refusal.reason


def test_bias_loses_the_rows_of_queries_that_are_gone(run_pass: Any) -> None:
    model = block("y = Gather <axis = 1> (z, one)", f"float[B, {D}] y")
    (node,) = [n for n in model.graph if n.op_type == "MultiHeadAttention"]
    bias = ir.Value(
        name="bias",
        shape=ir.Shape([1, 2, N, N]),
        type=ir.TensorType(ir.DataType.FLOAT),
        const_value=ir.tensor(weight(1, 2, N, N)),
    )
    model.graph.register_initializer(bias)
    biased = ir.node(
        "MultiHeadAttention",
        [*node.inputs, None, None, bias],
        {"num_heads": 2},
        domain="com.microsoft",
    )
    biased.outputs[0].shape = node.outputs[0].shape
    biased.outputs[0].type = node.outputs[0].type
    model.graph.insert_before(node, biased)
    ir.convenience.replace_all_uses_with(node.outputs[0], biased.outputs[0])
    model.graph.remove(node, safe=True)
    x = weight(2, N, D)
    before = execute(model, x=x)["y"]
    assert run_pass(UnreadTokens, model).changed == 1
    np.testing.assert_allclose(execute(model, x=x)["y"], before, rtol=1e-5, atol=1e-5)
