"""Channel pairs moved to the halves of a head: the same attention, other columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from exporters.passes.rotary_layout import HalfSplitRotary
from tests.exporters.passes.conftest import execute, graph

B, N, M, H = 2, 5, 2, 8
D = M * H
RNG = np.random.default_rng(5)


def block(*, interleaved: tuple[int, int] = (1, 1), own_angles: bool = False) -> ir.Model:
    """Query and key out of linear layers, turned, attended."""
    rotate = """
        {x}r = com.microsoft.RotaryEmbedding <num_heads = {heads}, interleaved = {pairs}>
            ({x}{apart}, rows, cos, sin)"""
    heads, apart = (1, "s") if own_angles else (M, "l")
    text = ""
    for x, pairs in zip("qk", interleaved, strict=True):
        text += f"""
        {x}p = MatMul(t, w{x})
        {x}l = Add({x}p, b{x})"""
        text += f"\n{x}s = Reshape({x}l, tokens)" if own_angles else ""
        text += rotate.format(x=x, heads=heads, pairs=pairs, apart=apart)
        text += f"\n{x}j = Reshape({x}r, whole)" if own_angles else ""
    end = "j" if own_angles else "r"
    rows = N * M if own_angles else N
    angle = RNG.standard_normal((rows, H // 2)).astype(np.float32)
    arrays = {f"w{x}": RNG.standard_normal((D, D)).astype(np.float32) for x in "qk"}
    arrays |= {f"b{x}": RNG.standard_normal(D).astype(np.float32) for x in "qk"}
    arrays |= {"cos": np.cos(angle), "sin": np.sin(angle)}
    arrays["rows"] = np.tile(np.arange(rows), (B, 1))
    if own_angles:
        arrays |= {"tokens": np.array([0, -1, H]), "whole": np.array([0, -1, D])}
    return graph(
        f"""
        block (float[{B}, {N}, {D}] t) => (float[{B}, {N}, {D}] y) {{
            {text}
            y = com.microsoft.MultiHeadAttention <num_heads = {M}> (q{end}, k{end}, t)
        }}""",
        **arrays,
    )


@pytest.mark.parametrize("own_angles", [False, True])
def test_the_same_attention_with_halves(own_angles: bool, run_pass: Any) -> None:
    model = block(own_angles=own_angles)
    tokens = RNG.standard_normal((B, N, D)).astype(np.float32)
    before = execute(model, t=tokens)["y"]
    assert run_pass(HalfSplitRotary, model).changed == 1
    turned = [n for n in model.graph if n.op_type == "RotaryEmbedding"]
    assert [n.attributes["interleaved"].as_int() for n in turned] == [0, 0]
    np.testing.assert_allclose(execute(model, t=tokens)["y"], before, atol=1e-5)


def test_a_key_that_pairs_otherwise_is_refused(run_pass: Any) -> None:
    outcome = run_pass(HalfSplitRotary, block(interleaved=(1, 0)))
    assert outcome.changed == 0
    assert "pair their channels differently" in outcome.refused[0].reason


def test_a_query_that_something_else_reads_is_refused(run_pass: Any) -> None:
    model = block()
    query = next(v for n in model.graph for v in n.outputs if v.name == "ql")
    model.graph.append(ir.node("Identity", [query]))
    outcome = run_pass(HalfSplitRotary, model)
    assert outcome.changed == 0
    assert "also read elsewhere" in outcome.refused[0].reason
