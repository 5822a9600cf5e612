"""Small graphs as text, passes run on them, results compared in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest

from exporters.passes.base import GraphPass, PassContext, PassOutcome
from vitpe_deploy.request import Target

Arrays: TypeAlias = dict[str, np.ndarray]


def graph(text: str, **initializers: np.ndarray) -> ir.Model:
    """A graph in onnx's own text form, at opset 20, with shapes inferred."""
    proto = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1, "vitpe" : 1]>\n{text}'
    )
    for name, array in initializers.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def execute(model: ir.Model, **inputs: np.ndarray) -> Arrays:
    """Outputs of ONNX Runtime without its own optimisations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


@pytest.fixture
def run_pass() -> Callable[..., PassOutcome]:
    """Run one pass in place."""

    def run(kind: type[GraphPass], model: ir.Model, **options: Any) -> PassOutcome:
        context = PassContext(
            options.get("target", Target.ORT),
            options.get("opset", 20),
            half=options.get("half", False),
        )
        return kind().run(model, context)

    return run


def operators(model: ir.Model) -> list[str]:
    """Operator names in order."""
    return [node.op_type for node in model.graph]
