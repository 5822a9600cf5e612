"""Rotary: every spelling of the rotation becomes one node; anything else stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from exporters.passes.rotary import FuseRotary
from tests.exporters.passes.conftest import execute, graph, operators
from vitpe_deploy.request import Target

B, N, M, H, PREFIX = 2, 6, 2, 8, 1
D = M * H
RNG = np.random.default_rng(3)

HALF = """
    a, b = Split <axis = 3, num_outputs = 2> ({x})
    nb = Neg(b)
    p = Concat <axis = 3> (nb, a)
"""
INTERLEAVED = """
    a = Slice({x}, i0, far, i3, i2)
    b = Slice({x}, i1, far, i3, i2)
    nb = Neg(b)
    ua = Unsqueeze(a, last)
    ub = Unsqueeze(nb, last)
    st = Concat <axis = 4> (ub, ua)
    p = Reshape(st, four)
"""


def table(*, columns: Callable[[np.ndarray], np.ndarray], rows: int) -> tuple[np.ndarray, ...]:
    angle = RNG.standard_normal((rows, H // 2)).astype(np.float32)
    return columns(np.cos(angle)), columns(np.sin(angle))


def half_columns(t: np.ndarray) -> np.ndarray:
    return np.concatenate([t, t], axis=-1)


def neighbour_columns(t: np.ndarray) -> np.ndarray:
    return np.repeat(t, 2, axis=-1)


def rotated_block(turn: str, *, prefix: bool, cos: np.ndarray, sin: np.ndarray) -> ir.Model:
    """Query rotated by ``turn``, key and value plain, attention over [B, N, D]."""
    tokens = N - PREFIX if prefix else N
    x = "rest" if prefix else "heads"
    before = "first = Slice(heads, i0, i1, i2)\n rest = Slice(heads, i1, far, i2)"
    after = "joined = Concat <axis = 2> (first, turned)"
    text = f"""
    block (float[{B}, {N}, {D}] q, float[{B}, {N}, {D}] k, float[{B}, {N}, {D}] v)
        => (float[{B}, {N}, {D}] y) {{
        split = Reshape(q, heads_shape)
        heads = Transpose <perm = [0, 2, 1, 3]> (split)
        {before if prefix else ""}
        {turn.format(x=x)}
        u = Mul({x}, cos)
        w = Mul(p, sin)
        turned = Add(u, w)
        {after if prefix else "joined = Identity(turned)"}
        back = Transpose <perm = [0, 2, 1, 3]> (joined)
        flat = Reshape(back, flat_shape)
        y = com.microsoft.MultiHeadAttention <num_heads = {M}> (flat, k, v)
    }}"""
    if not prefix:
        text = text.replace("joined = Identity(turned)", "").replace("(joined)", "(turned)")
    numbers: dict[str, Any] = {
        "i0": [0],
        "i1": [1],
        "i2": [2],
        "i3": [3],
        "far": [2**62],
        "last": [-1],
        "four": [B, M, tokens, H],
        "heads_shape": [0, 0, M, H],
        "flat_shape": [0, 0, D],
    }
    arrays = {name: np.array(value, dtype=np.int64) for name, value in numbers.items()}
    used = {name: array for name, array in arrays.items() if name in text}
    return graph(text, cos=cos, sin=sin, **used)


def inputs() -> dict[str, np.ndarray]:
    return {n: RNG.standard_normal((B, N, D)).astype(np.float32) for n in "qkv"}


@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize(
    ("turn", "columns", "interleaved"),
    [(HALF, half_columns, 0), (INTERLEAVED, neighbour_columns, 1)],
)
def test_a_rotation_becomes_one_node(
    turn: str, columns: Any, interleaved: int, prefix: bool, run_pass: Any
) -> None:
    cos, sin = table(columns=columns, rows=N - PREFIX if prefix else N)
    model = rotated_block(turn, prefix=prefix, cos=cos, sin=sin)
    feeds = inputs()
    before = execute(model, **feeds)["y"]
    assert run_pass(FuseRotary, model).changed == 1
    assert operators(model) == ["RotaryEmbedding", "MultiHeadAttention"]
    assert model.graph[0].attributes["interleaved"].as_int() == interleaved
    if prefix:
        assert (model.graph.initializers["rotary_cos"].const_value.numpy()[0] == 1).all()  # type: ignore[union-attr]
        assert (model.graph.initializers["rotary_sin"].const_value.numpy()[0] == 0).all()  # type: ignore[union-attr]
    np.testing.assert_allclose(execute(model, **feeds)["y"], before, atol=1e-6)


@pytest.mark.parametrize("target", [Target.PORTABLE])
def test_a_portable_file_keeps_standard_operators(target: Target, run_pass: Any) -> None:
    cos, sin = table(columns=half_columns, rows=N)
    model = rotated_block(HALF, prefix=False, cos=cos, sin=sin)
    names = operators(model)
    assert run_pass(FuseRotary, model, target=target).changed == 0
    assert operators(model) == names


def test_tables_that_differ_by_head_are_refused(run_pass: Any) -> None:
    angle = RNG.standard_normal((1, M, N, H // 2)).astype(np.float32)
    cos, sin = half_columns(np.cos(angle)), half_columns(np.sin(angle))
    outcome = run_pass(FuseRotary, rotated_block(HALF, prefix=False, cos=cos, sin=sin))
    assert outcome.changed == 0
    assert "one table for all heads" in outcome.refused[0].reason


def test_columns_that_are_no_pairs_are_refused(run_pass: Any) -> None:
    """A half-split turn whose two columns carry different angles rotates nothing."""
    cos, sin = (RNG.standard_normal((N, H)).astype(np.float32) for _ in range(2))
    outcome = run_pass(FuseRotary, rotated_block(HALF, prefix=False, cos=cos, sin=sin))
    assert (outcome.changed, len(outcome.refused)) == (0, 1)


def test_a_mere_factor_is_no_rotation(run_pass: Any) -> None:
    cos, sin = np.full((N, H), 2, np.float32), np.zeros((N, H), np.float32)
    assert run_pass(FuseRotary, rotated_block(HALF, prefix=False, cos=cos, sin=sin)).changed == 0
