"""Token-wise nodes of maps on lists of tokens: the same numbers, few views, and what stays."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from exporters.passes.flat_tokens import FlatTokens
from tests.exporters.passes.conftest import execute, graph, operators
from vitpe_deploy.request import Target

B, H, W, C = 2, 4, 6, 16
RNG = np.random.default_rng(17)
MAP = f"float[{B}, {H}, {W}, {C}]"
LIST = f"float[{B}, N, {C}]"
LISTED = [1, B * H * W]


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def net(body: str, size: str = MAP, outputs: str = "", result: str = "", **more: Any) -> ir.Model:
    arrays = {"g": numbers(C), "b": numbers(C), "w": numbers(C, 3 * C), **more}
    used = {k: v for k, v in arrays.items() if re.search(rf"\b{k}\b[,)]", body)}
    return graph(f"net ({size} x) => ({result or size} y{outputs}) {{ {body} }}", **used)


def same_after(model: ir.Model, run_pass: Any, x: np.ndarray) -> Any:
    before = execute(model, x=x)
    outcome = run_pass(FlatTokens, model, target=Target.OPENVINO)
    after = execute(model, x=x)
    assert {n: a.shape for n, a in after.items()} == {n: a.shape for n, a in before.items()}
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, rtol=1e-5, atol=1e-5)
    return outcome


@pytest.mark.parametrize("axis", [-1, 3])
def test_norm_of_a_map(axis: int, run_pass: Any) -> None:
    body = f"t = Transpose <perm = [0, 2, 1, 3]> (x)\n y0 = LayerNormalization <axis = {axis}, "
    body += "epsilon = 0.3> (t, g, b)\n y = Transpose <perm = [0, 2, 1, 3]> (y0)"
    model = net(body)
    assert same_after(model, run_pass, numbers(B, H, W, C)).changed == 1
    assert operators(model)[1:4] == ["Reshape", "LayerNormalization", "Reshape"]


BLOCK = """
    n = LayerNormalization <axis = -1> (x, g, b)
    p = MatMul(n, w)
    q = Add(p, wide)
    a = Gelu(q)
    s = MatMul(a, v)
    y = Add(x, s)
"""


@pytest.mark.parametrize("bias", [(3 * C,), (1, 1, 1, 3 * C), (1,)])
def test_a_block_has_views_at_its_borders_alone(bias: tuple[int, ...], run_pass: Any) -> None:
    model = net(BLOCK, wide=numbers(*bias), v=numbers(3 * C, C))
    assert same_after(model, run_pass, numbers(B, H, W, C)).changed == 6
    names = operators(model)
    assert names[0] == names[-1] == "Reshape"
    assert names.count("Reshape") == 2
    inner = [n.outputs[0].shape for n in model.graph][:-1]
    assert all([*shape][:2] == LISTED for shape in inner if shape is not None)


def test_views_of_one_another_are_one(run_pass: Any) -> None:
    body = "m = Reshape(x, four)\n n = LayerNormalization <axis = -1> (m, g, b)\n y = Reshape(n, l)"
    four, flat = (np.array(s, np.int64) for s in ([B, H, W, C], [1, B * H * W, C]))
    model = net(body, f"float[{LISTED[0]}, {LISTED[1]}, {C}]", four=four, l=flat)
    same_after(model, run_pass, numbers(1, B * H * W, C))
    assert operators(model)[0] == "LayerNormalization"


def test_a_table_of_all_tokens_is_listed(run_pass: Any) -> None:
    body = "p = Add(x, t)\n y = LayerNormalization <axis = -1> (p, g, b)"
    model = net(body, t=numbers(B, H, W, C))
    assert same_after(model, run_pass, numbers(B, H, W, C)).changed == 2
    assert operators(model).count("Reshape") == 2


def test_outputs_in_the_middle_keep_name_and_shape(run_pass: Any) -> None:
    body = "m = LayerNormalization <axis = -1> (x, g, b)\n a = Gelu(m)\n y = Relu(a)"
    model = net(body, outputs=f", {MAP} m")
    assert same_after(model, run_pass, numbers(B, H, W, C)).changed == 3


def test_a_sum_that_broadcasts_over_tokens_stays(run_pass: Any) -> None:
    body = "n = LayerNormalization <axis = -1> (x, g, b)\n y = Add(n, rows)"
    model = net(body, rows=numbers(1, H, 1, C))
    assert same_after(model, run_pass, numbers(B, H, W, C)).changed == 1


def test_elementwise_work_alone_stays(run_pass: Any) -> None:
    model = net("a = Gelu(x)\n y = Mul(a, g)")
    outcome = same_after(model, run_pass, numbers(B, H, W, C))
    assert (outcome.changed, operators(model)) == (0, ["Gelu", "Mul"])


SYMBOLIC = """
    m = Reshape(x, four)
    n = LayerNormalization <axis = 3> (m, g, b)
    y = Transpose <perm = [0, 2, 1, 3]> (n)
"""


@pytest.mark.parametrize("height", [2, 5])
def test_of_symbolic_sizes_a_norm_goes_before_its_view(height: int, run_pass: Any) -> None:
    shape = np.array([B, -1, W, C], np.int64)
    model = net(SYMBOLIC, LIST, result=f"float[{B}, {W}, h, {C}]", four=shape)
    assert same_after(model, run_pass, numbers(B, height * W, C)).changed == 1
    assert operators(model) == ["LayerNormalization", "Reshape", "Transpose"]


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
    model = net(body, size, outputs)
    outcome = run_pass(FlatTokens, model, target=Target.OPENVINO)
    assert (outcome.changed, operators(model)) == (0, ["LayerNormalization"])
    (refusal,) = outcome.refused
    assert reason in refusal.reason


def test_lists_and_other_targets_stay(run_pass: Any) -> None:
    body = "y = LayerNormalization <axis = -1> (x, g, b)"
    for model, target in (
        (net(body, f"float[{B}, {H}, {C}]"), Target.OPENVINO),
        (net(body), Target.ORT),
        (net(body), Target.PORTABLE),
    ):
        outcome = run_pass(FlatTokens, model, target=target)
        assert (outcome.changed, outcome.refused) == (0, [])


def test_of_symbolic_sizes_a_norm_goes_before_moves_that_nothing_else_reads(run_pass: Any) -> None:
    body = """
        m = Reshape(x, four)
        t = Transpose <perm = [0, 2, 1, 3]> (m)
        s = Slice(t, i1, far, i1)
        n = LayerNormalization <axis = 3> (s, g, b)
        y = Relu(n)
    """
    shape = {"four": np.array([B, -1, W, C], np.int64)}
    cut = {"i1": np.array([1], np.int64), "far": np.array([2**62], np.int64)}
    model = net(body, LIST, result=f"float[{B}, k, h, {C}]", **shape, **cut)
    assert same_after(model, run_pass, numbers(B, 3 * W, C)).changed == 1
    assert operators(model)[0] == "LayerNormalization"


def test_of_symbolic_sizes_a_norm_stays_behind_empty_places(run_pass: Any) -> None:
    body = "m = Reshape(x, four)\n p = Pad(m, room)\n y = LayerNormalization <axis = 3> (p, g, b)"
    more = {"four": np.array([B, -1, W, C], np.int64), "room": np.array([0, 1, 0, 0] * 2, np.int64)}
    model = net(body, LIST, result=f"float[{B}, h, {W}, {C}]", **more)
    assert same_after(model, run_pass, numbers(B, 3 * W, C)).changed == 0
    assert operators(model) == ["Reshape", "Pad", "LayerNormalization"]


@pytest.mark.parametrize("size", [(3, 5), (4, 4)])
def test_of_an_image_of_symbolic_size(size: tuple[int, int], run_pass: Any) -> None:
    body = """
        t = Transpose <perm = [0, 2, 3, 1]> (x)
        n = LayerNormalization <axis = -1> (t, g, b)
        o = LayerNormalization <axis = -1> (n, b, g)
        y = Add(n, o)
    """
    image = f"float[{B}, {C}, h, w]"
    model = net(body, image, result=f"float[{B}, h, w, {C}]")
    assert same_after(model, run_pass, numbers(B, C, *size)).changed == 2
    names = operators(model)
    assert names.index("LayerNormalization") == names.index("Concat") + 1
    lists = [n.inputs[0] for n in model.graph if n.op_type == "LayerNormalization"]
    assert [len(v.shape or ()) for v in lists if v is not None] == [3, 3]
