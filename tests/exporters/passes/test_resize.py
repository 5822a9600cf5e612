"""A Resize of a table, against torch.nn.functional.interpolate, as a constant and as products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
import torch
import torch.nn.functional as F

from exporters.passes.resize import UnfoldResize

TABLE = np.random.default_rng(0).standard_normal((1, 5, 6, 7)).astype(np.float32)
RULES = [
    ('mode = "cubic", cubic_coeff_a = -0.75', {"mode": "bicubic"}),
    ('mode = "cubic", cubic_coeff_a = -0.5, antialias = 1', {"mode": "bicubic", "antialias": True}),
    ('mode = "linear"', {"mode": "bilinear"}),
]


def _model(attributes: str) -> ir.Model:
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g (int64[4] size) => (float[a, b, c, d] out) {{
        out = Resize <{attributes}> (table, , , size)
    }}"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(TABLE, "table"))
    return ir.from_proto(proto)


@pytest.mark.parametrize(("attributes", "options"), RULES)
def test_products_at_sizes_that_the_graph_computes(
    attributes: str, options: dict[str, Any], run_pass: Callable[..., Any]
) -> None:
    model = _model(attributes)
    assert run_pass(UnfoldResize, model).changed == 1
    assert "Resize" not in [node.op_type for node in model.graph]
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for size in ((9, 4), (3, 11), (6, 7)):
        (given,) = session.run(None, {"size": np.array([1, 5, *size], dtype=np.int64)})
        right = F.interpolate(torch.from_numpy(TABLE.copy()), size, **options).numpy()
        np.testing.assert_allclose(given, right, atol=2e-6)


def test_another_cubic_is_refused_with_its_coefficient(run_pass: Callable[..., Any]) -> None:
    outcome = run_pass(UnfoldResize, _model('mode = "cubic", cubic_coeff_a = -0.6'))
    assert outcome.changed == 0
    assert "-0.6" in outcome.refused[0].reason
