"""The bias of a linear layer inside the exact GELU behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from exporters.passes.bias_gelu import FuseBiasGelu
from tests.exporters.passes.conftest import execute, graph, operators
from vitpe_deploy.request import Target

B, N, D, H = 2, 5, 6, 24
RNG = np.random.default_rng(11)


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def mlp(body: str, outputs: str = "", bias: tuple[int, ...] = (H,)) -> ir.Model:
    text = f"""
    mlp (float[{B}, {N}, {D}] x) => (float[{B}, {N}, {H}] y{outputs}) {{
        m = MatMul(x, w)
        {body}
    }}"""
    return graph(text, w=numbers(D, H), b=numbers(*bias))


@pytest.mark.parametrize("body", ["z = Add(m, b)\n y = Gelu(z)", "z = Add(b, m)\n y = Gelu(z)"])
def test_bias_and_gelu_are_one_node_with_the_same_numbers(body: str, run_pass: Any) -> None:
    model = mlp(body)
    x = numbers(B, N, D)
    before = execute(model, x=x)["y"]
    assert run_pass(FuseBiasGelu, model).changed == 1
    assert operators(model) == ["MatMul", "BiasGelu"]
    after = execute(model, x=x)["y"]
    assert np.abs(before).max() > 1
    np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "outputs", "bias", "options", "reason"),
    [
        ('z = Add(m, b)\n y = Gelu<approximate="tanh">(z)', "", (H,), {}, "tanh"),
        ("z = Add(m, b)\n y = Gelu(z)", f", float[{B}, {N}, {H}] z", (H,), {}, "also read"),
        ("z = Add(m, b)\n y = Gelu(z)\n o = Neg(z)", f", float[{B}, {N}, {H}] o", (H,), {}, "also"),
        ("z = Add(m, b)\n y = Gelu(z)", "", (N, H), {}, "no linear layer"),
        ("z = Neg(m)\n y = Gelu(z)", "", (H,), {}, "no linear layer"),
        ("y = Gelu(m)", "", (H,), {}, "no linear layer"),
        ("z = Add(m, b)\n y = Gelu(z)", "", (H,), {"half": True}, "float16"),
    ],
)
def test_what_is_left_alone_says_why(
    body: str,
    outputs: str,
    bias: tuple[int, ...],
    options: dict[str, Any],
    reason: str,
    run_pass: Any,
) -> None:
    model = mlp(body, outputs, bias)
    before = operators(model)
    outcome = run_pass(FuseBiasGelu, model, **options)
    assert (outcome.changed, operators(model)) == (0, before)
    (refusal,) = outcome.refused
    assert reason in refusal.reason


@pytest.mark.parametrize("target", [Target.OPENVINO, Target.PORTABLE])
def test_other_targets_keep_the_standard_operators(target: Target, run_pass: Any) -> None:
    model = mlp("z = Add(m, b)\n y = Gelu(z)")
    outcome = run_pass(FuseBiasGelu, model, target=target)
    assert (outcome.changed, outcome.refused) == (0, [])
    assert operators(model) == ["MatMul", "Add", "Gelu"]
