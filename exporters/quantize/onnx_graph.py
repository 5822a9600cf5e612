"""One finished float32 graph in the precision asked for, as an ONNX file will hold it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx_ir as ir

from exporters.onnx_file import write_onnx
from exporters.quantize import fp16
from exporters.quantize.candidates import FLOAT, Candidate, choose
from exporters.quantize.int8_ort import activations_of, quantize_dynamic, quantize_static
from exporters.quantize.job import QuantizedGraph, QuantizeJob
from exporters.quantize.ranges import observe_ranges
from exporters.quantize.weights_only import compress_weights
from vitpe_deploy.bench.host import read_host
from vitpe_deploy.errors import UnsupportedError
from vitpe_deploy.request import Precision

_DOT_PRODUCTS = frozenset({"avx_vnni", "avx512_vnni", "amx_int8", "asimddp", "i8mm"})
"""Instruction sets that add four u8 x s8 products in 32 bits; AVX2 adds two in 16 and saturates."""


def quantize_graph(model: ir.Model, job: QuantizeJob) -> QuantizedGraph:
    """A copy of ``model`` in the precision of the job; ``model`` stays as it is.

    Raises:
        UnsupportedError: the graph has nothing to quantise.
    """
    if job.precision is Precision.FP16:
        copy = model.clone()
        seen = (*job.data.calibrate, *job.data.judge)[:_FEW]
        ranges = observe_ranges(model, fp16.float_values(model), seen, threads=job.threads)
        fp16.convert(copy, ranges)
        return QuantizedGraph(copy, "fp16", ())
    if job.precision is Precision.INT8_WEIGHTS:
        copy = model.clone()
        _require_layers(compress_weights(copy))
        return QuantizedGraph(copy, "int8-weights", ())
    return _int8(model, job)


_FEW = 16
"""Batches that the ranges of fp16 are looked up on: it needs the order of magnitude alone."""


def _int8(model: ir.Model, job: QuantizeJob) -> QuantizedGraph:
    made = {method: _make(model, method, job) for method in _methods(job.method)}
    with tempfile.TemporaryDirectory(prefix="vitpe-int8-") as folder:
        plain, *candidates = (
            Candidate(method, write_onnx(graph, Path(folder) / f"{method}.onnx", {}).paths)
            for method, graph in ((FLOAT, model), *made.items())
        )
        chosen, records = choose(plain, candidates, "onnxruntime", job)
    return QuantizedGraph(made[chosen], chosen, records)


def _methods(asked: str) -> tuple[str, ...]:
    if asked != "auto":
        return (asked,)
    reduced = not _DOT_PRODUCTS.intersection(read_host().isa)
    return ("dynamic-reduced", "static-reduced") if reduced else ("dynamic", "static")


def _make(model: ir.Model, method: str, job: QuantizeJob) -> ir.Model:
    copy = model.clone()
    bits = 7 if method.endswith("-reduced") else 8
    if method.startswith("dynamic"):
        _require_layers(quantize_dynamic(copy, bits=bits))
    else:
        ranges = observe_ranges(copy, activations_of(copy), job.data.calibrate, threads=job.threads)
        _require_layers(quantize_static(copy, ranges, bits=bits))
    return copy


def _require_layers(count: int) -> None:
    if count == 0:
        raise UnsupportedError(
            "--precision int8 finds no linear layer with constant weights in this graph",
            hint="Use fp32 or fp16.",
        )
