"""Symbolic sizes with bounds, for devices that reserve memory by them.

OpenVINO's GPU plugin takes a dynamic input as ``1..640`` far better than as ``?``: without an upper
bound it compiles and allocates again for every size that it meets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vitpe_deploy.limits import AxisLimit


def bound_shapes(model: Any, limits: Iterable[AxisLimit]) -> Any:
    """Give symbolic dimensions of the one input the bounds that the file carries.

    Args:
        model: an ``openvino.Model``, changed in place. Static dimensions stay as they are.
        limits: axes without an upper limit are left open.

    Returns:
        The model.
    """
    from vitpe_deploy.runtimes.openvino import import_openvino

    dimension = import_openvino().Dimension
    known = {limit.axis: limit for limit in limits if limit.high is not None}
    shape = model.inputs[0].get_partial_shape()
    wanted = [
        dimension(known[axis].low, known[axis].high) if dim.is_dynamic and axis in known else dim
        for axis, dim in enumerate(shape)
    ]
    if any(limit.axis < len(shape) for limit in known.values()):
        model.reshape({model.inputs[0]: wanted})
    return model
