"""One query of many tokens: the same numbers without projecting all keys and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from exporters.passes.few_queries import FewQueries
from tests.exporters.passes.conftest import execute, graph, operators

B, N, M, D, X = 2, 7, 2, 16, 12  # X: channels of the tokens that keys and values are made of
RNG = np.random.default_rng(4)
KEYS = "k0 = MatMul(x, wk)\n k = Add(k0, bk)"
VALUES = "v0 = MatMul(x, wv)\n v = Add(v0, bv)"


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def attention(
    keys: str = KEYS,
    values: str = VALUES,
    *,
    queries: int = 1,
    inputs: str = "(q, k, v)",
    tail: str = "",
    outputs: str = "",
    scale: str = "",
) -> ir.Model:
    text = f"""
    last (float[{B}, {queries}, {D}] q, float[{B}, {N}, {X}] x)
        => (float[{B}, T, {D}] y{outputs}) {{
        {keys}
        {values}
        y = com.microsoft.MultiHeadAttention <num_heads = {M}{scale}> {inputs}
        {tail}
    }}"""
    arrays = {
        "wk": numbers(X, D),
        "wv": numbers(X, D),
        "bk": numbers(D),
        "bv": numbers(D),
        "bias": numbers(1, M, queries, N),
        "one_bias": numbers(B, 1, queries, N),
    }
    words = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    return graph(text, **{name: array for name, array in arrays.items() if name in words})


def feeds(queries: int = 1) -> dict[str, np.ndarray]:
    return {"q": numbers(B, queries, D), "x": numbers(B, N, X)}


@pytest.mark.parametrize("queries", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"inputs": "(q, k, v, , , bias)"},
        {"inputs": "(q, k, v, , , one_bias)"},
        {"scale": ", scale = 0.7"},
        {"keys": "k = MatMul(x, wk)", "values": "v = MatMul(x, wv)"},
    ],
)
def test_the_same_without_the_projections(
    options: dict[str, str], queries: int, run_pass: Any
) -> None:
    model = attention(queries=queries, **options)
    arrays = feeds(queries)
    before = execute(model, **arrays)["y"]
    assert run_pass(FewQueries, model).changed == 1
    after = execute(model, **arrays)["y"]
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)
    assert before.std() > 0.1
    (fused,) = [n for n in model.graph if n.op_type == "MultiHeadAttention"]
    assert fused.attributes["num_heads"].as_int() == 1
    # nothing with all tokens is multiplied by a weight any more
    weights = {v.name: v.const_value for v in model.graph.initializers.values()}
    assert "wk" not in weights
    assert "wv" not in weights
    size = sum(t.nbytes for t in weights.values() if t is not None and len(t.shape) == 3)
    assert size == 4 * 2 * X * D


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"queries": 6}, "not few"),
        ({"keys": "k0 = MatMul(x, wk)\n k = Relu(k0)"}, "not made by a linear layer"),
        ({"values": "x2 = Relu(x)\n v = MatMul(x2, wv)"}, "different tokens"),
        ({"tail": "o = Relu(k)", "outputs": f", float[{B}, {N}, {D}] o"}, "read by others"),
    ],
)
def test_what_is_left_alone(options: dict[str, Any], reason: str, run_pass: Any) -> None:
    model = attention(**options)
    kinds = operators(model)
    outcome = run_pass(FewQueries, model)
    assert outcome.changed == 0
    assert reason in outcome.refused[0].reason
    assert operators(model) == kinds


def test_attention_among_all_tokens_is_no_candidate(run_pass: Any) -> None:
    model = attention(queries=N)
    outcome = run_pass(FewQueries, model)
    assert (outcome.changed, outcome.refused) == (0, [])
