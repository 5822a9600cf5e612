"""A benchmark report whose numbers are known: made here, measured nowhere."""

from __future__ import annotations

import numpy as np

from vitpe_deploy.bench import statistics
from vitpe_deploy.bench.documents import (
    AccuracyRecord,
    AgreementRecord,
    BenchReport,
    FailedRow,
    HarnessRecord,
    HostRecord,
    LatencyRecord,
    ResultRow,
)
from vitpe_deploy.bench.run import comparisons
from vitpe_deploy.results import LayerRow, LayerVerdict

ROUNDS, PER_ROUND = 20, 3
PEAK_GFLOPS = 200.0
SCRIPT = "<script>alert(1)</script>"


def row(
    encoding: str,
    runtime: str,
    size: int,
    base_ms: float,
    *,
    precision: str = "fp32",
    error: float | None = 1e-6,
    top1: float | None = None,
) -> ResultRow:
    """A row with ``base_ms`` as its median, 2 % noise, and two outliers at twice that."""
    generator = np.random.default_rng(size)
    samples = base_ms * (1 + 0.02 * generator.standard_normal(ROUNDS * PER_ROUND))
    samples[5:7] = 2 * base_ms
    summary = statistics.summarise(list(samples))
    file = f"vit_tiny_patch16_224+{encoding}-{size}x{size}-{precision}.onnx"
    agreement = None
    if error is not None:
        agreement = AgreementRecord(
            reference="pytorch", max_rel=error, cosine=1 - error, top1=1.0, limit=1e-4,
            passed=error <= 1e-4,
        )  # fmt: skip
    return ResultRow(
        id=f"{file} {runtime} CPU {size}x{size} b1 t2 latency",
        artifact=f"out/{file}",
        sha256="0" * 64,
        model="vit_tiny_patch16_224",
        encoding=encoding,
        precision_stored=precision,
        runtime=runtime,
        device="CPU",
        device_name="a CPU",
        precision_asked="f32",
        precision_executed="f32",
        mode="latency",
        streams=1,
        threads=2,
        batch=1,
        resolution=(size, size),
        samples_ms=tuple(float(v) for v in samples),
        samples_per_round=(PER_ROUND,) * ROUNDS,
        outliers=statistics.outliers(list(samples)),
        latency_ms=LatencyRecord(
            **{name: getattr(summary, name) for name in LatencyRecord.model_fields}
        ),
        throughput_ips=1e3 / summary.median,
        gflops_per_image=0.1 * base_ms,
        share_of_peak=0.1 * base_ms / (summary.median / 1e3) / PEAK_GFLOPS,
        compile_ms=40.0,
        load_ms=90.0,
        first_ms=2 * base_ms,
        rss_loaded_bytes=120 << 20,
        peak_rss_bytes=160 << 20,
        first_peak_bytes=40 << 20,
        size_bytes=22_900_000 if precision == "fp32" else 6_100_000,
        warmup_runs=10,
        agreement=agreement,
        accuracy=None
        if top1 is None
        else AccuracyRecord(top1=top1, images=200, reference_top1=0.95),
        warnings=() if error is not None else ("agreement with PyTorch is not known: no torch",),
    )


def layer_verdict(runtime: str, errors: list[float]) -> LayerVerdict:
    """Errors of the blocks of one artifact; the limit is 1e-4."""
    rows = tuple(
        LayerRow(
            artifact="out/a.onnx", runtime=runtime, resolution=(224, 224), block=k,
            max_abs=error, max_rel=error, limit=1e-4, passed=error <= 1e-4,
        )
        for k, error in enumerate(errors)
    )  # fmt: skip
    bad = next((k for k, error in enumerate(errors) if error > 1e-4), None)
    return LayerVerdict(
        artifact="out/a.onnx", runtime=runtime, resolution=(224, 224), first_failing_block=bad,
        rows=rows,
    )  # fmt: skip


def example(*, wrong: bool = True) -> BenchReport:
    """Two encodings, two engines, three sizes, and int8; the fastest int8 row is wrong."""
    rows = [
        row(encoding, runtime, size, base * (size / 224) ** 2.2 * factor)
        for encoding, base in (("learned-1d", 12.0), ("rope-2d", 13.5))
        for runtime, factor in (("onnxruntime", 1.0), ("openvino", 0.93))
        for size in (224, 384, 512)
    ]
    rows += [
        row("learned-1d", "onnxruntime", 224, 7.5, precision="int8", error=3e-5),
        row("learned-1d", "openvino", 224, 5.5, precision="int8", error=0.3 if wrong else 2e-5),
    ]
    rows.sort(key=lambda r: r.resolution)
    lost = FailedRow(id="x.onnx openvino GPU", kind="device", message=SCRIPT, hint="Look.")
    return BenchReport(
        host=HostRecord(
            cpu="an example CPU @ 2.0 GHz", cores_used=2, cpu_quota=2.0, isa=("avx2", "fma"),
            memory_bytes=16 << 30, os="Linux 6.1 x86_64",
            versions={"vitpe-deploy": "0.1.0", "onnxruntime": "1.32.0"},
            gemm_peak_gflops=PEAK_GFLOPS,
        ),
        results=tuple(rows),
        comparisons=comparisons(rows),
        failed=(lost,) if wrong else (),
        layers=(
            layer_verdict("onnxruntime", [1e-7 * 1.5**k for k in range(12)]),
            layer_verdict("openvino", [2e-7 * 1.4**k for k in range(12)]),
        ),
        harness=HarnessRecord(
            sample_overhead_ms=0.004, parent_rss_bytes=80 << 20, child_rss_bytes=60 << 20
        ),
        warnings=("the machine is busy (load 1.4 on 2 CPUs): end other work.",) if wrong else (),
    )  # fmt: skip
