"""Moves of symbolic sizes as one Gather: the same numbers at every size, shared row numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from exporters.passes.gathered_moves import GatheredMoves
from tests.exporters.passes.conftest import execute, graph, operators
from vitpe_deploy.request import Target

C, S, SHIFT = 6, 4, 2
RNG = np.random.default_rng(31)
SIZES = [(8, 8), (8, 12), (7, 10), (5, 4)]

SHAPES = """
    h = Shape <start = 1, end = 2> (x)
    w = Shape <start = 2, end = 3> (x)
    hm = Add(h, less)
    wm = Add(w, less)
    hn = Div(hm, side)
    wn = Div(wm, side)
    hs = Mul(hn, side)
    ws = Mul(wn, side)
    hp = Sub(hs, h)
    wp = Sub(ws, w)
    pads = Concat <axis = 0> (i0, i0, i0, i0, i0, hp, wp, i0)
    six = Concat <axis = 0> (i1, hn, side, wn, side, c)
    whole = Concat <axis = 0> (i1, hs, ws, c)
"""
INTO = """
    {x}a = Slice({x}, by, far, i1)
    {x}b = Slice({x}, i0, by, i1)
    {x}r = Concat <axis = 1> ({x}a, {x}b)
    {x}n = Shape <start = 2, end = 3> ({x}r)
    {x}m = Mod(by, {x}n)
    {x}c = Slice({x}r, {x}m, {x}n, i2)
    {x}d = Slice({x}r, i0, {x}m, i2)
    {x}s = Concat <axis = 2> ({x}c, {x}d)
    {x}p = Pad({x}s, pads)
    {x}v = Reshape({x}p, six)
    {x}t = Transpose <perm = [0, 1, 3, 2, 4, 5]> ({x}v)
    {x}w = Reshape({x}t, windows)
    {x}y = MatMul({x}w, weight)
"""
BACK = """
    {x}f = Reshape({x}y, six)
    {x}g = Transpose <perm = [0, 1, 3, 2, 4, 5]> ({x}f)
    {x}h = Reshape({x}g, whole)
    {x}i = Slice({x}h, back, far, i1)
    {x}j = Slice({x}h, i0, back, i1)
    {x}k = Concat <axis = 1> ({x}i, {x}j)
    {x}l = Slice({x}k, back, far, i2)
    {x}o = Slice({x}k, i0, back, i2)
    {x}q = Concat <axis = 2> ({x}l, {x}o)
    {x}z = Relu({x}q)
"""
OF_WINDOWS = {"w": ["n", S * S, C], "y": ["n", S * S, C]}
OF_MAPS = {name: [1, None, None, C] for name in "psabcdrhkq"}
OF_PARTS = {name: [1, None, None, None, None, C] for name in "vtfg"}


def network(body: str, output: str, rank: int, *, names: str = "x", **arrays: Any) -> ir.Model:
    dims = {3: f"float[n, {S * S}, {C}]", 4: f"float[1, p, q, {C}]"}[rank]
    numbers: dict[str, Any] = {"i0": [0], "i1": [1], "i2": [2], "c": [C], "side": [S]}
    numbers |= {"less": [S - 1], "by": [SHIFT], "far": [2**62], "back": [-SHIFT]}
    numbers |= {"windows": [-1, S * S, C]} | arrays
    constants = {
        k: v if isinstance(v, np.ndarray) else np.array(v, np.int64) for k, v in numbers.items()
    }
    weight = RNG.standard_normal((C, C)).astype(np.float32)
    text = f"net (float[1, h, w, {C}] x) => ({dims} {output}) {{ {SHAPES} {body} }}"
    used = {k: v for k, v in constants.items() if f" {k}" in text or f"({k}" in text}
    model = graph(text, weight=weight, **used)
    for value in [v for node in model.graph for v in node.outputs]:
        name = value.name or ""
        for kind in (OF_WINDOWS, OF_MAPS, OF_PARTS):
            if name[:1] in names and name[1:] in kind and name != output:
                value.shape = ir.Shape(kind[name[1:]])
    return model


def check(model: ir.Model, run_pass: Any, sizes: list[tuple[int, int]]) -> Any:
    inputs = [RNG.standard_normal((1, h, w, C)).astype(np.float32) for h, w in sizes]
    before = [execute(model, x=x) for x in inputs]
    outcome = run_pass(GatheredMoves, model, target=Target.OPENVINO)
    for x, wanted in zip(inputs, before, strict=True):
        for name, array in execute(model, x=x).items():
            np.testing.assert_array_equal(array, wanted[name])
    return outcome


def test_into_windows_with_room_to_spare(run_pass: Any) -> None:
    model = network(INTO.format(x="x"), "xy", 3)
    assert check(model, run_pass, SIZES).changed == 1
    names = operators(model)
    assert names[-2:] == ["Gather", "MatMul"]
    assert "float" not in str([n.outputs[0].dtype for n in model.graph if n.op_type == "Slice"])


def test_into_windows_and_back(run_pass: Any) -> None:
    model = network(INTO.format(x="x") + BACK.format(x="x"), "xz", 4)
    assert check(model, run_pass, SIZES[:2]).changed == 2
    assert operators(model).count("Gather") == 2


def test_two_blocks_share_their_row_numbers(run_pass: Any) -> None:
    first = INTO.format(x="x") + BACK.format(x="x")
    one = network(first, "xz", 4)
    run_pass(GatheredMoves, one, target=Target.OPENVINO)
    second = INTO.format(x="u") + BACK.format(x="u")
    link = "u = Neg(xz)\n"
    two = network(first + link + second, "uz", 4, names="xu")
    (middle,) = [n for n in two.graph if n.op_type == "Neg"]
    middle.outputs[0].shape = two.graph.inputs[0].shape
    assert check(two, run_pass, SIZES[:2]).changed == 4
    slices = [operators(m).count("Slice") for m in (one, two)]
    assert slices[0] == slices[1] > 0
    assert operators(two).count("Gather") == 4


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{x}p = Pad({x}s, pads)", "{x}p = Pad({x}s, pads, one)"),
        ("perm = [0, 1, 3, 2, 4, 5]", "perm = [0, 1, 3, 2, 5, 4]"),
    ],
)
def test_what_is_no_move_of_rows_stays(old: str, new: str, run_pass: Any) -> None:
    body = INTO.replace(old, new)
    model = network(body.format(x="x"), "xy", 3, one=np.array(1, np.float32))
    outcome = check(model, run_pass, SIZES[:1])
    assert (outcome.changed, operators(model).count("Gather")) == (0, 0)


def test_a_map_that_others_read_on_its_way_stays_readable(run_pass: Any) -> None:
    model = network(INTO.format(x="x") + "extra = Relu(xs)", "xy", 3)
    (relu,) = [n for n in model.graph if n.op_type == "Relu"]
    relu.outputs[0].shape = ir.Shape([1, "p", "q", C])
    model.graph.outputs.append(relu.outputs[0])
    outcome = check(model, run_pass, SIZES[:2])
    assert outcome.changed == 0


def test_few_copies_stay(run_pass: Any) -> None:
    body = "xv = Reshape(x, six)\n xt = Transpose <perm = [0, 1, 3, 2, 4, 5]> (xv)\n"
    body += "xw = Reshape(xt, windows)\n xy = MatMul(xw, weight)"
    model = network(body, "xy", 3)
    assert check(model, run_pass, SIZES[:2]).changed == 0
