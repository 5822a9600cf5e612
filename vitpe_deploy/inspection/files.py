"""``.onnx``, ``.xml`` and bundles: read, checked, counted; nothing in them is run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitpe_deploy.bucket_index import find_indexes, read_index
from vitpe_deploy.buckets import SUFFIX as BUCKETS
from vitpe_deploy.buckets import is_index
from vitpe_deploy.errors import ArtifactError, UsageError
from vitpe_deploy.files import sha256_of
from vitpe_deploy.inspection import graph, ir, portability
from vitpe_deploy.inspection.onnx_skeleton import Skeleton, SkeletonValue, read_skeleton
from vitpe_deploy.inspection.report import (
    Certainty,
    Dimension,
    Evidence,
    FileFacts,
    Fusing,
    InOpenVino,
    InspectReport,
    Positions,
    Sizes,
    TensorFacts,
)
from vitpe_deploy.limits import KEY, AxisLimit, limits_from_text
from vitpe_deploy.manifest import PREFIX, manifest_path, read_manifest
from vitpe_deploy.request import Resolution
from vitpe_deploy.runtimes.ir_file import weights_path
from vitpe_deploy.runtimes.onnx_file import external_tensors

SUFFIXES = (".onnx", ".xml", ".ort", ".zip", ".json")
_BY_MEETING = (("attend", "relative bias"), ("rotates", "rotary"), ("added", "absolute table"))


def is_file(subject: str) -> bool:
    """Whether a subject names a file, or a folder of buckets, and not a model."""
    folder = Path(subject)
    if ":" not in subject and folder.is_dir() and find_indexes(folder):
        return True
    return ":" not in subject.split("/")[0] and Path(subject).suffix in SUFFIXES


def inspect_file(path: Path) -> InspectReport:
    """Look at a file.

    Raises:
        ArtifactError: missing, damaged, incomplete, or not what its name says.
        UsageError: a kind of file that is not looked into.
    """
    from vitpe_deploy.bundle import is_bundle, open_bundle

    if is_bundle(path):
        with open_bundle(path) as bundle:
            inner = inspect_file(bundle.artifact)
            if inner.file is None:  # a bundle holds a file, never a model
                raise ArtifactError(f"{path} holds no artifact")
            count = len(bundle.cases)
        facts = inner.file.model_copy(update={"bundle_cases": count})
        return inner.model_copy(update={"subject": str(path), "kind": "bundle", "file": facts})
    if path.is_dir() or is_index(path):
        return _buckets(path)
    if path.suffix == ".onnx":
        return _onnx(path)
    if path.suffix == ".xml":
        return _openvino(path)
    raise UsageError(
        f"{path} is no file that can be looked into",
        hint="Give an .onnx, .xml, .bundle.zip or an index of buckets.",
    )


def _buckets(path: Path) -> InspectReport:
    """The smallest bucket, with the sizes and the bytes of all."""
    if path.is_dir():
        found = find_indexes(path)
        if len(found) != 1:
            listed = ", ".join(f.name for f in found) or "none"
            raise UsageError(f"{path} must hold one index of buckets, it holds {listed}")
        path = found[0]
    index = read_index(path)
    inner = inspect_file(path.with_name(index.buckets[0].file))
    sizes = tuple(bucket.resolution for bucket in index.buckets)
    files = (*(bucket.file for bucket in index.buckets), index.weights)
    facts = None
    if inner.file is not None:
        total = sum(path.with_name(name).stat().st_size for name in files)
        facts = inner.file.model_copy(update={"files": files, "size_bytes": total})
    return inner.model_copy(
        update={
            "subject": str(path),
            "name": path.name.removesuffix(BUCKETS),
            "sizes": inner.sizes.model_copy(update={"buckets": sizes}),
            "file": facts,
        }
    )


def _onnx(path: Path) -> InspectReport:
    skeleton = read_skeleton(path)
    metadata = _own(skeleton.metadata)
    limits = limits_from_text(skeleton.metadata.get(KEY))
    fused, by_hand = graph.attentions(skeleton)
    wrong = graph.wrong_in_openvino(skeleton)
    inputs = [v for v in skeleton.inputs if v.name not in skeleton.weights]
    operators = _counted(n.kind for n in skeleton.all_nodes())
    symbolic = _symbolic([(v.name, v.dims) for v in inputs], limits, ir_bounds=None)
    data = sorted({t.location for t in external_tensors(path)})
    files = (path, *(path.parent / name for name in data))
    facts = FileFacts(
        format="onnx",
        files=tuple(f.name for f in files),
        size_bytes=sum(f.stat().st_size for f in files),
        producer=skeleton.producer,
        opsets=skeleton.opsets,
        operators=operators,
        weight_dtypes=graph.weight_dtypes(skeleton),
        inputs=tuple(_tensor(v) for v in inputs),
        outputs=tuple(_tensor(v) for v in skeleton.outputs),
        symbolic=symbolic,
        consumers=portability.onnx_consumers(
            operators,
            skeleton.opsets,
            symbolic,
            wrong,
            attention_lacks="Attention" in operators,
            types=graph.weight_dtypes(skeleton),
        ),
        metadata=metadata,
        **_manifest(path),
    )
    patch = _patch(skeleton, metadata)
    shape = inputs[0].dims if inputs else None
    evidence = graph.positions(skeleton)
    positions = _positions(metadata, evidence, _file_grid(shape, patch, metadata))
    return InspectReport(
        subject=str(path),
        kind="onnx",
        name=path.stem,
        positions=positions,
        sizes=_sizes(shape, limits, metadata, patch),
        blocks=(fused + by_hand) or None,
        parameters=graph.parameters(skeleton),
        outputs=tuple(v.name for v in skeleton.outputs),
        fusing=Fusing(attention=fused, by_hand=by_hand),
        openvino=InOpenVino(wrong=bool(wrong), reasons=wrong),
        file=facts,
    )


def _openvino(path: Path) -> InspectReport:
    read = ir.read_ir(path)
    metadata = _own(read.metadata)
    limits = limits_from_text(read.metadata.get(KEY))
    weights = weights_path(path)
    facts = FileFacts(
        format="openvino",
        files=(path.name, weights.name),
        size_bytes=path.stat().st_size + weights.stat().st_size,
        producer="",
        opsets=read.opsets,
        operators=_counted(read.operators),
        weight_dtypes=read.weight_dtypes,
        inputs=read.inputs,
        outputs=read.outputs,
        symbolic=_symbolic([(t.name, t.shape) for t in read.inputs], limits, read.bounds),
        consumers=portability.ir_consumers(f"operator sets {', '.join(read.opsets)}"),
        metadata=metadata,
        **_manifest(path),
    )
    shape = tuple(d if isinstance(d, int) else None for d in read.inputs[0].shape or ())
    patch = _said_size(metadata, "patch_size")
    return InspectReport(
        subject=str(path),
        kind="openvino",
        name=path.stem,
        positions=_positions(metadata, (), _file_grid(shape, patch, metadata)),
        sizes=_sizes(shape, limits, metadata, patch),
        blocks=read.attention or None,
        parameters=read.parameters,
        outputs=tuple(t.name for t in read.outputs),
        fusing=Fusing(attention=read.attention, by_hand=read.by_hand),
        openvino=InOpenVino(wrong=bool(read.wrong), reasons=read.wrong),
        file=facts,
    )


def _own(metadata: Mapping[str, str]) -> dict[str, str]:
    """What we write into a file, without the prefix."""
    return {k.removeprefix(PREFIX): v for k, v in sorted(metadata.items()) if k.startswith(PREFIX)}


def _counted(kinds: Any) -> dict[str, int]:
    counts = Counter(kinds)
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def _tensor(value: SkeletonValue) -> TensorFacts:
    shape = None if value.dims is None else tuple("?" if d is None else d for d in value.dims)
    return TensorFacts(name=value.name, shape=shape, dtype=value.dtype)


def _symbolic(
    inputs: Sequence[tuple[str, Sequence[Any] | None]],
    limits: Sequence[AxisLimit],
    ir_bounds: Mapping[tuple[str, int], tuple[int, int | None]] | None,
) -> tuple[Dimension, ...]:
    found = []
    for place, (name, dims) in enumerate(inputs):
        for axis, dim in enumerate(dims or ()):
            if isinstance(dim, int):
                continue
            limit = next((li for li in limits if place == 0 and li.axis == axis), None)
            bound = None if ir_bounds is None else ir_bounds.get((name, axis))
            bounded = bound is not None and bound[1] is not None
            by = "the engine; a step by our runtimes" if bounded else "our runtimes (vitpe.limits)"
            low, high = bound or (None, None)
            found.append(
                Dimension(
                    input=name,
                    axis=axis,
                    name=None if dim in (None, "?") else str(dim),
                    low=limit.low if limit is not None else low,
                    high=limit.high if limit is not None else high,
                    step=None if limit is None else limit.step,
                    enforced_by="" if limit is None and not bounded else by,
                )
            )
    return tuple(found)


def _patch(skeleton: Skeleton, metadata: Mapping[str, str]) -> Resolution | None:
    """Pixels of one patch: as the file says, else of the convolution that cuts patches."""
    said = _said_size(metadata, "patch_size")
    if said is not None:
        return said
    for node in skeleton.nodes:
        strides = node.attributes.get("strides")
        weight = skeleton.weights.get(node.inputs[1]) if len(node.inputs) > 1 else None
        if node.op_type != "Conv" or weight is None or not isinstance(strides, tuple):
            continue
        if tuple(weight.dims[2:]) == strides and len(strides) == 2 and min(strides) > 1:
            return Resolution(*strides)
    return None


def _said_size(metadata: Mapping[str, str], key: str) -> Resolution | None:
    """Two numbers of the metadata; a file that says nothing readable says nothing."""
    try:
        height, width = json.loads(metadata.get(key, "null"))
        return Resolution(int(height), int(width))
    except (ValueError, TypeError, RecursionError, OverflowError, UsageError):
        return None


def _number(metadata: Mapping[str, str], key: str) -> int | None:
    text = metadata.get(key, "")
    return int(text) if text.isdigit() and len(text) < 9 else None


def _file_grid(
    shape: Sequence[Any] | None, patch: Resolution | None, metadata: Mapping[str, str]
) -> tuple[int, int] | None:
    """Rows and columns of patches at the one size, or at the native one."""
    size = _static(shape) or _said_size(metadata, "native_resolution")
    if size is None or patch is None:
        return None
    return size.height // patch.height, size.width // patch.width


def _static(shape: Sequence[Any] | None) -> Resolution | None:
    """Height and width of a picture input that is static."""
    if shape is None or len(shape) not in (4, 5):
        return None
    last = not isinstance(shape[1], int) or shape[1] not in (1, 3, 4)
    channels_last = len(shape) == 4 and last and shape[3] in (1, 3, 4)
    height, width = (shape[1], shape[2]) if channels_last else (shape[-2], shape[-1])
    good = isinstance(height, int) and isinstance(width, int) and height > 0 and width > 0
    return Resolution(height, width) if good else None


def _positions(
    metadata: Mapping[str, str], found: Sequence[Evidence], grid: tuple[int, int] | None
) -> Positions:
    encoding = metadata.get("encoding") or None
    prefix = _number(metadata, "prefix_tokens")
    evidence = list(found)
    certainty: Certainty = "likely" if found else "unknown"
    if encoding is not None:
        says = metadata.get("resample_rule", "")
        evidence.insert(0, Evidence(kind="metadata", where=f"{PREFIX}encoding", says=says))
        certainty = "certain"
    else:
        words = [w for sign, w in _BY_MEETING if any(e.says.startswith(sign) for e in found)]
        encoding = " + ".join(words) or None
    if prefix is None and grid is not None:
        prefix = _prefix_of(found, grid[0] * grid[1])
    return Positions(
        encoding=encoding,
        certainty=certainty,
        evidence=tuple(evidence),
        grid=grid,
        prefix_tokens=prefix,
    )


def _prefix_of(found: Sequence[Evidence], patches: int) -> int | None:
    """Rows that an added table has beyond those of patches."""
    for e in found:
        if e.says.startswith("added") and e.shape is not None and len(e.shape) > 1:
            extra = e.shape[-2] - patches
            if 0 <= extra <= 16:
                return extra
    return None


def _sizes(
    shape: Sequence[Any] | None,
    limits: Sequence[AxisLimit],
    metadata: Mapping[str, str],
    patch: Resolution | None,
) -> Sizes:
    native = _said_size(metadata, "native_resolution")
    size = _static(shape)
    if shape is not None and len(shape) == 2:
        longest = shape[1] if isinstance(shape[1], int) else None
        longest = longest or next((li.high for li in limits if li.axis == 1), None)
        return Sizes(native=None, dynamic=not isinstance(shape[1], int), longest=longest)
    if size is not None:
        return Sizes(
            native=None if native is None else (native.height, native.width),
            fixed=(size.height, size.width),
            fixed_reason="the file is static",
            dynamic=False,
            not_dynamic="the file is static",
        )
    steps = [li for li in limits if li.axis >= 2][-2:]
    divisor = None if patch is None else (patch.height, patch.width)
    reason = "" if patch is None else "patch size, where the file says no steps"
    if len(steps) == 2:
        divisor, reason = (steps[0].step, steps[1].step), "steps that the file says"
    return Sizes(
        native=None if native is None else (native.height, native.width),
        divisor=divisor,
        reason=reason,
        remainder="refuses" if len(steps) == 2 else None,
        least=(steps[0].low, steps[1].low) if len(steps) == 2 else None,
        dynamic=True,
        dynamic_divisor=divisor,
    )


def _manifest(path: Path) -> dict[str, Any]:
    """The verdict of the manifest beside the file, when it is that of this very file."""
    if not manifest_path(path).is_file():
        return {"manifest": "none"}
    try:
        manifest = read_manifest(path)
    except ArtifactError as problem:
        return {"manifest": "damaged", "manifest_note": problem.message}
    if sha256_of(path) != manifest.sha256:
        return {"manifest": "of another file", "manifest_note": "its hash is not that of the file"}
    engines = ", ".join(dict.fromkeys(row.runtime for row in manifest.parity))
    return {"manifest": manifest.verdict, "manifest_note": f"in {engines}" if engines else ""}
