"""Floating point operations of one run, counted from the graph of the file.

    python -m vitpe_deploy.bench.flops PATH SHAPE

OpenVINO's reader is used for every format: it belongs to the base install, infers shapes at the
size asked for, and spells out contrib operators. Counted are the operators that grow with the
product of three sizes: matrix products, convolutions, fused attention; a multiply and an add are
two. Norms, softmax and activations are a percent or two in a ViT and are left out.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def gflops(path: Path, shape: Sequence[int]) -> float | None:
    """Billions of operations for one input of ``shape``; None where the graph cannot be read.

    Runs in a process of its own, so that this one stays free of engines.
    """
    done = subprocess.run(
        [sys.executable, "-m", "vitpe_deploy.bench.flops", str(path), json.dumps(list(shape))],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return None
    return float(json.loads(done.stdout.splitlines()[-1])) / 1e9


def count(path: Path, shape: Sequence[int]) -> int:
    """Operations for one input of ``shape``."""
    from vitpe_deploy.runtimes.openvino import shared_core

    model = shared_core().read_model(str(path))
    model.reshape({model.inputs[0]: list(shape)})
    return sum(operations(node) for node in model.get_ordered_ops())


def operations(node: Any) -> int:
    """Operations of one node with static shapes; 0 for kinds that are not counted."""
    kind = node.get_type_name()
    if kind not in ("MatMul", "Convolution", "GroupConvolution", "ScaledDotProductAttention"):
        return 0
    shapes = [[int(n) for n in port.get_shape()] for port in node.inputs()]
    out = math.prod(int(n) for n in node.output(0).get_shape())
    first, second = shapes[:2]
    if kind == "MatMul":
        transposed = bool(node.get_attributes().get("transpose_a", False))
        return 2 * out * (first[-2] if transposed and len(first) > 1 else first[-1])
    if kind == "Convolution":  # weights [out, in, *kernel]
        return 2 * out * math.prod(second[1:])
    if kind == "GroupConvolution":  # weights [groups, out, in, *kernel]
        return 2 * out * math.prod(second[2:])
    # q [..., S, E] with k [..., L, E], then the weights [..., S, L] with v [..., L, Ev]
    pairs = math.prod(first[:-1]) * second[-2]
    return 2 * pairs * (first[-1] + shapes[2][-1])


def main() -> int:
    """The counting process: one number on stdout."""
    total = count(Path(sys.argv[1]), json.loads(sys.argv[2]))
    sys.stdout.write(f"\n{total}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
