"""What ``vitpe-bench`` will time, decided from flags and manifests alone.

Everything that can be refused without an engine is refused here. Rows that differ in artifact,
runtime or precision are one group: they are timed against each other. Rows of another size, batch,
thread count or mode are another group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from vitpe_deploy.bench.documents import Mode
from vitpe_deploy.bench.rounds import Schedule
from vitpe_deploy.bench.sweep import PlannedExport, Sweep, plan_exports
from vitpe_deploy.bucket_index import bucket_files
from vitpe_deploy.buckets import is_index
from vitpe_deploy.errors import ArtifactError, UnsupportedError, UsageError
from vitpe_deploy.manifest import SUFFIX, Manifest, read_manifest
from vitpe_deploy.request import Format, Resolution, SizeRange, closest
from vitpe_deploy.runtimes import canonical

MODES = ("latency", "throughput")
EXECUTED = ("f32", "f16", "bf16")
"""What OpenVINO can be asked to compute in, whatever the file's own precision."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What the flags say; empty tuples take what the artifact is made for."""

    artifacts: tuple[Path, ...]
    runtimes: tuple[str, ...] = ()
    device: str = "CPU"
    resolutions: tuple[Resolution, ...] = ()
    batches: tuple[int, ...] = ()
    threads: tuple[int, ...] = (1,)
    precisions: tuple[str, ...] = ("f32",)
    modes: tuple[str, ...] = ("latency",)
    images: Path | None = None
    labels: Path | None = None
    layers: bool = False
    schedule: Schedule = field(default_factory=Schedule)
    sweep: Sweep = field(default_factory=Sweep)


@dataclass(frozen=True, slots=True)
class Takes:
    """What a file can be asked for, as far as planning needs it; sizes in pixels."""

    model: str
    format: str
    size: Resolution | None
    native: Resolution | None
    span: SizeRange | None
    batch: int | None
    symbolic: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file with everything known of it, or one that an export is going to write.

    ``swept`` files were exported for one size and batch of a sweep, and are timed at those alone.
    """

    path: Path
    stored: Manifest | None = None
    export: PlannedExport | None = None
    swept: bool = False

    @property
    def manifest(self) -> Manifest:
        """What stands beside the file.

        Raises:
            ArtifactError: the file is still to be exported.
        """
        if self.stored is None:
            raise ArtifactError(f"{self.path} is not exported yet")
        return self.stored

    @property
    def takes(self) -> Takes:
        """What it can be asked for."""
        if self.export is not None:
            one = self.export
            return Takes(one.model, "onnx", one.size, one.size, None, one.batch)
        manifest = self.manifest
        native, span = manifest.native_resolution, manifest.resolution_range
        return Takes(
            model=manifest.source.model if manifest.source is not None else "MODEL",
            format=manifest.format,
            size=manifest.size(),
            native=None if native is None else Resolution(*native),
            span=None if span is None else SizeRange(*span),
            batch=manifest.batch,
            symbolic=tuple(
                f"{i.name} [{', '.join(map(str, i.shape))}]"
                for i in manifest.inputs
                if any(isinstance(dim, str) for dim in i.shape)
            ),
        )

    @property
    def size_bytes(self) -> int:
        """All files of it together."""
        return sum((self.path.parent / name).stat().st_size for name in self.manifest.files)


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """One row of the report, before it is measured."""

    artifact: Artifact
    runtime: str
    device: str
    precision: str
    mode: Mode
    threads: int
    batch: int
    size: Resolution

    @property
    def id(self) -> str:
        """Unique within a plan."""
        asked = "" if self.precision == "f32" else f" {self.precision}"
        return (
            f"{self.artifact.path.name} {self.runtime} {self.device}{asked} {self.size} "
            f"b{self.batch} t{self.threads} {self.mode}"
        )

    @property
    def group(self) -> tuple[str, int, int, Resolution]:
        """Rows of one group are timed against each other."""
        return (self.mode, self.threads, self.batch, self.size)


Group = tuple[PlannedRow, ...]


def make_plan(options: BenchOptions) -> tuple[Group, ...]:
    """All groups in the order in which they are measured.

    Raises:
        ArtifactError: a file or its manifest is missing or damaged.
        UsageError: a size, batch or engine that an artifact cannot take.
        UnsupportedError: a device that cannot run it, whatever the machine.
    """
    _check(options)
    artifacts = [found for path in options.artifacts for found in _artifacts(path)]
    for export in plan_exports(options.sweep, options.resolutions, options.batches):
        kept = export.kept()
        missing = export if kept is None else None
        artifacts.append(Artifact(export.path, kept, missing, swept=True))
    groups: dict[tuple[object, ...], list[PlannedRow]] = {}
    for artifact in artifacts:
        for row in _rows(artifact, options):
            rows = groups.setdefault(row.group, [])
            if row.id in [other.id for other in rows]:
                raise UsageError(
                    f"two artifacts give one row: {row.id}",
                    hint="Name each artifact once, and give files of one name other names.",
                )
            rows.append(row)
    _refuse_unused(options, [row for rows in groups.values() for row in rows])
    if options.layers and all(row.runtime == "torch" for rows in groups.values() for row in rows):
        raise UsageError(
            "--layers compares blocks in other engines with PyTorch, and only torch is timed",
            hint="Name ort or openvino with --runtime too, or leave --layers out.",
        )
    return tuple(tuple(rows) for rows in groups.values())


def _refuse_unused(options: BenchOptions, rows: Sequence[PlannedRow]) -> None:
    """Every engine, precision and device that was asked for has a row."""
    for name in map(canonical, options.runtimes):
        if name not in {row.runtime for row in rows}:
            raise UsageError(
                f"--runtime {name} can run none of the files",
                hint="Leave it out, or export with --format onnx too.",
            )
    for precision in options.precisions:
        if precision not in {row.precision for row in rows}:
            raise UsageError(
                f"no row takes --precision {precision}: these engines compute as the file says",
                hint="Only --runtime openvino can be asked for another precision.",
            )
    if options.device not in {row.device for row in rows}:
        raise UsageError(
            f"--device {options.device} has no row: torch is timed on the CPU or an XPU",
            hint="Leave it out, or name ort or openvino with --runtime too.",
        )


def _check(options: BenchOptions) -> None:
    if not options.artifacts and not options.sweep.models:
        raise UsageError("ARTIFACT is missing", hint="Name a file of vitpe-export, or a model.")
    if options.schedule.iters is not None and options.modes == ("throughput",):
        raise UsageError(
            "--iters counts samples of latency, and --mode is throughput alone",
            hint="Say how long to measure with --min-time.",
        )
    if options.labels is not None and options.images is None:
        raise UsageError("--labels are for --images", hint="Name the folder of the pictures.")
    for flag, values, known in (
        ("--mode", options.modes, MODES),
        ("--precision", options.precisions, EXECUTED),
    ):
        for value in values:
            if value not in known:
                raise UsageError(
                    f"{flag} {value!r} is not known",
                    hint=f"{closest(value, known)}Choose from: {', '.join(known)}.",
                )
    for flag, numbers in (("--batch", options.batches), ("--threads", options.threads)):
        for number in numbers:
            if number < 1:
                raise UsageError(f"{flag} must be at least 1, got {number}")


def _artifacts(path: Path) -> Iterator[Artifact]:
    """The artifact at a path, all of a folder, or all buckets of an index."""
    if is_index(path):
        for file in bucket_files(path):
            yield Artifact(file, read_manifest(file))
        return
    if not path.is_dir():
        yield Artifact(path, read_manifest(path))
        return
    found = sorted(path.glob(f"*{SUFFIX}"))
    if not found:
        raise ArtifactError(f"{path} holds no exported file", hint="Give the output of an export.")
    for manifest in found:
        file = manifest.with_name(manifest.name.removesuffix(SUFFIX))
        yield Artifact(file, read_manifest(file))


def _rows(artifact: Artifact, options: BenchOptions) -> Iterator[PlannedRow]:
    _refuse_npu(artifact, options.device)
    takes = artifact.takes
    sizes = (takes.size,) if artifact.swept and takes.size else options.resolutions
    batches = (takes.batch,) if artifact.swept and takes.batch else options.batches
    for mode in options.modes:
        for threads in options.threads:
            for batch in batches or (takes.batch or 1,):
                _check_batch(artifact, batch)
                for size in sizes or (_preferred(artifact),):
                    _check_size(artifact, size)
                    for runtime in _runtimes(artifact, options.runtimes):
                        if runtime == "torch" and mode == "throughput":
                            raise UsageError(
                                "--runtime torch contradicts --mode throughput: eager PyTorch "
                                "works on one request at a time",
                                hint="Leave one of them out.",
                            )
                        for precision in _precisions(runtime, options.precisions):
                            yield PlannedRow(
                                artifact,
                                runtime,
                                _device(runtime, options.device),
                                precision,
                                cast(Mode, mode),
                                threads,
                                batch,
                                size,
                            )


def _device(runtime: str, device: str) -> str:
    """Of all the words for devices torch shares ``XPU``; it stands on the CPU beside others."""
    return "CPU" if runtime == "torch" and not device.upper().startswith("XPU") else device


def _precisions(runtime: str, wanted: Sequence[str]) -> Sequence[str]:
    """What can be asked of an engine: the others compute in the precision of the file."""
    if runtime == "openvino":
        return tuple(dict.fromkeys(wanted))
    if "f32" not in wanted:
        raise UsageError(
            f"{runtime} takes no --precision {wanted[0]}: it computes as the file says",
            hint="Only --runtime openvino can be asked for another precision.",
        )
    return ("f32",)


def _refuse_npu(artifact: Artifact, device: str) -> None:
    """The NPU compiles fixed shapes only, and is slow to say so."""
    words = device.upper().replace(":", ",").split(",")
    takes = artifact.takes
    if takes.symbolic and any(word.strip().startswith("NPU") for word in words):
        raise UnsupportedError(
            f"the NPU takes fixed shapes only, {artifact.path.name} is dynamic: "
            f"{', '.join(takes.symbolic)}",
            hint="Export static files of several sizes that share their weights: "
            f"vitpe-export {takes.model} --buckets 224,384, without --dynamic.",
        )


def _preferred(artifact: Artifact) -> Resolution:
    found = artifact.takes.size or artifact.takes.native
    if found is None:
        raise UsageError(f"{artifact.path.name} has no preferred size", hint="Give --res.")
    return found


def _check_size(artifact: Artifact, size: Resolution) -> None:
    takes = artifact.takes
    if takes.size is not None and size != takes.size:
        raise UsageError(
            f"--res {size}: {artifact.path.name} takes {takes.size} alone",
            hint=f"Export it with --res {size} too, or once with --dynamic size.",
        )
    if takes.span is not None and size not in takes.span:
        raise UsageError(f"--res {size} is outside the range of {artifact.path.name}: {takes.span}")


def _check_batch(artifact: Artifact, batch: int) -> None:
    fixed = artifact.takes.batch
    if fixed not in (None, batch):
        raise UsageError(
            f"--batch {batch}: {artifact.path.name} takes batch {fixed}",
            hint=f"Export it with --batch {batch}, or with --dynamic batch.",
        )


def _runtimes(artifact: Artifact, wanted: Sequence[str]) -> tuple[str, ...]:
    """Engines that can run the file, of those asked for."""
    able = Format(artifact.takes.format).engines
    if not wanted:
        return able
    names = tuple(dict.fromkeys(canonical(name) for name in wanted))
    found = tuple(name for name in names if name in able or name == "torch")
    if not found:
        raise UsageError(
            f"--runtime {', '.join(names)} cannot run {artifact.path.name}",
            hint=f"Use: {', '.join(able)}.",
        )
    return found
