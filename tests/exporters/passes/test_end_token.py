"""A token at a computed index: results stay, the last block shrinks, others keep it whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from exporters.passes.end_token import EndToken
from tests.exporters.passes.conftest import execute, graph, operators

D, N, B, M = 8, 6, 3, 2
RNG = np.random.default_rng(2)
END = "last = GatherElements <axis = 1> (z, index)\n y = Squeeze(last, i1)"


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def tower(tail: str = END, outputs: str = f"float[{B}, {D}] y", rows: int = 1) -> ir.Model:
    """One block with a causal bias, then ``tail`` reads ``z`` [B, N, D] at ``end`` [B]."""
    text = f"""
    tower (float[{B}, {N}, {D}] x, int64[{B}] end) => ({outputs}) {{
        q = MatMul(x, wq)
        k = MatMul(x, wk)
        heads = com.microsoft.MultiHeadAttention <num_heads = {M}> (q, k, x, , , bias)
        proj = MatMul(heads, wo)
        mid = Add(x, proj)
        normed = LayerNormalization <axis = -1> (mid, scale)
        fc = MatMul(normed, w_fc)
        fc2 = MatMul(fc, w_fc2)
        z = Add(mid, fc2)
        place = Unsqueeze(end, i12)
        index = Expand(place, spread)
        {tail}
    }}"""
    causal = np.triu(np.full((N, N), -1e9, np.float32), 1) + numbers(rows, M, N, N)
    arrays = {
        "wq": numbers(D, D),
        "wk": numbers(D, D),
        "wo": numbers(D, D),
        "w_fc": numbers(D, 2 * D),
        "w_fc2": numbers(2 * D, D),
        "scale": numbers(D),
        "bias": causal,
        "i1": np.array([1], np.int64),
        "i12": np.array([1, 2], np.int64),
        "spread": np.array([1, 1, D], np.int64),
    }
    model = graph(text, **{name: array for name, array in arrays.items() if name in text})
    for node in model.graph:  # shape inference stops at the contrib node
        if node.domain == "com.microsoft":
            node.outputs[0].shape = ir.Shape([B, N, D])
            node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    return ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(model)))


def test_the_last_block_works_on_one_token(run_pass: Any) -> None:
    model = tower()
    feeds = {"x": numbers(B, N, D), "end": np.array([5, 0, 3], np.int64)}
    before = execute(model, **feeds)["y"]
    assert run_pass(EndToken, model).changed == 1
    after = execute(model, **feeds)["y"]
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)
    assert np.abs(before[0] - before[2]).max() > 0.1
    sizes = {
        node.outputs[0].name: node.outputs[0].shape
        for node in model.graph
        if node.op_type in ("MatMul", "MultiHeadAttention") and node.outputs[0].shape is not None
    }
    tokens = {name: shape[1] for name, shape in sizes.items()}
    assert tokens == {
        "q_end": 1,
        "k": N,
        "heads_end": 1,
        "proj_end": 1,
        "fc_end": 1,
        "fc2_end": 1,
    }


def test_tokens_that_another_output_reads_stay(run_pass: Any) -> None:
    model = tower(END + "\n o = Relu(z)", f"float[{B}, {D}] y, float[{B}, {N}, {D}] o")
    kinds = operators(model)
    outcome = run_pass(EndToken, model)
    assert (outcome.changed, operators(model)) == (0, kinds)
    assert "another output" in outcome.refused[0].reason


def test_a_bias_per_text_stays(run_pass: Any) -> None:
    model = tower(rows=B)
    outcome = run_pass(EndToken, model)
    assert outcome.changed == 0
    assert "differs by text" in outcome.refused[0].reason


@pytest.mark.parametrize(
    "tail",
    [
        "last = GatherElements <axis = 2> (z, index)\n y = Squeeze(last, i1)",
        "s = Slice(z, i1, i1, i1)\n y = ReduceMean <keepdims = 0> (z, i1)",
    ],
)
def test_other_readers_are_no_candidates(tail: str, run_pass: Any) -> None:
    model = tower(tail)
    outcome = run_pass(EndToken, model)
    assert (outcome.changed, outcome.refused) == (0, [])
