"""Folds around linear layers: LayerScale, separate projections, the mean before the last layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from exporters.passes.layer_scale import FoldLayerScale
from exporters.passes.pooled_mean import PooledMean
from exporters.passes.separate_projections import SeparateProjections
from tests.exporters.passes.conftest import execute, graph, operators

B, N, D = 2, 5, 6
RNG = np.random.default_rng(5)


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def agrees(model: ir.Model, run: Any, kind: Any, **feeds: np.ndarray) -> Any:
    """Run the pass and compare all outputs on random inputs. Gives the outcome."""
    before = execute(model, **feeds)
    outcome = run(kind, model)
    after = execute(model, **feeds)
    for name, array in before.items():
        assert np.abs(array).max() > 0.1
        np.testing.assert_allclose(after[name], array, rtol=1e-5, atol=1e-5)
    return outcome


def scaled(body: str, outputs: str = "", **arrays: np.ndarray) -> ir.Model:
    text = f"""
    layer (float[{B}, {N}, {D}] x) => (float[{B}, {N}, D2] y{outputs}) {{
        m = MatMul(x, w)
        {body}
    }}"""
    return graph(text, w=numbers(D, D), **arrays)


@pytest.mark.parametrize("gamma", [numbers(D), numbers(1, 1, D), np.array(3, np.float32)])
@pytest.mark.parametrize("body", ["z = Add(m, b)\n y = Mul(z, g)", "z = Add(b, m)\n y = Mul(g, z)"])
def test_a_factor_goes_into_weight_and_bias(body: str, gamma: np.ndarray, run_pass: Any) -> None:
    model = scaled(body, b=numbers(D), g=gamma)
    outcome = agrees(model, run_pass, FoldLayerScale, x=numbers(B, N, D))
    assert outcome.changed == 1
    assert operators(model) == ["MatMul", "Add"]
    assert set(model.graph.initializers) == {"w.scaled", "w.scaled.bias"}


def test_a_factor_without_bias(run_pass: Any) -> None:
    model = scaled("y = Mul(m, g)", g=numbers(D))
    assert agrees(model, run_pass, FoldLayerScale, x=numbers(B, N, D)).changed == 1
    assert operators(model) == ["MatMul"]


def test_values_and_weights_that_others_read_are_not_scaled(run_pass: Any) -> None:
    read = scaled("y = Mul(m, g)\n o = Relu(m)", f", float[{B}, {N}, {D}] o", g=numbers(D))
    outcome = agrees(read, run_pass, FoldLayerScale, x=numbers(B, N, D))
    assert (outcome.changed, "unscaled" in outcome.refused[0].reason) == (0, True)
    shared = scaled("y0 = Mul(m, g)\n y = MatMul(y0, w)", g=numbers(D))
    outcome = agrees(shared, run_pass, FoldLayerScale, x=numbers(B, N, D))
    assert (outcome.changed, "shared" in outcome.refused[0].reason) == (0, True)


def test_a_factor_per_token_stays(run_pass: Any) -> None:
    model = scaled("y = Mul(m, g)", g=numbers(N, 1))
    assert agrees(model, run_pass, FoldLayerScale, x=numbers(B, N, D)).changed == 0


def packed(
    tail: str = "", outputs: str = "", *, first: str = "p0", bias: str = "p = Add(p0, b)"
) -> ir.Model:
    text = f"""
    layer (float[{B}, {N}, {D}] x) => (float[{B}, {N}, {D}] y{outputs}) {{
        {first} = MatMul(x, w)
        {bias}
        q, k, v = Split <axis = 2, num_outputs = 3> (p)
        y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v)
        {tail}
    }}"""
    return graph(text, w=numbers(D, 3 * D), **({"b": numbers(3 * D)} if bias else {}))


def test_packed_projection_becomes_three(run_pass: Any) -> None:
    model = packed()
    assert agrees(model, run_pass, SeparateProjections, x=numbers(B, N, D)).changed == 1
    assert operators(model) == ["MatMul", "Add"] * 3 + ["MultiHeadAttention"]
    size = sum(v.const_value.nbytes for v in model.graph.initializers.values())  # type: ignore[union-attr]
    assert size == 4 * (D * 3 * D + 3 * D)


def test_packed_projection_without_bias(run_pass: Any) -> None:
    model = packed(first="p", bias="")
    assert agrees(model, run_pass, SeparateProjections, x=numbers(B, N, D)).changed == 1
    assert operators(model) == ["MatMul"] * 3 + ["MultiHeadAttention"]


def test_packed_projection_that_others_read_stays(run_pass: Any) -> None:
    model = packed("o = Relu(p)", f", float[{B}, {N}, {3 * D}] o")
    outcome = agrees(model, run_pass, SeparateProjections, x=numbers(B, N, D))
    assert outcome.changed == 0
    assert "Relu" in outcome.refused[0].reason


@pytest.mark.parametrize("dims", [3, 4])
def test_a_gate_is_projected_apart_from_what_it_gates(dims: int, run_pass: Any) -> None:
    size = ", ".join(map(str, (B, N, D)[:2] if dims == 3 else (B, 2, N)))
    text = f"""
    swiglu (float[{size}, {D}] x) => (float[{size}, {2 * D}] y) {{
        p0 = MatMul(x, w)
        p = Add(p0, b)
        gate, up = Split <axis = {dims - 1}, num_outputs = 2> (p)
        s = Sigmoid(gate)
        silu = Mul(gate, s)
        y = Mul(silu, up)
    }}"""
    model = graph(text, w=numbers(D, 4 * D), b=numbers(4 * D))
    x = numbers(*((B, N, D) if dims == 3 else (B, 2, N, D)))
    assert agrees(model, run_pass, SeparateProjections, x=x).changed == 1
    assert operators(model).count("MatMul") == 2
    assert "Split" not in operators(model)


def test_halves_of_something_that_no_layer_makes_stay(run_pass: Any) -> None:
    text = f"""
    halves (float[{B}, {N}, {D}] x) => (float[{B}, {N}, {D // 2}] y) {{
        r = Relu(x)
        a, c = Split <axis = 2, num_outputs = 2> (r)
        y = Mul(a, c)
    }}"""
    outcome = agrees(graph(text), run_pass, SeparateProjections, x=numbers(B, N, D))
    assert (outcome.changed, outcome.refused) == (0, [])


def pooled(tail: str, last: str = "", outputs: str = f"float[{B}, K] y") -> ir.Model:
    text = f"""
    head (float[{B}, {N}, {D}] x, float[{B}, {N}, {D}] h) => ({outputs}) {{
        m = MatMul(h, w)
        f = Add(m, b)
        z = Add(x, f)
        {last}
        {tail}
    }}"""
    arrays = {"i1": np.array([1], np.int64), "far": np.array([2**62], np.int64)}
    used = {name: array for name, array in arrays.items() if name in text}
    return graph(text, w=numbers(D, D), b=numbers(D), **used)


MEAN = "y = ReduceMean <keepdims = 0> (z, i1)"
CUT = "c = Slice(z, i1, far, i1)\n y = ReduceMean <keepdims = 0> (c, i1)"


@pytest.mark.parametrize("tail", [MEAN, CUT, MEAN.replace("= 0", "= 1")])
def test_the_mean_goes_before_the_last_layer(tail: str, run_pass: Any) -> None:
    kept = f"float[{B}, J, K] y" if "= 1>" in tail else f"float[{B}, K] y"
    model = pooled(tail, outputs=kept)
    feeds = {"x": numbers(B, N, D), "h": numbers(B, N, D)}
    assert agrees(model, run_pass, PooledMean, **feeds).changed == 1
    names = operators(model)
    assert names.count("ReduceMean") == 2
    assert names.index("ReduceMean") < names.index("MatMul")


@pytest.mark.parametrize(
    ("tail", "last", "outputs", "reason"),
    [
        (MEAN.replace("z,", "n,"), "n = Relu(z)", f"float[{B}, K] y", "Relu stands before"),
        (MEAN, "o = Relu(z)", f"float[{B}, K] y, float[{B}, {N}, {D}] o", "reads all tokens"),
        (MEAN, "o = Relu(f)", f"float[{B}, K] y, float[{B}, {N}, {D}] o", "it alone reads"),
    ],
)
def test_the_mean_stays_behind(
    tail: str, last: str, outputs: str, reason: str, run_pass: Any
) -> None:
    model = pooled(tail, last, outputs)
    feeds = {"x": numbers(B, N, D), "h": numbers(B, N, D)}
    outcome = agrees(model, run_pass, PooledMean, **feeds)
    assert outcome.changed == 0
    assert reason in outcome.refused[0].reason


def test_the_mean_over_channels_is_no_pooling(run_pass: Any) -> None:
    model = pooled("y = ReduceMean <keepdims = 0> (z, far)".replace("far", "i2"))
    axes = ir.Value(name="i2", const_value=ir.tensor(np.array([2], np.int64), name="i2"))
    (mean,) = [n for n in model.graph if n.op_type == "ReduceMean"]
    model.graph.register_initializer(axes)
    mean.replace_input_with(1, axes)
    assert run_pass(PooledMean, model).changed == 0
