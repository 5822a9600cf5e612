"""Division by a length as an RMS norm: the same numbers, down to nothing at all, and what stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from exporters.passes.unit_norm import UnitNorm
from tests.exporters.passes.conftest import execute, graph, operators
from vitpe_deploy.request import Target

B, N, M, D = 2, 5, 3, 8
RNG = np.random.default_rng(23)

LENGTH = """
    norm = ReduceL2 <keepdims = 1> (x, last)
    length = Clip(norm, eps)
    unit = Div(x, length)
"""


def heads(body: str, result: str = f"float[{B}, {N}, {M}, {D}] y", **arrays: Any) -> ir.Model:
    given = {"last": np.array([-1], np.int64), "eps": np.array(1e-12, np.float32), **arrays}
    used = {k: v for k, v in given.items() if f" {k})" in body or f" {k}," in body}
    return graph(f"cosine (float[{B}, {N}, {M}, {D}] x) => ({result}) {{ {body} }}", **used)


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("axis", [-1, 3])
@pytest.mark.parametrize("limit", ["Clip(norm, eps)", "Max(norm, eps)"])
@pytest.mark.parametrize("size", [1.0, 1e-6, 1e6])
def test_heads_of_unit_length(axis: int, limit: str, size: float, run_pass: Any) -> None:
    body = LENGTH.replace("Clip(norm, eps)", limit) + "y = Relu(unit)"
    model = heads(body, last=np.array([axis], np.int64))
    x = numbers(B, N, M, D) * np.float32(size)
    before = execute(model, x=x)["y"]
    assert run_pass(UnitNorm, model, target=Target.OPENVINO).changed == 1
    assert "ReduceL2" not in operators(model)
    after = execute(model, x=x)["y"]
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
    assert np.abs(after).max() > 0.5


def test_a_head_of_zeros_stays_one(run_pass: Any) -> None:
    model = heads(LENGTH + "y = Neg(unit)")
    assert run_pass(UnitNorm, model, target=Target.OPENVINO).changed == 1
    x = numbers(B, N, M, D)
    x[0, 1, 2] = 0
    after = execute(model, x=x)["y"]
    assert np.isfinite(after).all()
    assert not after[0, 1, 2].any()


@pytest.mark.parametrize("shape", [(1, 1, M, 1), (M, 1), (M, D), (1,), ()])
def test_a_factor_goes_behind_the_joined_heads(shape: tuple[int, ...], run_pass: Any) -> None:
    body = LENGTH + "scaled = Mul(unit, f)\n y = Reshape(scaled, joined)"
    flat = np.array([0, 0, M * D], np.int64)
    model = heads(body, f"float[{B}, {N}, {M * D}] y", f=numbers(*shape), joined=flat)
    x = numbers(B, N, M, D)
    before = execute(model, x=x)["y"]
    assert run_pass(UnitNorm, model, target=Target.OPENVINO).changed == 1
    assert operators(model)[-2:] == ["Reshape", "Mul"]
    np.testing.assert_allclose(execute(model, x=x)["y"], before, rtol=1e-5, atol=1e-6)


def test_a_factor_per_token_stays_where_it_is(run_pass: Any) -> None:
    body = LENGTH + "scaled = Mul(unit, f)\n y = Reshape(scaled, joined)"
    flat = np.array([0, 0, M * D], np.int64)
    model = heads(body, f"float[{B}, {N}, {M * D}] y", f=numbers(1, N, M, 1), joined=flat)
    x = numbers(B, N, M, D)
    before = execute(model, x=x)["y"]
    assert run_pass(UnitNorm, model, target=Target.OPENVINO).changed == 1
    assert operators(model)[-2:] == ["Mul", "Reshape"]
    np.testing.assert_allclose(execute(model, x=x)["y"], before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "arrays", "reason"),
    [
        ("", "", {"eps": np.array(1e-3, np.float32)}, "at most"),
        ("", "", {"last": np.array([1], np.int64)}, "last axis"),
        ("Clip(norm, eps)", "Clip(norm, eps, top)", {"top": np.array(3, np.float32)}, "upper"),
    ],
)
def test_what_is_left_alone_says_why(
    old: str, new: str, arrays: dict[str, np.ndarray], reason: str, run_pass: Any
) -> None:
    model = heads((LENGTH.replace(old, new) if old else LENGTH) + "y = Neg(unit)", **arrays)
    outcome = run_pass(UnitNorm, model, target=Target.OPENVINO)
    assert (outcome.changed, operators(model)) == (0, ["ReduceL2", "Clip", "Div", "Neg"])
    (refusal,) = outcome.refused
    assert reason in refusal.reason


def test_float16_and_other_targets_stay(run_pass: Any) -> None:
    model = heads(LENGTH + "y = Neg(unit)")
    assert run_pass(UnitNorm, model, target=Target.ORT).changed == 0
    outcome = run_pass(UnitNorm, model, target=Target.OPENVINO, half=True)
    assert (outcome.changed, len(outcome.refused)) == (0, 1)


def test_the_length_of_something_else_is_no_unit_norm(run_pass: Any) -> None:
    body = LENGTH.replace("ReduceL2 <keepdims = 1> (x,", "ReduceL2 <keepdims = 1> (z,")
    model = heads("z = Neg(x)\n" + body + "y = Neg(unit)")
    outcome = run_pass(UnitNorm, model, target=Target.OPENVINO)
    assert (outcome.changed, outcome.refused) == (0, [])
