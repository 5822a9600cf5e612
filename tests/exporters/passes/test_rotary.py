"""Rotary: every spelling of the rotation becomes one node; anything else stays as it is."""

from __future__ import annotations

import re
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


def test_heads_with_angles_of_their_own_are_counted_as_tokens(run_pass: Any) -> None:
    angle = RNG.standard_normal((1, M, N, H // 2)).astype(np.float32)
    cos, sin = half_columns(np.cos(angle)), half_columns(np.sin(angle))
    model = rotated_block(HALF, prefix=False, cos=cos, sin=sin)
    feeds = inputs()
    before = execute(model, **feeds)["y"]
    assert run_pass(FuseRotary, model).changed == 1
    assert operators(model) == ["Reshape", "RotaryEmbedding", "Reshape", "MultiHeadAttention"]
    assert model.graph[1].attributes["num_heads"].as_int() == 1
    np.testing.assert_allclose(execute(model, **feeds)["y"], before, atol=1e-6)


def test_columns_that_are_no_pairs_are_refused(run_pass: Any) -> None:
    """A half-split turn whose two columns carry different angles rotates nothing."""
    cos, sin = (RNG.standard_normal((N, H)).astype(np.float32) for _ in range(2))
    outcome = run_pass(FuseRotary, rotated_block(HALF, prefix=False, cos=cos, sin=sin))
    assert (outcome.changed, len(outcome.refused)) == (0, 1)


def test_a_mere_factor_is_no_rotation(run_pass: Any) -> None:
    cos, sin = np.full((N, H), 2, np.float32), np.zeros((N, H), np.float32)
    assert run_pass(FuseRotary, rotated_block(HALF, prefix=False, cos=cos, sin=sin)).changed == 0


# One column per pair or two, made from the number of tokens as a library would.
ANGLES = """
    n = Shape <start = 1, end = 2> (q)
    count = Sub(n, leading)
    scalar = Squeeze(count)
    number = Cast <to = 1> (scalar)
    index = Range(zero, number, one)
    column = Unsqueeze(index, last)
    angle = Mul(column, frequencies)
    {spread}
    cos = Cos(wide)
    sin = Sin(wide)
"""
SPREADS = {
    "half": "wide = Concat <axis = 1> (angle, angle)",
    "interleaved": """
        deep = Unsqueeze(angle, last)
        two = Concat <axis = 2> (deep, deep)
        wide = Reshape(two, columns)
    """,
}


OF_ONE_LAYER = re.compile(
    r"\b(split|heads|first|rest|a|b|nb|ua|ub|st|p|u|w|turned|joined|back|flat)\b"
)


def symbolic_block(turn: str, spread: str, *, prefix: bool, layers: int = 1) -> ir.Model:
    """Layers of rotated queries at any number of tokens and any batch."""
    x = "rest" if prefix else "heads"
    blocks = ""
    for k in range(layers):
        inner = (
            turn.format(x=x)
            + f"""
        u = Mul({x}, cos)
        w = Mul(p, sin)
        turned = Add(u, w)"""
        )
        text = f"""
        split = Reshape({"q" if k == 0 else f"y{k - 1}"}, heads_shape)
        heads = Transpose <perm = [0, 2, 1, 3]> (split)
        {"first = Slice(heads, i0, i1, i2)" if prefix else ""}
        {"rest = Slice(heads, i1, far, i2)" if prefix else ""}
        {inner}
        {"joined = Concat <axis = 2> (first, turned)" if prefix else ""}
        back = Transpose <perm = [0, 2, 1, 3]> ({"joined" if prefix else "turned"})
        flat = Reshape(back, flat_shape)
        out = com.microsoft.MultiHeadAttention <num_heads = {M}> (flat, k, v)"""
        text = OF_ONE_LAYER.sub(rf"\g<1>{k}", text)
        blocks += re.sub(r"\bout\b", "y" if k == layers - 1 else f"y{k}", text)
    names = f"float[batch, n, {D}]"
    text = f"""
    block ({names} q, {names} k, {names} v) => ({names} y) {{
        {ANGLES.format(spread=SPREADS[spread])}
        {blocks}
    }}"""
    numbers: dict[str, Any] = {
        "i0": [0],
        "i1": [1],
        "i2": [2],
        "i3": [3],
        "far": [2**62],
        "last": [-1],
        "four": [0, M, -1, H],
        "columns": [-1, H],
        "leading": [int(prefix)],
        "heads_shape": [0, 0, M, H],
        "flat_shape": [0, 0, D],
    }
    arrays = {name: np.array(value, dtype=np.int64) for name, value in numbers.items()}
    arrays["zero"], arrays["one"] = np.float32(0), np.float32(1)
    arrays["frequencies"] = np.linspace(1, 0.1, H // 2, dtype=np.float32)
    model = graph(
        text, **{n: np.asarray(a) for n, a in arrays.items() if re.search(rf"\b{n}\b", text)}
    )
    for node in model.graph:  # as torch writes them; onnx loses count in Slice and Concat
        for value in node.outputs:
            if re.fullmatch(r"(heads|joined|turned)\d", value.name or ""):
                tokens = "n - 1" if prefix and "turned" in str(value.name) else "n"
                value.shape = ir.Shape(["batch", M, tokens, H])
    return model


@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize(("turn", "spread"), [(HALF, "half"), (INTERLEAVED, "interleaved")])
def test_any_number_of_tokens_and_any_batch(
    turn: str, spread: str, prefix: bool, run_pass: Any
) -> None:
    model = symbolic_block(turn, spread, prefix=prefix, layers=2)
    sizes = [(1, 4), (3, 9)]
    feeds = [
        {n: RNG.standard_normal((b, t, D)).astype(np.float32) for n in "qkv"} for b, t in sizes
    ]
    before = [execute(model, **f)["y"] for f in feeds]
    assert run_pass(FuseRotary, model).changed == 2
    kinds = operators(model)
    assert kinds.count("RotaryEmbedding") == 2
    assert kinds.count("Cos") == kinds.count("Sin") == 1
    assert not {"Neg", "Mul"} & set(kinds[kinds.index("RotaryEmbedding") :])
    first, second = (n for n in model.graph if n.op_type == "RotaryEmbedding")
    assert list(first.inputs[1:]) == list(second.inputs[1:])  # one table, one list of rows
    for feed, wanted in zip(feeds, before, strict=True):
        np.testing.assert_allclose(execute(model, **feed)["y"], wanted, atol=1e-6)


def test_a_table_of_the_data_is_not_a_position(run_pass: Any) -> None:
    """Angles computed from the values of an input cannot be shared or measured."""
    model = symbolic_block(HALF, "half", prefix=False)
    sin = next(n for n in model.graph if n.op_type == "Sin")
    mean = ir.node("ReduceMean", [model.graph.inputs[1]], {"keepdims": 0})
    scaled = ir.node("Mul", [sin.inputs[0], mean.outputs[0]])
    model.graph.insert_before(sin, [mean, scaled])
    sin.replace_input_with(0, scaled.outputs[0])
    assert run_pass(FuseRotary, model).changed == 0


def test_two_columns_of_a_pair_that_differ_are_refused_at_any_size(run_pass: Any) -> None:
    model = symbolic_block(HALF, "half", prefix=False)
    wide = next(n for n in model.graph if n.outputs[0].name == "wide")
    other = ir.node("Mul", [wide.inputs[1], model.graph.initializers["frequencies"]])
    model.graph.insert_before(wide, other)
    wide.replace_input_with(1, other.outputs[0])
    outcome = run_pass(FuseRotary, model)
    assert (outcome.changed, len(outcome.refused)) == (0, 1)
    assert "no rotation" in outcome.refused[0].reason


def test_a_table_that_ends_before_the_sizes_that_are_tried_is_refused(run_pass: Any) -> None:
    """A text model of 8 positions cannot be measured at 12."""
    model = symbolic_block(HALF, "half", prefix=False)
    rows = ir.Value(name="rows", const_value=ir.tensor(np.arange(8), name="rows"))
    model.graph.register_initializer(rows)
    for name in ("cos", "sin"):
        node = next(n for n in model.graph if n.outputs[0].name == name)
        some = ir.node("Gather", [node.inputs[0], rows])
        model.graph.insert_before(node, some)
        node.replace_input_with(0, some.outputs[0])
    outcome = run_pass(FuseRotary, model)
    assert (outcome.changed, len(outcome.refused)) == (0, 1)
    assert "cannot be run" in outcome.refused[0].reason
