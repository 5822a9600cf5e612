"""What an export writes down about its files: manifests, and rows of the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from exporters.proof import SpelledGraph, StagedArtifact
from vitpe_deploy import __version__
from vitpe_deploy.bucket_index import Bucket, BucketIndex
from vitpe_deploy.engine_parity import verdict_of
from vitpe_deploy.inputs import InputLayout
from vitpe_deploy.manifest import Manifest, PairingRecord, SourceRecord, TensorRecord
from vitpe_deploy.request import ExportRequest, Format, Resolution, Target
from vitpe_deploy.results import (
    ArtifactRecord,
    CandidateRecord,
    LayerVerdict,
    ParityRow,
    PassRecord,
    Refusal,
)

if TYPE_CHECKING:
    from vitpe_deploy.sources.base import LoadedModel, Source


def make_manifest(
    request: ExportRequest,
    source: Source,
    loaded: LoadedModel,
    chosen: SpelledGraph,
    *,
    kind: Format,
    target: Target,
    size: Resolution | None,
    layout: InputLayout,
    rule: str | None,
    weights_sha256: str,
) -> Manifest:
    """The manifest of a graph before it is written and proved.

    Args:
        request: what was asked for.
        source: where the model comes from.
        loaded: the model.
        chosen: the graph that is written.
        kind: format of the file.
        target: whose kernels the graph is spelled for.
        size: the static size, or None when height and width are symbolic.
        layout: what the file takes.
        rule: how positions were resampled.
        weights_sha256: hash of the model's own weights.
    """
    facts, span = loaded.facts, request.size_range
    return Manifest(
        version=__version__,
        files=(),
        format=kind.value,
        sha256="",
        size_bytes=0,
        model=facts.spec,
        source=None if source.anonymous else SourceRecord.from_request(request.model),
        weights=loaded.weights,
        weights_sha256=weights_sha256,
        reference=loaded.reference,
        encoding=facts.encoding,
        encoding_params=dict(facts.encoding_params),
        resample_rule=rule,
        native_resolution=None
        if facts.native is None
        else (facts.native.height, facts.native.width),
        resolution=None if size is None else (size.height, size.width),
        resolution_range=None if span is None else (span.low, span.high, span.step),
        patch_size=facts.grid_divisor,
        prefix_tokens=facts.prefix_tokens,
        dynamic=request.dynamic.value,
        batch=None if request.dynamic.batch else request.batch,
        precision=request.precision.value,
        target=target.value,
        opset=chosen.model.opset_imports.get("", request.opset),
        inputs=tuple(_tensor_record(v) for v in chosen.model.graph.inputs),
        outputs=tuple(_tensor_record(v) for v in chosen.model.graph.outputs),
        layer_values=chosen.layer_values,
        kept_tokens=chosen.kept_tokens,
        preprocess=facts.preprocess.as_dict(),
        labels=facts.labels,
        pairing=None if loaded.pairing is None else PairingRecord(**asdict(loaded.pairing)),
        input_layout=layout.as_dict(),
        tolerance={
            "rtol": request.verify.tolerance.rtol,
            "atol": request.verify.tolerance.atol,
        },
        verdict="unverified",
    )


def with_proof(
    manifest: Manifest, rows: Sequence[ParityRow], layers: Sequence[LayerVerdict]
) -> Manifest:
    """The manifest with what parity found, rows naming the file alone."""
    own = [r.model_copy(update={"artifact": manifest.files[0]}) for r in rows]
    named = [v.model_copy(update={"artifact": manifest.files[0]}) for v in layers]
    return manifest.model_copy(
        update={"parity": tuple(own), "layers": tuple(named), "verdict": verdict_of(rows, layers)}
    )


def artifact_record(
    request: ExportRequest, staged: StagedArtifact, manifest: Manifest
) -> ArtifactRecord:
    """The row of the report on one file."""
    return ArtifactRecord(
        path=str(request.output_dir / staged.path.name),
        format=staged.kind.value,
        precision=request.precision.value,
        resolution=manifest.resolution,
        dynamic=request.dynamic.value,
        target=staged.target.value,
        opset=manifest.opset,
        size_bytes=manifest.size_bytes,
        sha256=staged.sha256,
        nodes=staged.nodes,
    )


def bucket_index(manifests: Sequence[Manifest], data_name: str) -> BucketIndex:
    """The index of files that share one data file, smallest bucket first."""
    first = manifests[0]
    buckets = sorted(
        (Bucket(resolution=m.resolution, file=m.files[0]) for m in manifests if m.resolution),
        key=lambda b: (b.resolution[0] * b.resolution[1], b.resolution),
    )
    return BucketIndex(
        version=__version__,
        model=first.model,
        format=first.format,
        precision=first.precision,
        weights=data_name,
        fit=first.preprocessing().fit,
        buckets=tuple(buckets),
    )


def pass_records(request: ExportRequest, staged: StagedArtifact) -> list[PassRecord]:
    """What each graph pass did to one file."""
    return [
        PassRecord(
            artifact=str(request.output_dir / staged.path.name),
            name=run.name,
            changed=run.outcome.changed,
            refused=tuple(Refusal(node=r.node, reason=r.reason) for r in run.outcome.refused),
        )
        for run in staged.spelled.runs
    ]


def candidate_records(request: ExportRequest, manifest: Manifest) -> list[CandidateRecord]:
    """The ways of making a file that were measured, by its path; the manifest has its name."""
    return [
        found.model_copy(update={"artifact": str(request.output_dir / found.artifact)})
        for found in manifest.candidates
    ]


def _tensor_record(value: ir.Value) -> TensorRecord:
    shape = () if value.shape is None else value.shape
    dims = tuple(d if isinstance(d, int) else str(d.value) for d in shape)
    dtype = "float32" if value.dtype is None else np.dtype(value.dtype.numpy()).name
    return TensorRecord(name=value.name or "", shape=dims, dtype=dtype)
