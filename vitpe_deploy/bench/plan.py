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
from vitpe_deploy.errors import ArtifactError, UnsupportedError, UsageError
from vitpe_deploy.manifest import SUFFIX, Manifest, read_manifest
from vitpe_deploy.request import Resolution, SizeRange, closest
from vitpe_deploy.runtimes import canonical

MODES = ("latency", "throughput")
PRECISIONS = ("f32", "f16", "bf16")


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
    schedule: Schedule = field(default_factory=Schedule)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file with everything known of it."""

    path: Path
    manifest: Manifest

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
    return tuple(tuple(rows) for rows in groups.values())


def _check(options: BenchOptions) -> None:
    if not options.artifacts:
        raise UsageError("ARTIFACT is missing", hint="Name a file of vitpe-export.")
    for flag, values, known in (
        ("--mode", options.modes, MODES),
        ("--precision", options.precisions, PRECISIONS),
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
    """The artifact at a path, or all of a folder."""
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
    manifest = artifact.manifest
    _refuse_npu(artifact, options.device)
    sizes = options.resolutions or (_preferred(artifact),)
    batches = options.batches or (manifest.batch or 1,)
    for mode in options.modes:
        for threads in options.threads:
            for batch in batches:
                _check_batch(artifact, batch)
                for size in sizes:
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
                                "CPU" if runtime == "torch" else options.device,
                                precision,
                                cast(Mode, mode),
                                threads,
                                batch,
                                size,
                            )


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
    symbolic = [
        f"{i.name} [{', '.join(map(str, i.shape))}]"
        for i in artifact.manifest.inputs
        if any(isinstance(dim, str) for dim in i.shape)
    ]
    if symbolic and any(word.strip().startswith("NPU") for word in words):
        source = artifact.manifest.source
        model = source.model if source is not None else "MODEL"
        raise UnsupportedError(
            f"the NPU takes fixed shapes only, {artifact.path.name} is dynamic: "
            f"{', '.join(symbolic)}",
            hint="Export one static file per size instead: "
            f"vitpe-export {model} --res 224 --res 384, without --dynamic.",
        )


def _preferred(artifact: Artifact) -> Resolution:
    manifest = artifact.manifest
    static = manifest.size()
    if static is not None:
        return static
    if manifest.native_resolution is not None:
        return Resolution(*manifest.native_resolution)
    raise UsageError(f"{artifact.path.name} has no preferred size", hint="Give --res.")


def _check_size(artifact: Artifact, size: Resolution) -> None:
    manifest = artifact.manifest
    static = manifest.size()
    if static is not None and size != static:
        raise UsageError(
            f"--res {size}: {artifact.path.name} takes {static} alone",
            hint=f"Export it with --res {size} too, or once with --dynamic size.",
        )
    span = manifest.resolution_range
    if span is not None and size not in SizeRange(*span):
        raise UsageError(
            f"--res {size} is outside the range of {artifact.path.name}: {SizeRange(*span)}"
        )


def _check_batch(artifact: Artifact, batch: int) -> None:
    if artifact.manifest.batch not in (None, batch):
        raise UsageError(
            f"--batch {batch}: {artifact.path.name} takes batch {artifact.manifest.batch}",
            hint=f"Export it with --batch {batch}, or with --dynamic batch.",
        )


def _runtimes(artifact: Artifact, wanted: Sequence[str]) -> tuple[str, ...]:
    """Engines that can run the file, of those asked for."""
    able = ("onnxruntime", "openvino") if artifact.manifest.format == "onnx" else ("openvino",)
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
