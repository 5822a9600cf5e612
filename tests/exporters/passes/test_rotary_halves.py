"""Projections in halves that turn where they are: the same numbers, and what stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from exporters.passes.rotary_halves import RotaryHalves
from tests.exporters.passes.conftest import execute, graph, operators
from vitpe_deploy.request import Target

B, N, C, M, H = 2, 7, 12, 3, 8
D = M * H
RNG = np.random.default_rng(29)


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def turned(
    tail: str = "",
    outputs: str = "",
    *,
    bias: bool = True,
    rows: np.ndarray | None = None,
    tokens: str = str(N),
    **attributes: int,
) -> ir.Model:
    given = {"num_heads": M, "interleaved": 0} | attributes
    spelled = ", ".join(f"{k} = {v}" for k, v in given.items())
    first = "p0 = MatMul(x, w)\n p = Add(p0, b)" if bias else "p = MatMul(x, w)"
    text = f"""
    net (float[{B}, {tokens}, {C}] x) => (float[{B}, {tokens}, {D}] y{outputs}) {{
        {first}
        y = com.microsoft.RotaryEmbedding <{spelled}> (p, rows, cos, sin)
        {tail}
    }}"""
    angle = numbers(2 * N, H // 2)
    places = np.tile(np.arange(N), (B, 1)) if rows is None else rows
    arrays = {"w": numbers(C, D), "cos": np.cos(angle), "sin": np.sin(angle)}
    more = {"b": numbers(D)} if bias else {}
    return graph(text, rows=places.astype(np.int64), **arrays, **more)


def agrees(model: ir.Model, run_pass: Any, **options: Any) -> Any:
    x = numbers(B, N, C)
    before = execute(model, x=x)
    outcome = run_pass(RotaryHalves, model, target=Target.OPENVINO, **options)
    for name, array in execute(model, x=x).items():
        np.testing.assert_allclose(array, before[name], rtol=1e-5, atol=1e-5)
    return outcome


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [None, np.array([range(N), range(3, N + 3)])])
def test_halves_turn_alike(bias: bool, rows: np.ndarray | None, run_pass: Any) -> None:
    model = turned(bias=bias, rows=rows)
    size = sum(v.const_value.nbytes for k, v in model.graph.initializers.items() if k in "wb")  # type: ignore[union-attr]
    assert agrees(model, run_pass).changed == 1
    names = operators(model)
    assert "RotaryEmbedding" not in names
    assert names.count("MatMul") == 2
    halves = [v for k, v in model.graph.initializers.items() if "first" in k or "second" in k]
    assert sum(v.const_value.nbytes for v in halves) == size  # type: ignore[union-attr]


def test_rows_that_are_computed(run_pass: Any) -> None:
    model = turned()
    table = model.graph.initializers.pop("rows")
    (rotation,) = [n for n in model.graph if n.op_type == "RotaryEmbedding"]
    source = ir.Value(name="first_rows", const_value=table.const_value, type=table.type)
    model.graph.register_initializer(source)
    step = ir.Value(name="step", const_value=ir.tensor(np.array(2, np.int64), name="step"))
    model.graph.register_initializer(step)
    moved = ir.node("Add", [source, step])
    moved.outputs[0].type = ir.TensorType(ir.DataType.INT64)
    model.graph.insert_before(rotation, moved)
    rotation.replace_input_with(1, moved.outputs[0])
    assert agrees(model, run_pass).changed == 1
    assert operators(model).count("Gather") == 2


@pytest.mark.parametrize(
    ("tail", "outputs", "attributes", "reason"),
    [
        ("", "", {"interleaved": 1}, "neighbouring"),
        ("o = Relu(p)", f", float[{B}, {N}, {D}] o", {}, "read by others"),
        ("o = MatMul(x, w)", f", float[{B}, {N}, {D}] o", {}, "read by others"),
    ],
)
def test_what_is_left_alone_says_why(
    tail: str, outputs: str, attributes: dict[str, int], reason: str, run_pass: Any
) -> None:
    model = turned(tail, outputs, **attributes)
    outcome = agrees(model, run_pass)
    assert outcome.changed == 0
    assert reason in outcome.refused[0].reason
    assert "RotaryEmbedding" in operators(model)


def test_a_table_that_is_computed(run_pass: Any) -> None:
    """Of symbolic sizes the table comes from height and width, its shape unknown here."""
    model = turned()
    (rotation,) = [n for n in model.graph if n.op_type == "RotaryEmbedding"]
    for place in (2, 3):
        table = rotation.inputs[place]
        made = ir.node("Neg", [table])
        model.graph.insert_before(rotation, made)
        rotation.replace_input_with(place, made.outputs[0])
    assert agrees(model, run_pass).changed == 1
    assert operators(model).count("Gather") == 2


def test_other_targets_stay(run_pass: Any) -> None:
    model = turned()
    for target in (Target.ORT, Target.PORTABLE):
        outcome = run_pass(RotaryHalves, model, target=target)
        assert (outcome.changed, outcome.refused) == (0, [])
