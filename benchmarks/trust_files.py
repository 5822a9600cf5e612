"""Files whose cost is known: chains of products, and exported reference models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LAYERS, EXTRA = 40, 2
TOKENS, WIDTH = 197, 192
"""Some milliseconds a run: many short rounds see through a machine that drifts, few long ones do
not."""


def write_chain(path: Path, layers: int) -> Path:
    """``x`` [1, 197, 192] through square products with one orthogonal matrix each.

    Orthogonal, so that values neither grow nor vanish however long the chain is. A file that is
    there is left as it is.
    """
    if path.is_file():
        return path
    generator = np.random.default_rng(0)
    nodes, weights = [], []
    for k in range(layers):
        weight = np.linalg.qr(generator.standard_normal((WIDTH, WIDTH)))[0].astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{k}"))
        names = ["x" if k == 0 else f"h{k}", "y" if k == layers - 1 else f"h{k + 1}"]
        nodes.append(helper.make_node("MatMul", [names[0], f"w{k}"], [names[1]]))
    shape = [1, TOKENS, WIDTH]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        weights,
    )
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(path))
    return path


def export_model(model: str, folder: Path, *flags: str) -> Path:
    """The file that ``vitpe-export MODEL`` writes, unverified; kept when it is there."""
    target = folder / "-".join([model.replace(":", "-"), *(f.strip("-") for f in flags)])
    found = sorted(target.glob("*.onnx"))
    if not found:
        command = ["-m", "vitpe_deploy", "export", model, *flags, "--no-verify", "-q"]
        subprocess.run(
            [sys.executable, *command, "-o", str(target)], check=True, stdout=subprocess.DEVNULL
        )
        found = sorted(target.glob("*.onnx"))
    return found[0]
