"""ONNX Runtime's own format: a flatbuffer that minimal builds for phones and browsers load.

The graph is optimised by ONNX Runtime as far as every CPU goes along (its extended level: layouts
that belong to one CPU are left out), because a minimal build cannot optimise. Beside the file goes
the list of the operators and types it needs, which is what such a build is made from.

Two conversions of one graph are not equal byte for byte: ONNX Runtime writes a table of operator
types in the order of a hash that every process seeds anew. Graph and weights are the same.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitpe_deploy.errors import ExportFailedError
from vitpe_deploy.runtimes.base import reason
from vitpe_deploy.runtimes.onnxruntime import import_onnxruntime

_FATAL_ONLY = 4


def write_ort(onnx_path: Path, ort_path: Path) -> None:
    """Convert an ONNX file, its metadata included.

    Raises:
        ExportFailedError: ONNX Runtime cannot load the graph, or it is over the 2 GB of the format.
    """
    engine = import_onnxruntime()
    options = engine.SessionOptions()
    options.log_severity_level = _FATAL_ONLY
    options.graph_optimization_level = engine.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(ort_path)
    options.add_session_config_entry("session.save_model_format", "ORT")
    try:
        engine.InferenceSession(str(onnx_path), options, providers=["CPUExecutionProvider"])
    except Exception as problem:  # its exception classes share no base but Exception
        raise ExportFailedError(
            f"ONNX Runtime cannot write the .ort format: {reason(problem)}",
            hint="Use --format onnx.",
        ) from problem
    if not ort_path.is_file():
        raise ExportFailedError(
            "ONNX Runtime wrote no .ort file, as it does over the 2 GB of that format",
            hint="Use --format onnx, or --precision fp16 or int8.",
        )


def write_operators(ort_path: Path, config_path: Path) -> None:
    """List what a minimal build needs for the file: operators by domain and opset, and types."""
    tools: Any = importlib.import_module("onnxruntime.tools.ort_format_model")
    with _quiet():
        tools.create_config_from_models([ort_path], config_path, enable_type_reduction=True)
    # The tool names the file it read; a list is the same wherever it was made.
    lines = config_path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not line.startswith("#")]
    config_path.write_text("\n".join([f"# {ort_path.name}", *kept]) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The tool tells its own story on stderr."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
