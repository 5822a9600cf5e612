"""Attention written out by a model, in the spellings that libraries have, and what is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from exporters.passes.attention import SpellAttention
from exporters.passes.hand_attention import HandAttention
from tests.exporters.passes.conftest import execute, graph, operators
from vitpe_deploy.request import Target

W, M, N, D = 4, 2, 6, 8  # windows, heads, tokens, channels of a head
HEADS = f"float[{W}, {M}, {N}, {D}]"
RNG = np.random.default_rng(11)
ARRAYS = {
    "half": np.array(0.5, np.float32),
    "two": np.array([2.0], np.float32),
    "table": RNG.standard_normal((1, M, N, N)).astype(np.float32),
    "flat": RNG.standard_normal((N, N)).astype(np.float32),
    "mask": np.where(RNG.random((1, W, 1, N, N)) < 0.3, -100, 0).astype(np.float32),
    "heads": np.array([[[2.0]], [[0.25]]], np.float32),
    "per_key": RNG.standard_normal((1, 1, 1, N)).astype(np.float32),
    "apart": np.array([1, W, M, N, N], np.int64),
    "apart2": np.array([2, W // 2, M, N, N], np.int64),
    "mask2": np.zeros((1, W // 2, 1, N, N), np.float32),
    "together": np.array([W, M, N, N], np.int64),
}
KEYS = "t = Transpose <perm = [0, 1, 3, 2]> (k)"
AFTER = "w = Softmax <axis = -1> (l)\n y = MatMul(w, v)"


def attention(
    body: str, *, head: str = f"{HEADS} q, {HEADS} k, {HEADS} v", out: str = f"{HEADS} y"
) -> ir.Model:
    text = f"attention ({head}) => ({out}) {{ {body} }}"
    words = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    return graph(text, **{n: a for n, a in ARRAYS.items() if n in words})


def feeds(model: ir.Model) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        str(v.name): rng.standard_normal([int(str(d)) for d in v.shape or ()]).astype(np.float32)
        for v in model.graph.inputs
    }


@pytest.mark.parametrize("target", [Target.ORT, Target.PORTABLE])
@pytest.mark.parametrize(
    "logits",
    [
        "l = MatMul(q, t)",
        "p = MatMul(q, t)\n l = Mul(p, half)",
        "p = MatMul(q, t)\n l = Div(p, two)",
        "s = Mul(half, q)\n u = Mul(t, half)\n l = MatMul(s, u)",
        "p = MatMul(q, t)\n l = Add(table, p)",
        "p = MatMul(q, t)\n l = Add(p, flat)",
        "p = MatMul(q, t)\n s = Mul(p, half)\n l = Add(s, table)",
        "p = MatMul(q, t)\n a = Add(p, table)\n l = Mul(a, half)",
        "p = MatMul(q, t)\n h = Mul(p, heads)\n l = Add(h, table)",
        "p = MatMul(q, t)\n a = Add(p, table)\n r = Reshape(a, apart)\n m = Add(r, mask)\n"
        "l = Reshape(m, together)",
    ],
)
def test_spellings(logits: str, target: Target, run_pass: Any) -> None:
    model = attention(f"{KEYS}\n{logits}\n{AFTER}")
    arrays = feeds(model)
    before = execute(model, **arrays)["y"]
    assert run_pass(HandAttention, model).changed == 1
    assert "Softmax" not in operators(model)
    run_pass(SpellAttention, model, target=target)
    fused = operators(model).count("MultiHeadAttention")
    assert fused == (target is Target.ORT)
    np.testing.assert_allclose(execute(model, **arrays)["y"], before, rtol=1e-4, atol=1e-5)
    plain = attention(f"{KEYS}\n l = MatMul(q, t)\n{AFTER}")
    if logits != "l = MatMul(q, t)":
        assert np.abs(before - execute(plain, **arrays)["y"]).max() > 1e-3


def test_keys_that_one_transpose_brings_from_tokens(run_pass: Any) -> None:
    """The product reads [W, M, D, N], made of [W, N, M, D] in one Transpose."""
    body = f"t = Transpose <perm = [0, 2, 3, 1]> (k)\n l = MatMul(q, t)\n {AFTER}"
    model = attention(body, head=f"{HEADS} q, float[{W}, {N}, {M}, {D}] k, {HEADS} v")
    arrays = feeds(model)
    before = execute(model, **arrays)["y"]
    assert run_pass(HandAttention, model).changed == 1
    run_pass(SpellAttention, model)
    np.testing.assert_allclose(execute(model, **arrays)["y"], before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (f"{KEYS}\n l = MatMul(q, t)\n w = Softmax <axis = 2> (l)\n y = MatMul(w, v)", "last axis"),
        (f"{KEYS}\n p = MatMul(q, t)\n l = Relu(p)\n {AFTER}", "Relu stands between"),
        (f"{KEYS}\n p = MatMul(q, t)\n l = Add(p, per_key)\n {AFTER}", "a bias of"),
        (
            f"{KEYS}\n p = MatMul(q, t)\n a = Add(p, table)\n l = Mul(a, heads)\n {AFTER}",
            "the bias",
        ),
        (
            f"{KEYS}\n p = MatMul(q, t)\n r = Reshape(p, apart2)\n m = Add(r, mask2)\n"
            f"l = Reshape(m, together)\n {AFTER}",
            "for a batch of 2",
        ),
        (f"l = MatMul(q, v)\n {AFTER}", "not made by a Transpose"),
    ],
)
def test_what_is_left_alone(body: str, reason: str, run_pass: Any) -> None:
    square = f"float[{W}, {M}, {N}, {N}]" if "MatMul(q, v)" in body else HEADS
    head = f"{square} q, {HEADS} k, {square} v" if square != HEADS else None
    model = attention(body, **({"head": head, "out": f"{square} y"} if head else {}))
    kinds = operators(model)
    outcome = run_pass(HandAttention, model)
    assert outcome.changed == 0
    assert reason in outcome.refused[0].reason, outcome.refused
    assert operators(model) == kinds


def test_weights_that_are_an_output_stay(run_pass: Any) -> None:
    body = f"{KEYS}\n l = MatMul(q, t)\n {AFTER}\n o = Relu(w)"
    model = attention(body, out=f"{HEADS} y, float[{W}, {M}, {N}, {N}] o")
    outcome = run_pass(HandAttention, model)
    assert (outcome.changed, "by themselves" in outcome.refused[0].reason) == (0, True)


def test_values_of_another_width_stay(run_pass: Any) -> None:
    wide = f"float[{W}, {M}, {N}, {2 * D}]"
    body = f"{KEYS}\n l = MatMul(q, t)\n {AFTER}"
    model = attention(body, head=f"{HEADS} q, {HEADS} k, {wide} v", out=f"{wide} y")
    outcome = run_pass(HandAttention, model)
    assert (outcome.changed, "16 in values" in outcome.refused[0].reason) == (0, True)
