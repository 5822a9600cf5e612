"""Parity again, later, on another machine or device: the work behind ``vitpe-verify``.

With the source at hand the reference is PyTorch, rebuilt from what the manifest records, or the
file that the artifact was made from; a bundle brings its reference outputs along and needs neither
torch nor the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitpe_deploy.against import check_outputs
from vitpe_deploy.bundle import Bundle, is_bundle, open_bundle, write_bundle
from vitpe_deploy.engine_parity import Question, References, in_engine, verdict_of
from vitpe_deploy.errors import ArtifactError, MissingExtraError, SourceError, UsageError
from vitpe_deploy.files import sha256_of
from vitpe_deploy.layer_parity import Blocks, layer_words, require_blocks
from vitpe_deploy.manifest import Manifest, read_manifest
from vitpe_deploy.parity import (
    ParityCase,
    Reference,
    Target,
    agreement_cases,
    make_case,
    row_words,
    warn_of_noise,
)
from vitpe_deploy.pixels import reference_for
from vitpe_deploy.progress import Progress, Silent
from vitpe_deploy.request import Dynamic, Format, ModelRequest, Resolution, SizeRange, Tolerance
from vitpe_deploy.results import (
    STORED,
    LayerVerdict,
    ParityRow,
    VerifyReport,
    reference_words,
)

if TYPE_CHECKING:
    from vitpe_deploy.sources.base import LoadedModel, Source


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """How an existing artifact is proved. None takes what the manifest says."""

    resolutions: tuple[Resolution, ...] = ()
    runtimes: tuple[str, ...] | None = None
    device: str = "CPU"
    images: Path | None = None
    layers: bool = False
    rtol: float | None = None
    atol: float | None = None
    threads: int | None = None
    batches: tuple[int, ...] = ()


def run_verify(
    path: Path,
    options: VerifyOptions,
    *,
    against: Source | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Prove an artifact or a bundle.

    Raises:
        ArtifactError: missing, damaged or incomplete files.
        SourceError: the model given has other weights than the artifact was made from.
        UsageError: a size that the artifact cannot take.
    """
    shown = progress or Silent()
    if is_bundle(path):
        return _verify_bundle(path, options, against, shown)
    manifest = read_manifest(path)
    intact = sha256_of(path) == manifest.sha256
    if not intact:
        shown.note(f"warning: {path.name} is not the file its manifest was written for (sha256)")
    loaded = _load(manifest, against, shown)
    symbolic = Dynamic(manifest.dynamic).size
    referee = reference_for(
        manifest.layout(),
        manifest.preprocessing(),
        loaded.referee(threads=options.threads, symbolic=symbolic),
    )
    names = tuple(o.name for o in manifest.outputs)
    cases = _cases(manifest, options)
    warn_of_noise(cases, shown)
    question = Question(
        artifact=str(path),
        cases=cases,
        expected=References(referee, names, shown, called=reference_words(loaded.reference)),
        names=names,
        tolerance=_tolerance(manifest, options),
        min_agreement=manifest.min_agreement,
        intact=intact,
        blocks=_blocks(manifest, referee, cases[0]) if options.layers else None,
    )
    rows, layers = _in_engines(path, manifest, options, question, shown)
    return _report(path, manifest, loaded.reference, rows, layers)


def _blocks(manifest: Manifest, referee: Reference, case: ParityCase) -> Blocks:
    """What ``--layers`` compares; PyTorch is asked once, when the first engine needs it."""
    names = manifest.layer_values
    require_blocks(names, manifest.files[0])
    activations = References(referee, names)
    return Blocks(
        names,
        lambda: activations(case),
        kept_tokens=manifest.kept_tokens,
        decide=manifest.min_agreement is None,
    )


def _in_engines(
    path: Path, manifest: Manifest, options: VerifyOptions, question: Question, shown: Progress
) -> tuple[list[ParityRow], list[LayerVerdict]]:
    """Every engine asked for, shown as it is found."""
    rows: list[ParityRow] = []
    layers: list[LayerVerdict] = []
    for runtime in _runtimes(manifest, options):
        found = in_engine(Target(path, runtime, options.device, options.threads), question)
        rows += found.rows
        for row in found.rows:
            _show(shown, row)
        if found.layers is not None:
            layers.append(found.layers)
            shown.line(
                layer_words(found.layers),
                label=f"{found.layers.runtime:<12} layers",
                good=not found.layers.fails,
            )
    return rows, layers


def pack(
    path: Path,
    options: VerifyOptions,
    *,
    against: Source | None = None,
    output_dir: Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Pack artifact, manifest, inputs and reference outputs into one file. Gives its path.

    Raises:
        ArtifactError: missing, damaged or incomplete files.
        UsageError: the bundle exists already.
    """
    shown = progress or Silent()
    manifest = read_manifest(path)
    loaded = _load(manifest, against, shown)
    symbolic = Dynamic(manifest.dynamic).size
    referee = reference_for(
        manifest.layout(),
        manifest.preprocessing(),
        loaded.referee(threads=options.threads, symbolic=symbolic),
    )
    names = tuple(o.name for o in manifest.outputs)
    called = reference_words(loaded.reference)
    pairs = []
    cases = _cases(manifest, options)
    warn_of_noise(cases, shown)
    for case in cases:
        shown.tick(f"{called} at {case.size}, batch {case.batch}")
        pairs.append((case, referee.outputs(case.size, case.inputs, names)))
    return write_bundle(
        path,
        manifest,
        pairs,
        output_dir or path.parent,
        reference=loaded.reference,
        force=force,
    )


def _verify_bundle(
    path: Path, options: VerifyOptions, against: Source | None, shown: Progress
) -> VerifyReport:
    for flag, given in (
        ("--against", against is not None),
        ("--layers", options.layers),
        ("--images", options.images is not None),
        ("--res", bool(options.resolutions)),
        ("--batch", bool(options.batches)),
    ):
        if given:
            raise UsageError(
                f"{flag} has no meaning for a bundle, which brings its own inputs and outputs",
                hint="Leave it out, or verify the artifact itself.",
            )
    with open_bundle(path) as bundle:
        manifest = bundle.manifest
        question = Question(
            artifact=str(path),
            cases=bundle.cases,
            expected=bundle.expected,
            names=tuple(o.name for o in manifest.outputs),
            tolerance=_tolerance(manifest, options),
            min_agreement=manifest.min_agreement,
        )
        rows, layers = _in_engines(bundle.artifact, manifest, options, question, shown)
        return _report(path, manifest, STORED, rows, layers, bundle.reference)


def _load(manifest: Manifest, against: Source | None, shown: Progress) -> LoadedModel:
    """The PyTorch model that the artifact was made from."""
    source = against
    if source is None:
        if manifest.source is None:
            raise UsageError(
                f"{manifest.files[0]} was exported from a module passed in from Python",
                hint="Name the model with --against; from Python, pass against=module.",
            )
        from vitpe_deploy.sources import open_source

        source = open_source(manifest.source.to_request())
    shown.tick("load model")
    try:
        loaded = source.load()
    except MissingExtraError as problem:
        raise MissingExtraError(
            f"{problem.message.split()[0]} (the reference)", "export"
        ) from problem
    if against is not None:
        check_outputs([o.name for o in manifest.outputs], loaded.facts)
    if against is None and loaded.weights_sha256() != manifest.weights_sha256:
        raise SourceError(
            f"{manifest.source.model if manifest.source else 'the model'} has other weights now "
            f"than when {manifest.files[0]} was written",
            hint="Random weights differ between torch versions; --against names another model.",
        )
    return loaded


def _cases(manifest: Manifest, options: VerifyOptions) -> list[ParityCase]:
    """Inputs at the sizes asked for, else at those that were verified before."""
    wanted: list[tuple[Resolution, int]] = []
    batches = _batches(manifest, options)
    static = manifest.size()
    if options.resolutions or options.batches:
        sizes = options.resolutions or _known_sizes(manifest)
        for size in sizes:
            _check_size(manifest, size)
            wanted += [(size, batch) for batch in batches]
    elif manifest.parity:
        found = [(Resolution(*r.resolution), r.batch) for r in manifest.parity if r.resolution]
        wanted = list(dict.fromkeys(found))
    elif static is not None:
        wanted = [(static, batch) for batch in batches]
    elif manifest.native_resolution is not None:
        wanted = [(Resolution(*manifest.native_resolution), batch) for batch in batches]
    else:
        raise UsageError("the artifact has no preferred size", hint="Give --res.")
    cases = [
        make_case(
            size,
            batch,
            layout=manifest.layout(),
            preprocess=manifest.preprocessing(),
            images=options.images,
        )
        for size, batch in wanted
    ]
    if manifest.min_agreement is None:
        return cases
    return agreement_cases(
        cases,
        manifest.calibration,
        layout=manifest.layout(),
        preprocess=manifest.preprocessing(),
        images=options.images,
    )


def _known_sizes(manifest: Manifest) -> tuple[Resolution, ...]:
    """Sizes of the export's own proof."""
    found = [Resolution(*r.resolution) for r in manifest.parity if r.resolution]
    native = manifest.resolution or manifest.native_resolution
    return tuple(dict.fromkeys(found)) or ((Resolution(*native),) if native else ())


def _batches(manifest: Manifest, options: VerifyOptions) -> tuple[int, ...]:
    """Batches asked for, else those of an export.

    Raises:
        UsageError: the artifact takes one batch alone, and not this one.
    """
    if not options.batches:
        return (1, 2) if manifest.batch is None else (manifest.batch,)
    for batch in options.batches:
        if batch < 1 or manifest.batch not in (None, batch):
            raise UsageError(
                f"--batch {batch}: {manifest.files[0]} takes batch {manifest.batch or 'from 1'}",
                hint="Export it again with --dynamic batch or all.",
            )
    return options.batches


def _check_size(manifest: Manifest, size: Resolution) -> None:
    static = manifest.size()
    if static is not None and size != static:
        raise UsageError(
            f"--res {size}: {manifest.files[0]} takes {static} alone",
            hint=f"Export it again with --res {size}, or with --dynamic size.",
        )
    span = manifest.resolution_range
    if span is not None and size not in SizeRange(*span):
        raise UsageError(
            f"--res {size} is outside the range of {manifest.files[0]}: {SizeRange(*span)}"
        )


def _runtimes(manifest: Manifest, options: VerifyOptions) -> tuple[str, ...]:
    able = Format(manifest.format).engines
    if options.runtimes is None:
        return able
    unable = [r for r in options.runtimes if r not in able]
    if unable:
        raise UsageError(
            f"--runtime {unable[0]} cannot run {manifest.files[0]}",
            hint=f"Use: {', '.join(able)}.",
        )
    return options.runtimes


def _tolerance(manifest: Manifest, options: VerifyOptions) -> Tolerance:
    stored = manifest.tolerance
    return Tolerance(
        rtol=stored.get("rtol", 1e-4) if options.rtol is None else options.rtol,
        atol=stored.get("atol", 0.0) if options.atol is None else options.atol,
    )


def _show(shown: Progress, row: ParityRow) -> None:
    size = "x".join(map(str, row.resolution or ()))
    device = "" if row.device == "CPU" else f" {row.device}"
    found = row.problem or row_words(row)
    needed = ""
    if not row.passed and row.limit_needed is not None:
        needed = f", would pass at --rtol {row.limit_needed:.1e}"
    shown.line(
        f"{row.output}  {found}{needed}",
        label=f"{row.runtime:<12} {size} b{row.batch}{device}",
        good=row.passed,
    )


def _report(
    path: Path,
    manifest: Manifest,
    reference: str,
    rows: Sequence[ParityRow],
    layers: Sequence[LayerVerdict],
    stored_reference: str | None = None,
) -> VerifyReport:
    if not rows:
        raise ArtifactError(f"{path.name}: nothing was compared")
    return VerifyReport(
        artifact=str(path),
        model=manifest.model,
        reference=reference,
        stored_reference=stored_reference,
        parity=tuple(rows),
        layers=tuple(layers),
        verdict=verdict_of(rows, layers),
    )


__all__ = ["Bundle", "ModelRequest", "VerifyOptions", "pack", "run_verify"]
