"""Norms of maps on lists of tokens: the same numbers, and what stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from exporters.passes.flat_norm import FlatNorm
from tests.exporters.passes.conftest import execute, graph, operators
from vitpe_deploy.request import Target

B, H, W, C = 2, 4, 6, 16
RNG = np.random.default_rng(17)
MAP = f"float[{B}, {H}, {W}, {C}]"


def norm(body: str, size: str = MAP, outputs: str = "") -> ir.Model:
    arrays = {k: RNG.standard_normal(C).astype(np.float32) for k in "gb"}
    return graph(f"net ({size} x) => ({size} y{outputs}) {{ {body} }}", **arrays)


@pytest.mark.parametrize("axis", [-1, 3])
def test_same_numbers_over_a_list(axis: int, run_pass: Any) -> None:
    body = f"y0 = LayerNormalization <axis = {axis}, epsilon = 0.3> (x, g, b)\n y = Relu(y0)"
    model = norm(body)
    x = RNG.standard_normal((B, H, W, C)).astype(np.float32)
    before = execute(model, x=x)["y"]
    assert run_pass(FlatNorm, model, target=Target.OPENVINO).changed == 1
    assert operators(model) == ["Reshape", "LayerNormalization", "Reshape", "Relu"]
    np.testing.assert_allclose(execute(model, x=x)["y"], before, rtol=1e-6, atol=1e-6)


def test_output_of_the_graph_keeps_its_name_and_shape(run_pass: Any) -> None:
    model = norm("y = LayerNormalization <axis = -1> (x, g, b)")
    assert run_pass(FlatNorm, model, target=Target.OPENVINO).changed == 1
    x = RNG.standard_normal((B, H, W, C)).astype(np.float32)
    assert execute(model, x=x)["y"].shape == x.shape


@pytest.mark.parametrize(
    ("body", "size", "outputs", "reason"),
    [
        (
            "y = LayerNormalization <axis = -1> (x, g, b)",
            f"float[n, {H}, {W}, {C}]",
            "",
            "symbolic",
        ),
        ("y = LayerNormalization <axis = 2> (x, g, b)", MAP, "", "more than channels"),
        (
            "y, m = LayerNormalization <axis = -1> (x, g, b)",
            MAP,
            f", float[{B}, {H}, {W}, 1] m",
            "mean or deviation",
        ),
    ],
)
def test_what_is_left_alone_says_why(
    body: str, size: str, outputs: str, reason: str, run_pass: Any
) -> None:
    model = norm(body, size, outputs)
    outcome = run_pass(FlatNorm, model, target=Target.OPENVINO)
    assert (outcome.changed, operators(model)) == (0, ["LayerNormalization"])
    (refusal,) = outcome.refused
    assert reason in refusal.reason


def test_lists_and_other_targets_stay(run_pass: Any) -> None:
    body = "y = LayerNormalization <axis = -1> (x, g, b)"
    for model, target in (
        (norm(body, f"float[{B}, {H}, {C}]"), Target.OPENVINO),
        (norm(body), Target.ORT),
        (norm(body), Target.PORTABLE),
    ):
        outcome = run_pass(FlatNorm, model, target=target)
        assert (outcome.changed, outcome.refused) == (0, [])
