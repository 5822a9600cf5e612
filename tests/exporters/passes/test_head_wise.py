"""Queries and keys that are normalised head by head: no Transpose around fused attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from exporters.passes.attention import SpellAttention
from exporters.passes.base import remove_dead
from tests.exporters.passes.conftest import execute, graph, operators
from vitpe_deploy.request import Target

B, N, M, D = 2, 5, 3, 4
RNG = np.random.default_rng(8)
ARRAYS = {
    "five": np.array([B, N, 3, M, D], np.int64),
    "split": np.array([B, N, M, D], np.int64),
    "three": np.array([B, N, M * D], np.int64),
    "whole": np.array([B, M, N, D], np.int64),
    "last": np.array([-1], np.int64),
    "least": np.array(1e-12, np.float32),
    "per_head": RNG.random((M, 1, 1)).astype(np.float32) * 9,
    "per_token": RNG.random((1, 1, N, 1)).astype(np.float32) * 9,
    "gamma": RNG.standard_normal(D).astype(np.float32),
    "i0": np.array(0, np.int64),
    "i1": np.array(1, np.int64),
    "i2": np.array(2, np.int64),
}
PACKED = """
    p = Reshape(x, five)
    h = Transpose <perm = [2, 0, 3, 1, 4]> (p)
    q0 = Gather <axis = 0> (h, i0)
    k = Gather <axis = 0> (h, i1)
    v = Gather <axis = 0> (h, i2)"""
OWN = """
    q1 = Slice(x, i_0, i_d, i_2)
    q2 = Reshape(q1, split)
    q0 = Transpose <perm = [0, 2, 1, 3]> (q2)
    k1 = Slice(x, i_d, i_2d, i_2)
    k2 = Reshape(k1, split)
    k = Transpose <perm = [0, 2, 1, 3]> (k2)
    v1 = Slice(x, i_2d, i_3d, i_2)
    v2 = Reshape(v1, split)
    v = Transpose <perm = [0, 2, 1, 3]> (v2)"""
BOUNDS = {
    "i_0": np.array([0], np.int64),
    "i_d": np.array([M * D], np.int64),
    "i_2d": np.array([2 * M * D], np.int64),
    "i_3d": np.array([3 * M * D], np.int64),
    "i_2": np.array([2], np.int64),
}
COSINE = """
    norm = ReduceL2 <keepdims = 1> (q0, last)
    floor = Clip(norm, least)
    wide = Expand(floor, whole)
    unit = Div(q0, wide)
    q = Mul(unit, per_head)"""


def attention(before: str, query: str) -> ir.Model:
    text = f"""
    cosine (float[{B}, {N}, {3 * M * D}] x) => (float[{B}, {N}, {M * D}] y) {{
        {before}
        {query}
        a = vitpe.Attention <scale : float = 1.0> (q, k, v)
        t = Transpose <perm = [0, 2, 1, 3]> (a)
        y = Reshape(t, three)
    }}"""
    words = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    model = graph(text, **{n: v for n, v in {**ARRAYS, **BOUNDS}.items() if n in words})
    for node in model.graph:  # inference stops at the explicit node
        if node.op_type == "Attention":
            node.outputs[0].shape = ir.Shape([B, M, N, D])
            node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    return ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(model)))


def both(model: ir.Model, run_pass: Any) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Outputs of the plain and of the fused spelling, and the operators of the fused one."""
    x = RNG.standard_normal((B, N, 3 * M * D)).astype(np.float32)
    plain = model.clone()
    run_pass(SpellAttention, plain, target=Target.PORTABLE)
    run_pass(SpellAttention, model)
    remove_dead(model.graph)
    return execute(plain, x=x)["y"], execute(model, x=x)["y"], operators(model)


@pytest.mark.parametrize("before", [PACKED, OWN])
@pytest.mark.parametrize(
    "query", [COSINE, "q = LayerNormalization <axis = -1> (q0, gamma)", "q = Mul(q0, gamma)"]
)
def test_heads_stay_behind_tokens(before: str, query: str, run_pass: Any) -> None:
    plain, fused, kinds = both(attention(before, query), run_pass)
    np.testing.assert_allclose(fused, plain, rtol=1e-4, atol=1e-5)
    assert kinds.count("MultiHeadAttention") == 1
    assert {"Transpose", "Expand"} & set(kinds) == set()


@pytest.mark.parametrize(
    "query",
    [
        "q = Mul(q0, per_token)",
        "q = Softmax <axis = -1> (q0)",
        "r = ReduceL2 <keepdims = 1> (q0, i_2)\n q = Div(q0, r)",
    ],
)
def test_what_differs_by_token_is_moved(query: str, run_pass: Any) -> None:
    plain, fused, kinds = both(attention(PACKED, query), run_pass)
    np.testing.assert_allclose(fused, plain, rtol=1e-4, atol=1e-5)
    assert kinds.count("Transpose") == 2  # of the packed heads, and back before attention
