"""Which fused attention of ONNX Runtime is the faster one, by tokens and heads.

    python benchmarks/attention_kernels.py

``com.microsoft.MultiHeadAttention`` and ``Attention`` of opset 23 on the same numbers [B, N, D],
with a bias where the network has one: CPU time of one thread, both interleaved, the lowest of many.
The pass ``standard-attention`` takes the second one up to as many tokens as its FEW says. Exits 1
when the two give different numbers.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

WARMUP, SEED = 3, 0
CONTRIB = "com.microsoft"
CLOSE = 1e-4


@dataclass(frozen=True, slots=True)
class Case:
    """Attention of B sequences of N tokens in M heads of d channels."""

    network: str
    batch: int
    tokens: int
    heads: int
    width: int
    bias: bool = False


CASES = (
    Case("Swin-T, stage 1", 64, 49, 3, 32, bias=True),
    Case("Swin-T, stage 3", 4, 49, 12, 32, bias=True),
    Case("Swin V2-T, stage 1", 64, 64, 3, 32, bias=True),
    Case("CLIP text B/32", 1, 77, 8, 64, bias=True),
    Case("ViT-S/16 at 224", 1, 197, 6, 64),
    Case("BEiT-B/16 at 224", 1, 197, 12, 64, bias=True),
    Case("ViT-S/16 at 336", 1, 441, 6, 64),
    Case("ViT-S/16 at 384", 1, 577, 6, 64),
    Case("DINOv2-S/14 at 518", 1, 1370, 6, 64),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Print one row per case. Gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args(argv).rounds
    sys.stdout.write("| attention of | tokens | MultiHeadAttention ms | Attention ms | ratio |\n")
    sys.stdout.write("|---|---|---|---|---|\n")
    wrong = 0
    for case in CASES:
        feeds = numbers(case)
        nodes = {name: session(case, name) for name in ("MultiHeadAttention", "Attention")}
        one, other = (s.run(None, dict(feeds))[0] for s in nodes.values())
        wrong += bool(np.abs(one - other).max() > CLOSE)
        contrib, standard = lowest(
            [partial(s.run, None, dict(feeds)) for s in nodes.values()], rounds
        )
        sys.stdout.write(
            f"| {case.network} | {case.tokens} | {contrib:.3f} | {standard:.3f} "
            f"| {standard / contrib:.2f} |\n"
        )
    return 1 if wrong else 0


def numbers(case: Case) -> Mapping[str, np.ndarray]:
    """Query, key and value from N(0, 1)."""
    draw = np.random.default_rng(SEED)
    shape = (case.batch, case.tokens, case.heads * case.width)
    return {name: draw.standard_normal(shape).astype(np.float32) for name in "qkv"}


def session(case: Case, operator: str) -> onnxruntime.InferenceSession:
    """One node on one thread."""
    shape = [case.batch, case.tokens, case.heads * case.width]
    scale, constants = case.width**-0.5, []
    if case.bias:
        bias = np.random.default_rng(SEED).standard_normal((case.heads, case.tokens, case.tokens))
        constants = [numpy_helper.from_array(bias[None].astype(np.float32), "bias")]
    if operator == "Attention":
        heads = {"q_num_heads": case.heads, "kv_num_heads": case.heads}
        node = helper.make_node(operator, [*"qkv", *(["bias"] * case.bias)], ["y"], scale=scale)
        node.attribute.extend(helper.make_attribute(k, v) for k, v in heads.items())
    else:
        inputs = [*"qkv", *(["", "", "bias"] if case.bias else [])]
        node = helper.make_node(
            operator, inputs, ["y"], domain=CONTRIB, num_heads=case.heads, scale=scale
        )
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "qkv"]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]
    model = helper.make_model(
        helper.make_graph([node], operator, inputs, outputs, constants),
        opset_imports=[helper.make_opsetid("", 23), helper.make_opsetid(CONTRIB, 1)],
        ir_version=10,
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def lowest(runs: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Milliseconds of CPU time, one number per run."""
    best = [float("inf")] * len(runs)
    for number in range(WARMUP + rounds):
        for place, run in enumerate(runs):
            start = time.process_time()
            run()
            if number >= WARMUP:
                best[place] = min(best[place], (time.process_time() - start) * 1e3)
    return best


if __name__ == "__main__":
    sys.exit(main())
