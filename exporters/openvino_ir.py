"""OpenVINO IR from an ONNX file of ours.

Weights stay in fp32 unless asked for in fp16 (which is OpenVINO's default), inputs and outputs
keep their ONNX names, and operations are named by their place: the converter's own names carry
process-wide counters, so that two conversions of one file would differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitpe_deploy.errors import ExportFailedError
from vitpe_deploy.files import disk_refusal
from vitpe_deploy.limits import AxisLimit
from vitpe_deploy.runtimes.openvino import import_openvino, shared_core


def convert(
    onnx_path: Path,
    xml_path: Path,
    metadata: Mapping[str, str],
    *,
    change: Callable[[Any, Callable[[], Any]], Any] | None = None,
    half_weights: bool = False,
    limits: Sequence[AxisLimit] = (),
) -> tuple[tuple[Path, Path], int]:
    """Write ``xml_path`` and its ``.bin``. Gives both, and the number of operations.

    Args:
        onnx_path: the graph.
        xml_path: where it goes.
        metadata: written under ``framework``, as OpenVINO keeps that of ONNX.
        change: makes another model of the one read, with a function that reads a fresh one.
        half_weights: weights in float16; what computes with them is the plugin's choice.
        limits: both ends of each become bounds of the input's dimension, which OpenVINO itself
            enforces; of a step the IR knows nothing.

    Raises:
        ExportFailedError: OpenVINO cannot read the graph, or not write the IR.
        OSError: the disk refuses to take it.
    """
    openvino = import_openvino()
    try:
        model = shared_core().read_model(str(onnx_path))
    except RuntimeError as problem:
        lines = [line for line in str(problem).splitlines() if line.strip()]
        raise ExportFailedError(f"OpenVINO cannot read the graph: {lines[-1][:200]}") from problem
    if change is not None:
        model = change(model, lambda: shared_core().read_model(str(onnx_path)))
    _bound(openvino, model, limits)
    _name_by_place(model)
    for key, value in sorted(metadata.items()):
        model.set_rt_info(value, ["framework", key])
    try:
        openvino.save_model(model, str(xml_path), compress_to_fp16=half_weights)
    except RuntimeError as problem:  # "iostream error", whatever the disk said
        refused = disk_refusal(xml_path.parent)
        if refused is not None:
            raise refused from problem
        raise ExportFailedError(f"OpenVINO cannot write the IR: {problem}") from problem
    return (xml_path, xml_path.with_suffix(".bin")), len(model.get_ops())


def _bound(openvino: Any, model: Any, limits: Sequence[AxisLimit]) -> None:
    """Write both ends of each range into the shape of the input; open ends stay symbolic."""
    ranges = {li.axis: openvino.Dimension(li.low, li.high) for li in limits if li.high is not None}
    if not ranges:
        return
    port = model.input(0)
    dims = enumerate(port.get_partial_shape())
    shape = openvino.PartialShape([ranges.get(axis, dim) for axis, dim in dims])
    model.reshape({port: shape})


def _name_by_place(model: Any) -> None:
    """Friendly names from inputs, outputs and execution order."""
    for place, operation in enumerate(model.get_ordered_ops()):
        kind = operation.get_type_name()
        if kind == "Parameter":
            operation.set_friendly_name(operation.output(0).get_any_name())
        elif kind == "Result":
            operation.set_friendly_name(
                f"{operation.input(0).get_source_output().get_any_name()}/result"
            )
        else:
            operation.set_friendly_name(f"{kind}_{place}")
    model.set_friendly_name("main_graph")
