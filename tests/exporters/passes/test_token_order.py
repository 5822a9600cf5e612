"""Window attention without the moves around it: results, Gathers left, and what must stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from exporters.passes.token_order import TokenOrder
from tests.exporters.passes.conftest import execute, graph, operators

SIDE, WINDOW, D = 4, 2, 4
RNG = np.random.default_rng(3)
MAP = f"float[1, {SIDE}, {SIDE}, {D}]"
INTS = {
    "parts": [1, 2, 2, 2, 2, D],
    "windows": [4, 4, D],
    "map": [1, SIDE, SIDE, D],
    "i0": [0],
    "i1": [1],
    "i2": [2],
    "i3": [3],
    "far": [SIDE],
}


def roll(x: str, out: str, forward: bool) -> str:
    """torch.roll by one row and column, as torch.onnx.export writes it."""
    cut = "i1" if forward else "i3"
    return f"""
        {out}_a = Slice({x}, i0, {cut}, i1)
        {out}_b = Slice({x}, {cut}, far, i1)
        {out}_c = Concat <axis = 1> ({out}_b, {out}_a)
        {out}_d = Slice({out}_c, i0, {cut}, i2)
        {out}_e = Slice({out}_c, {cut}, far, i2)
        {out} = Concat <axis = 2> ({out}_e, {out}_d)"""


def block(x: str, out: str, shifted: bool) -> str:
    """Norm, windows, attention, reverse, residual add, and a linear layer with its own."""
    before = roll(f"{out}_n", f"{out}_r", True) if shifted else f"{out}_r = Identity({out}_n)"
    after = roll(f"{out}_u", f"{out}_v", False) if shifted else f"{out}_v = Identity({out}_u)"
    return f"""
        {out}_n = LayerNormalization <axis = -1> ({x}, g, b)
        {before}
        {out}_p6 = Reshape({out}_r, parts)
        {out}_p = Transpose <perm = [0, 1, 3, 2, 4, 5]> ({out}_p6)
        {out}_w = Reshape({out}_p, windows)
        {out}_q = MatMul({out}_w, wq)
        {out}_k = MatMul({out}_w, wk)
        {out}_h = com.microsoft.MultiHeadAttention <num_heads = 2> ({out}_q, {out}_k, {out}_w)
        {out}_o = MatMul({out}_h, wo)
        {out}_o6 = Reshape({out}_o, parts)
        {out}_t = Transpose <perm = [0, 1, 3, 2, 4, 5]> ({out}_o6)
        {out}_u = Reshape({out}_t, map)
        {after}
        {out}_s = Add({x}, {out}_v)
        {out}_m = LayerNormalization <axis = -1> ({out}_s, b, g)
        {out}_f = MatMul({out}_m, wo)
        {out} = Add({out}_s, {out}_f)"""


def network(body: str, outputs: str = f"{MAP} y", size: str = MAP) -> ir.Model:
    text = (
        f"net ({size} x0) => ({outputs}) {{ x = LayerNormalization <axis = -1> (x0, g, b) {body} }}"
    )
    arrays: dict[str, np.ndarray] = {n: np.array(v, np.int64) for n, v in INTS.items() if n in text}
    for name in ("wq", "wk", "wo"):
        arrays[name] = RNG.standard_normal((D, D)).astype(np.float32)
    for name in ("g", "b"):
        arrays[name] = RNG.standard_normal(D).astype(np.float32)
    return with_shapes(graph(text, **arrays))


def with_shapes(model: ir.Model) -> ir.Model:
    """onnx infers no shape of a contrib operator: attention keeps that of its query."""
    for node in model.graph:
        if node.domain == "com.microsoft":
            query = node.inputs[0]
            assert query is not None
            node.outputs[0].shape, node.outputs[0].type = query.shape, query.type
    return ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(model)))


def same(model: ir.Model, run_pass: Any, **options: Any) -> Any:
    x = RNG.standard_normal((1, SIDE, SIDE, D)).astype(np.float32)
    before = execute(model, x0=x)
    outcome = run_pass(TokenOrder, model, **options)
    after = execute(model, x0=x)
    for name, array in before.items():
        assert np.abs(array).max() > 0.1
        np.testing.assert_allclose(after[name], array, rtol=1e-5, atol=1e-5)
    return outcome


def test_two_blocks_take_one_gather_each_and_one_for_the_output(run_pass: Any) -> None:
    model = network(block("x", "m", False) + block("m", "y0", True) + "\n y = Relu(y0)")
    outcome = same(model, run_pass)
    kinds = operators(model)
    assert kinds.count("Gather") == 3
    assert {"Transpose", "Concat", "Slice"} & set(kinds) == set()
    assert outcome.changed == 8  # four Transposes, four Concats
    assert not outcome.refused


def test_shifted_windows_alone(run_pass: Any) -> None:
    model = network(block("x", "y0", True) + "\n y = Relu(y0)")
    assert same(model, run_pass).changed == 6
    assert operators(model).count("Gather") == 2


def gathered_block(x: str, out: str, into: str, back: str) -> str:
    """Norm, windows by number, attention, its tokens back by number before they are projected."""
    return f"""
        {out}_n = LayerNormalization <axis = -1> ({x}, g, b)
        {out}_p = Gather <axis = 1> ({out}_n, {into})
        {out}_w = Reshape({out}_p, windows)
        {out}_q = MatMul({out}_w, wq)
        {out}_k = MatMul({out}_w, wk)
        {out}_h = com.microsoft.MultiHeadAttention <num_heads = 2> ({out}_q, {out}_k, {out}_w)
        {out}_u = Reshape({out}_h, line)
        {out}_v = Gather <axis = 1> ({out}_u, {back})
        {out}_o = MatMul({out}_v, wo)
        {out} = Add({x}, {out}_o)"""


def test_windows_by_number_take_one_gather_each_and_one_for_the_output(run_pass: Any) -> None:
    """How this project's own windows are traced."""
    line = f"float[1, {SIDE * SIDE}, {D}]"
    body = gathered_block("x", "m", "into", "back") + gathered_block("m", "y0", "to", "fro")
    text = f"""net ({line} x0) => ({line} y) {{
        x = LayerNormalization <axis = -1> (x0, g, b)
        {body}
        y = Relu(y0) }}"""
    plain, shifted = (RNG.permutation(SIDE * SIDE) for _ in range(2))
    arrays: dict[str, np.ndarray] = {
        "into": plain,
        "back": np.argsort(plain),
        "to": shifted,
        "fro": np.argsort(shifted),
        "windows": np.array([4, 4, D]),
        "line": np.array([1, SIDE * SIDE, D]),
    }
    for name, shape in {"wq": (D, D), "wk": (D, D), "wo": (D, D), "g": (D,), "b": (D,)}.items():
        arrays[name] = RNG.standard_normal(shape).astype(np.float32)
    model = with_shapes(graph(text, **arrays))
    x = RNG.standard_normal((1, SIDE * SIDE, D)).astype(np.float32)
    before = execute(model, x0=x)["y"]
    assert run_pass(TokenOrder, model).changed == 4
    assert operators(model).count("Gather") == 3
    assert before.std() > 0.1
    np.testing.assert_allclose(execute(model, x0=x)["y"], before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "gather",
    [
        "r = Gather <axis = 2> (x, order)",  # channels
        "r = Gather <axis = 1> (x, numbers)",  # by numbers that the graph computes
        "r = Gather <axis = 1> (x, table)",  # into two dimensions
    ],
)
def test_gathers_that_move_no_rows(gather: str, run_pass: Any) -> None:
    shape = f"1, {SIDE}, 2, {D}" if "table" in gather else f"1, {SIDE}, {D}"
    text = f"""net (float[1, {SIDE}, {D}] x0, int64[{SIDE}] numbers) => (float[{shape}] y) {{
        x = LayerNormalization <axis = -1> (x0, g, b)
        {gather}
        y = Relu(r) }}"""
    order = np.arange(SIDE)[::-1].copy()
    model = graph(
        text, g=np.ones(D, np.float32), b=np.ones(D, np.float32), order=order,
        table=np.stack([order, order], 1),
    )  # fmt: skip
    assert run_pass(TokenOrder, model).changed == 0
    assert operators(model) == ["LayerNormalization", "Gather", "Relu"]


def test_tokens_that_are_an_output_are_in_their_order(run_pass: Any) -> None:
    body = block("x", "m", False) + block("m", "y", True)
    model = network(body, f"{MAP} y, {MAP} m")
    same(model, run_pass)
    x = np.zeros((1, SIDE, SIDE, D), np.float32)
    x[0, 0, 0] = RNG.standard_normal(D)
    assert execute(model, x0=x)["m"].shape == x.shape


def test_rows_that_are_left_out(run_pass: Any) -> None:
    """Two of four rows are rolled and added to the other two."""
    body = """
        a = Slice(x, i0, i2, i1)
        c = Slice(x, i2, far, i1)
        r = Concat <axis = 1> (c, a)
        t = Slice(r, i0, i2, i1)
        y0 = Add(t, a)
        y = Relu(y0)"""
    model = network(body, f"float[1, 2, {SIDE}, {D}] y")
    outcome = same(model, run_pass)
    assert "left out or repeated" in outcome.refused[0].reason


def test_cuts_and_views_stay(run_pass: Any) -> None:
    body = "c = Slice(x, i1, far, i1)\n y = Relu(c)"
    model = network(body, f"float[1, 3, {SIDE}, {D}] y")
    assert same(model, run_pass).changed == 0
    assert operators(model) == ["LayerNormalization", "Slice", "Relu"]


def test_channels_that_move_are_no_rows(run_pass: Any) -> None:
    body = "t = Transpose <perm = [0, 3, 1, 2]> (x)\n y = Relu(t)"
    model = network(body, f"float[1, {D}, {SIDE}, {SIDE}] y")
    assert same(model, run_pass).changed == 0
    assert operators(model).count("Transpose") == 1


def test_symbolic_sizes_are_refused(run_pass: Any) -> None:
    size = f"float[N, {SIDE}, {SIDE}, {D}]"
    body = """
        p = Reshape(x, parts)
        t = Transpose <perm = [0, 1, 3, 2, 4, 5]> (p)
        u = Reshape(t, map)
        y = Add(x, u)"""
    model = network(body, f"{size} y", size)
    for node in model.graph:
        if node.op_type == "Reshape" and node.inputs[0] is not None:
            node.outputs[0].shape = ir.Shape(["N", *(node.outputs[0].shape or ir.Shape([0]))[1:]])
    outcome = run_pass(TokenOrder, model)
    assert outcome.changed == 0
    assert "symbolic" in outcome.refused[0].reason
