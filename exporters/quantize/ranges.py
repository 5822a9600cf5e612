"""The range of values inside a float32 graph on calibration data."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from exporters.onnx_file import write_onnx
from vitpe_deploy.calibration import Array
from vitpe_deploy.runtimes import open_runtime


def observe_ranges(
    model: ir.Model, names: Sequence[str], batches: Sequence[Array], *, threads: int | None
) -> Mapping[str, tuple[float, float]]:
    """Smallest and largest number of values of a float32 graph over all batches.

    Values that are not float are left out; NaN comes back as an infinite range.
    """
    spans: dict[str, tuple[float, float]] = {}
    inner = tuple(dict.fromkeys(names))
    with tempfile.TemporaryDirectory(prefix="vitpe-calibrate-") as folder:
        path = Path(folder) / "observed.onnx"
        write_onnx(model, path, {})
        extra = tuple(n for n in inner if n not in {v.name for v in model.graph.inputs})
        with open_runtime("onnxruntime", path, threads=threads, extra_outputs=extra) as runtime:
            (entry,) = runtime.inputs
            for batch in batches:
                outputs = {entry.name: batch, **runtime.run({entry.name: batch})}
                for name in inner:
                    array = outputs[name]
                    if array.dtype != np.float32 or array.size == 0:
                        continue
                    low, high = float(array.min()), float(array.max())
                    if not np.isfinite((low, high)).all():
                        low, high = -np.inf, np.inf
                    before = spans.get(name, (low, high))
                    spans[name] = (min(before[0], low), max(before[1], high))
    return spans
