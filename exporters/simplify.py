"""onnxsim on the structure of a graph, with the large weights kept out of its sight.

onnxsim copies a model several times; on a ViT nearly all of those bytes are weights that it has
nothing to do with. Large initializers are shown to it as inputs and put back afterwards. It must
not turn MatMul + Add into Gemm: on activations of rank 3 that costs a Reshape on either side, and
with symbolic sizes a Shape, Slice and Concat as well.
"""

from __future__ import annotations

import contextlib
import io

import onnx
import onnx_ir as ir

from vitpe_deploy.errors import ExportFailedError
from vitpe_deploy.runtimes.onnxruntime import import_onnxruntime

_LARGE_BYTES = 1024
_SKIPPED = ["fuse_matmul_add_bias_into_gemm", "fuse_matmul_add_bias_into_gemm_batched"]


def simplify(model: ir.Model) -> ir.Model:
    """The simplified graph; inputs, outputs, their shapes and large initializers stay as they were.

    Raises:
        ExportFailedError: onnxsim refused the graph.
    """
    import_onnxruntime()  # onnxsim may import it too, and not without telemetry
    import onnxsim

    weights = detach_weights(model.graph)
    try:
        proto = ir.to_proto(model)
    finally:
        attach_weights(model.graph, weights)
    noise = io.StringIO()
    try:
        with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
            simplified, _ = onnxsim.simplify(
                proto, skipped_optimizers=_SKIPPED, mutable_initializer=False
            )
    except Exception as problem:
        reason = str(problem).strip().splitlines() or [type(problem).__name__]
        raise ExportFailedError(
            f"onnxsim could not simplify the graph: {reason[0][:200]}",
            hint="Export with --no-simplify.",
        ) from problem
    result = _without_inner_shapes(simplified)
    attach_weights(result.graph, weights)
    _keep_declared_shapes(model.graph, result.graph)
    return result


def detach_weights(graph: ir.Graph) -> dict[str, ir.Value]:
    """Large initializers become inputs. Gives them by name."""
    weights = {}
    for name, value in list(graph.initializers.items()):
        if value.const_value is None or value.const_value.nbytes < _LARGE_BYTES:
            continue
        weights[name] = value
        graph.initializers.pop(name)
        graph.inputs.append(value)
    return weights


def attach_weights(graph: ir.Graph, weights: dict[str, ir.Value]) -> None:
    """Inputs that stand for weights become initializers again."""
    for value in list(graph.inputs):
        name = value.name or ""
        if name in weights:
            graph.inputs.remove(value)
            value.const_value = weights[name].const_value
            if value.uses() or value.is_graph_output():
                graph.register_initializer(value)


def _without_inner_shapes(proto: onnx.ModelProto) -> ir.Model:
    del proto.graph.value_info[:]
    return ir.from_proto(proto)


def _keep_declared_shapes(before: ir.Graph, after: ir.Graph) -> None:
    """Symbolic shapes are the tracer's: onnxsim replaces expressions and lone names by its own."""
    inputs = {value.name: value for value in before.inputs}
    pairs = [(inputs[v.name], v) for v in after.inputs if v.name in inputs]
    for old, new in (*pairs, *zip(before.outputs, after.outputs, strict=True)):
        new.shape, new.type = old.shape, old.type
