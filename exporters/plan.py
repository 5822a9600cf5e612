"""What an export will write and prove, decided from the request and the facts of the model alone.

Everything that can be refused without loading a weight is refused here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from exporters.proof_sizes import proof_sizes
from exporters.quantize.rules import check_precision
from vitpe_deploy.buckets import BucketFiles, check_buckets
from vitpe_deploy.errors import UnsupportedError, UsageError
from vitpe_deploy.inputs import InputLayout
from vitpe_deploy.limits import AxisLimit
from vitpe_deploy.pixels import pixel_input
from vitpe_deploy.request import (
    OPSETS,
    Dynamic,
    ExportRequest,
    Format,
    Resolution,
    Target,
)
from vitpe_deploy.sources.base import LengthRule, ModelFacts

OPERATORS_SUFFIX = ".required_operators.config"
"""Of the list that a minimal build of ONNX Runtime is made from, beside an ``.ort``."""


@dataclass(frozen=True, slots=True)
class PlannedGraph:
    """One traced graph and the files made of it.

    Attributes:
        size: the static size, or None when height and width are symbolic.
        trace_size: example size of the trace.
        trace_batch: example batch of the trace.
        cases: sizes and batches to verify.
        stem: file name without suffix and target.
    """

    size: Resolution | None
    trace_size: Resolution
    trace_batch: int
    cases: tuple[tuple[Resolution, int], ...]
    stem: str

    def file_name(self, kind: Format, target: Target) -> str:
        """Name of the main file of one format."""
        suffix = "" if kind is Format.OPENVINO or target is Target.ORT else f"-{target}"
        return f"{self.stem}{suffix}{kind.suffix}"

    def file_names(self, kind: Format, target: Target) -> tuple[str, ...]:
        """The main file of one format, what lies beside it, and its manifest."""
        from vitpe_deploy.manifest import manifest_path

        main = self.file_name(kind, target)
        beside: tuple[str, ...] = ()
        if kind is Format.OPENVINO:
            beside = (str(Path(main).with_suffix(".bin")),)
        elif kind is Format.ORT:
            beside = (f"{main}{OPERATORS_SUFFIX}",)
        return (main, *beside, manifest_path(Path(main)).name)


@dataclass(frozen=True, slots=True)
class Plan:
    """All graphs of one export."""

    outputs: tuple[str, ...]
    graphs: tuple[PlannedGraph, ...]
    limits: tuple[AxisLimit, ...] = ()
    buckets: BucketFiles | None = None

    def layout(self, request: ExportRequest, facts: ModelFacts) -> InputLayout:
        """What the files take: what the model takes, or pixels."""
        if request.pixel_order is None:
            return facts.input
        return pixel_input(facts.input, request.pixel_order)

    def paths(self, request: ExportRequest) -> Iterator[Path]:
        """Every file that will be there, except weights that are too large for one ONNX file."""
        for graph in self.graphs:
            for kind in request.formats:
                for name in self.file_names(graph, kind, request.target):
                    yield request.output_dir / name
        for kind in request.formats if self.buckets else ():
            yield from (request.output_dir / name for name in self.shared_names(kind))

    def file_names(self, graph: PlannedGraph, kind: Format, target: Target) -> tuple[str, ...]:
        """Files of one graph in one format, without those that it shares with others."""
        names = graph.file_names(kind, target)
        return tuple(n for n in names if not (self.buckets and n.endswith(".bin")))

    def shared_names(self, kind: Format) -> tuple[str, ...]:
        """The data file and the index of buckets in one format."""
        if self.buckets is None:
            return ()
        return self.buckets.data_name(kind.value), self.buckets.index_name(kind.value)


def engines_for(kind: Format, wanted: Sequence[str]) -> tuple[str, ...]:
    """Those of ``wanted`` that can run a format."""
    return tuple(r for r in wanted if r in kind.engines)


def make_plan(request: ExportRequest, facts: ModelFacts) -> Plan:
    """Check the request against the model.

    Raises:
        UsageError: contradictory or impossible flags.
        SizeError: a size that the model cannot take.
        UnsupportedError: refused with the reason.
    """
    symbolic_size = facts.input.has_symbolic_size(request.dynamic)
    check_flags(request, symbolic_size=symbolic_size)
    if request.pixel_order is not None:
        _check_pixels(request, facts, request.pixel_order)
    check_precision(request, facts.input)
    limits = _limits(request, facts) if symbolic_size else ()
    sizes = _sizes(request, facts)
    outputs = facts.check_outputs(request.outputs)
    graphs: tuple[PlannedGraph, ...]
    if symbolic_size:
        graphs = (_dynamic_graph(request, facts, sizes, limits),)
    else:
        graphs = tuple(_static_graph(request, facts, size) for size in sizes)
    return Plan(outputs, graphs, limits, _bucket_files(request, facts))


def check_flags(request: ExportRequest, *, symbolic_size: bool) -> None:
    """Refuse what contradicts itself, whatever the model is.

    Args:
        request: what is asked for.
        symbolic_size: whether the file that it gives has a symbolic size.

    Raises:
        UsageError: flags that contradict each other.
        UnsupportedError: an opset that is not traced.
    """
    if request.opset not in OPSETS:
        low, high = OPSETS[0], OPSETS[-1]
        raise UnsupportedError(
            f"--opset {request.opset} is not possible: graphs are traced at opset {low} to {high}",
            hint=f"The lowest that works is --opset {low}."
            if request.opset < low
            else f"The highest that is verified is --opset {high}.",
        )
    if request.dynamic.batch and request.batch != 1:
        raise UsageError(
            f"--batch {request.batch} contradicts --dynamic {request.dynamic}",
            hint="Leave out --batch: the file takes any.",
        )
    if request.batch < 1:
        raise UsageError(f"--batch must be at least 1, got {request.batch}")
    if request.size_range is not None and not symbolic_size:
        raise UsageError(
            f"--res-range needs a dynamic size, got --dynamic {request.dynamic}",
            hint="Add --dynamic size.",
        )
    if request.buckets:
        check_buckets(request, symbolic_size=symbolic_size)
    verify = request.verify
    if not verify.enabled and (
        verify.resolutions or verify.layers or verify.passes or verify.images is not None
    ):
        raise UsageError(
            "--no-verify contradicts --verify-res, --verify-passes, --layers and --images"
        )
    if verify.resolutions and not symbolic_size:
        raise UsageError(
            "--verify-res needs a file with a dynamic size: a static file runs at --res alone",
            hint="Add --dynamic size, or leave out --verify-res.",
        )
    if Format.ORT in request.formats and verify.layers:
        raise UsageError(
            "--layers contradicts --format ort, whose values inside cannot be read",
            hint="Compare layers in --format onnx.",
        )
    if not request.formats:
        raise UsageError("--format names no format", hint="Use onnx, openvino, or both.")
    if request.skip_passes:
        # Passes bring onnx_ir along, which no other refusal needs.
        from exporters.passes import check_skips

        check_skips(request.skip_passes)


def _sizes(request: ExportRequest, facts: ModelFacts) -> tuple[Resolution, ...]:
    """Sizes that were asked for, else native; none where a range says what is verified.

    Raises:
        UsageError: a size outside the range, or named twice.
        SizeError: a size that the model cannot take.
    """
    sizes = request.buckets or request.resolutions
    if not sizes and facts.native is None:
        raise UsageError(f"{facts.name} has no native size", hint="Give --res.")
    if not sizes and facts.native is not None and request.size_range is None:
        sizes = (facts.native,)
    rule = facts.sizes(symbolic=request.dynamic.size)
    for size in sizes:
        flag = "--buckets" if request.buckets else "--res"
        rule.check(size, allow_floor=request.allow_floor, flag=flag)
        _check_range(request, size, flag)
    for size in request.verify.resolutions:
        rule.check(size, allow_floor=request.allow_floor, flag="--verify-res")
        _check_range(request, size, "--verify-res")
    if len(set(sizes)) != len(sizes):
        flag = "--buckets" if request.buckets else "--res"
        raise UsageError(f"{flag} names one size twice")
    return sizes


def _check_pixels(request: ExportRequest, facts: ModelFacts, order: str) -> None:
    """Refuse pixels where the model or the precision cannot go with them.

    Raises:
        UsageError: says with what they cannot.
    """
    pixel_input(facts.input, order)
    if not request.precision.by_agreement:
        return
    if Format.OPENVINO in request.formats:
        raise UsageError(
            f"--embed-preprocess does not go with --precision {request.precision} in OpenVINO IR",
            hint="Use --format onnx, or another precision.",
        )
    if (request.calibration or "").endswith(".npz"):
        raise UsageError(
            "--embed-preprocess takes pixels, --calibration with an .npz holds prepared values",
            hint="Give --calibration a folder of pictures.",
        )


def _bucket_files(request: ExportRequest, facts: ModelFacts) -> BucketFiles | None:
    """Names of what buckets share.

    Raises:
        UsageError: the model does not read pictures.
    """
    if not request.buckets:
        return None
    if facts.input.kind == "text":
        raise UsageError(
            "--buckets are sizes of pictures, this model reads text",
            hint="Use --dynamic length, or leave it out.",
        )
    stem = (
        f"{facts.name}-buckets{_batch_suffix(request)}-{request.precision}{_pixels_suffix(request)}"
    )
    return BucketFiles(stem, "" if request.target is Target.ORT else f"-{request.target}")


def _limits(request: ExportRequest, facts: ModelFacts) -> tuple[AxisLimit, ...]:
    """What a file with a symbolic size can take on each axis.

    Raises:
        UsageError: a range whose sizes the model cannot take, or that holds one size.
        UnsupportedError: no file with symbolic height and width can be written.
    """
    rule, span = facts.sizes(symbolic=request.dynamic.size), request.size_range
    layout = facts.input
    if request.pixel_order is not None:
        layout = pixel_input(layout, request.pixel_order)
    axes = layout.size_axes()
    if isinstance(rule, LengthRule):
        if span is not None:
            raise UsageError(
                f"--res-range {span} is in pixels, this model reads text",
                hint="Leave it out; --max-length decides the longest text.",
            )
        (axis,) = axes
        return (AxisLimit(axis, axes[axis], 1, rule.limit),)
    floors = rule.remainder == "floors" and request.allow_floor
    free = rule.remainder == "pads" or floors
    limits = []
    for (axis, name), divisor, least in zip(axes.items(), rule.divisor, rule.least, strict=True):
        unit = 1 if free else divisor
        lowest = -(-(max(least, divisor) if floors else least) // unit) * unit
        if span is None:
            limits.append(AxisLimit(axis, name, lowest, None, unit))
            continue
        if span.low < lowest:
            raise UsageError(
                f"--res-range {span} begins below {lowest}, the smallest {name} the model takes",
                hint=f"Begin at {lowest}.",
            )
        step = unit if span.step == 1 else span.step
        if span.low % unit or step % unit:
            raise UsageError(
                f"--res-range {span} holds sizes that do not fit {rule.reason}",
                hint=f"Use a low end and a step that are multiples of {unit}.",
            )
        limits.append(AxisLimit(axis, name, span.low, span.high, step))
    if span is not None and all(limit.largest == limit.low for limit in limits):
        raise UsageError(
            f"--res-range {span} holds one size, {span.low}x{span.low}",
            hint=f"Widen the range, or leave out --dynamic {request.dynamic} and give "
            f"--res {span.low}.",
        )
    return tuple(limits)


def _check_range(request: ExportRequest, size: Resolution, flag: str) -> None:
    if request.size_range is not None and size not in request.size_range:
        raise UsageError(
            f"{flag} {size} is outside --res-range {request.size_range}",
            hint="Widen the range or choose a size inside it.",
        )


def _batches(request: ExportRequest) -> tuple[int, ...]:
    return (1, 2) if request.dynamic.batch else (request.batch,)


def _batch_suffix(request: ExportRequest) -> str:
    if request.dynamic is Dynamic.BATCH:
        return "-bdyn"
    return f"-b{request.batch}" if request.batch != 1 else ""


def _pixels_suffix(request: ExportRequest) -> str:
    """A file that takes pixels does not take the name of one that takes prepared values."""
    return "" if request.pixel_order is None else "-pixels"


def _static_graph(request: ExportRequest, facts: ModelFacts, size: Resolution) -> PlannedGraph:
    return PlannedGraph(
        size=size,
        trace_size=size,
        trace_batch=2 if request.dynamic.batch else request.batch,
        cases=tuple((size, batch) for batch in _batches(request)),
        stem=f"{facts.name}-{facts.input.label(size)}{_batch_suffix(request)}-{request.precision}{_pixels_suffix(request)}",
    )


def _dynamic_graph(
    request: ExportRequest,
    facts: ModelFacts,
    sizes: tuple[Resolution, ...],
    limits: tuple[AxisLimit, ...],
) -> PlannedGraph:
    native = facts.native or sizes[0]
    rule = facts.sizes(symbolic=request.dynamic.size)
    around = proof_sizes(rule, native, limits)
    wanted = dict.fromkeys((*sizes, *around, *request.verify.resolutions))
    word = f"dyn{request.dynamic}"
    return PlannedGraph(
        size=None,
        trace_size=rule.unlike(native),
        trace_batch=2 if request.dynamic.batch else request.batch,
        cases=tuple((size, batch) for size in wanted for batch in _batches(request)),
        stem=f"{facts.name}-{word}{_batch_suffix(request)}-{request.precision}{_pixels_suffix(request)}",
    )
