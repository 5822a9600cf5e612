"""Constants are folded, broadcasts are not; what only a debugger reads leaves the file."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from exporters.passes import check_skips
from exporters.passes.fold_constants import FoldConstants
from exporters.passes.tidy import Tidy
from tests.exporters.passes.conftest import execute, graph, operators
from vitpe_deploy.errors import UsageError

RNG = np.random.default_rng(2)


def test_chain_on_a_table_becomes_one_constant(run_pass: Any) -> None:
    text = """
    positions (float[1, 24, 8] x) => (float[1, 24, 8] y) {
        turned = Transpose <perm = [1, 0]> (matrix)
        made = MatMul(turned, table)
        flat = Reshape(made, shape)
        y = Add(x, flat)
    }"""
    matrix = RNG.standard_normal((6, 24)).astype(np.float32)
    table = RNG.standard_normal((6, 8)).astype(np.float32)
    model = graph(text, matrix=matrix, table=table, shape=np.array([1, 24, 8], dtype=np.int64))
    outcome = run_pass(FoldConstants, model)
    assert outcome.changed == 3
    assert operators(model) == ["Add"]
    (constant,) = model.graph.initializers.values()
    np.testing.assert_allclose(constant.const_value.numpy()[0], matrix.T @ table, rtol=1e-6)


def test_broadcast_of_a_constant_is_left_alone(run_pass: Any) -> None:
    text = """
    cls (float[4, 8] x) => (float[4, 8] y) {
        wide = Expand(row, shape)
        y = Add(x, wide)
    }"""
    row = RNG.standard_normal((1, 8)).astype(np.float32)
    model = graph(text, row=row, shape=np.array([4, 8], dtype=np.int64))
    outcome = run_pass(FoldConstants, model)
    assert outcome.changed == 0
    assert "larger" in outcome.refused[0].reason


@pytest.mark.parametrize(("rows", "kept"), [("n", []), ("1", ["Expand"]), ("m", ["Expand"])])
def test_tidy_skips_an_expand_to_the_same_shape(rows: str, kept: list[str], run_pass: Any) -> None:
    text = f"""
    idle (float[{rows}, 4] x, float[n, 4] z) => (float[n, 4] y) {{
        wide = Expand(x, shape)
        y = Add(wide, z)
    }}"""
    model = graph(text, shape=np.array([3, 4], dtype=np.int64))
    (expand,) = [n for n in model.graph if n.op_type == "Expand"]
    expand.outputs[0].shape = ir.Shape(["n", 4])
    run_pass(Tidy, model)
    assert operators(model) == [*kept, "Add"]
    if rows == "1":
        x, z = np.ones((1, 4), np.float32), np.ones((3, 4), np.float32)
        assert (execute(model, x=x, z=z)["y"] == 2).all()


def test_tidy_shares_equal_weights_and_drops_debris(run_pass: Any) -> None:
    text = """
    debris (float[2, 2] x) => (float[2, 2] y) {
        a = Add(x, one)
        b = Add(a, same)
        unread = Mul(b, other)
        y = Add(b, other)
    }"""
    one, other = np.ones((2, 2), np.float32), np.full((2, 2), 3, np.float32)
    model = graph(text, one=one, same=one.copy(), other=other, never=other * 2)
    model.metadata_props["source"] = "/home/someone/model.py"
    next(iter(model.graph)).metadata_props["stack"] = "/home/someone/model.py:12"
    x = RNG.standard_normal((2, 2)).astype(np.float32)
    before = execute(model, x=x)["y"]
    run_pass(Tidy, model)
    assert operators(model) == ["Add", "Add", "Add"]
    assert len(model.graph.initializers) == 2
    assert not model.metadata_props
    assert all(not node.metadata_props for node in model.graph)
    np.testing.assert_array_equal(execute(model, x=x)["y"], before)


@pytest.mark.parametrize(
    ("name", "words"),
    [("tidy", "would be wrong"), ("unread-token", "is not a pass"), ("", "is not a pass")],
)
def test_passes_that_cannot_be_skipped(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_skips([name])


def test_optional_passes_can_be_skipped() -> None:
    check_skips(["constants", "unread-tokens"])
