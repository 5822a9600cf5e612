"""The Python interface: what the commands call, with Python's own types.

Modules and strings are accepted alike; what comes back are the frozen values that ``--json`` prints.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from vitpe_deploy.errors import ArtifactError, UsageError
from vitpe_deploy.request import (
    DEFAULT_RTOL,
    Dynamic,
    ExportRequest,
    Format,
    ModelRequest,
    Precision,
    ResampleOverride,
    Resolution,
    SizeRange,
    Target,
    Tolerance,
    VerifyRequest,
    choose,
)
from vitpe_deploy.runtimes import canonical

if TYPE_CHECKING:
    from torch import nn

    from vitpe_deploy.progress import Progress
    from vitpe_deploy.results import ExportReport, VerifyReport
    from vitpe_deploy.sources.base import Source

Size: TypeAlias = "Resolution | int | str | tuple[int, int]"
Model: TypeAlias = "str | nn.Module"


def export(
    model: Model = "vit_small_patch16_224",
    resolution: Size | Sequence[Size] | None = None,
    *,
    dynamic: str = "none",
    size_range: str | tuple[int, int, int] | None = None,
    batch: int = 1,
    encoding: str | None = None,
    weights: str | Path | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    interpolation: str | None = None,
    antialias: bool | None = None,
    align_corners: bool | None = None,
    outputs: Sequence[str] = (),
    target: str = "ort",
    formats: Sequence[str] = ("onnx",),
    precision: str = "fp32",
    opset: int = 20,
    simplify: bool = True,
    skip_passes: Sequence[str] = (),
    allow_floor: bool = False,
    verify: bool = True,
    verify_resolutions: Sequence[Size] = (),
    verify_passes: bool = False,
    verify_layers: bool = False,
    images: str | Path | None = None,
    rtol: float | None = None,
    atol: float = 0.0,
    output_dir: str | Path = "out",
    force: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Export a Vision Transformer at exactly the resolutions given, and verify it.

    Args:
        model: a MODEL string, or an ``nn.Module`` that takes pixel values [B, C, H, W].
        resolution: one size or several, in pixels, height first; the native size for None.
        dynamic: which dimensions stay symbolic: none, batch, size, all.
        size_range: bounds in pixels of a dynamic file: low, high, step.
        batch: batch of a file whose batch is not symbolic.
        encoding: positional encoding of a reference model.
        weights: safetensors or state dict for a reference model.
        model_kwargs: options of the model's constructor.
        seed: seed of random weights.
        interpolation: bicubic or bilinear in place of the source's own rule.
        antialias: in place of the source's own rule.
        align_corners: in place of the source's own rule.
        outputs: logits, pooled, cls, tokens, feature-map, block:k; the model's own when empty.
        target: whose kernels the graph is spelled for: ort, openvino, portable.
        formats: onnx, openvino.
        precision: number format.
        opset: ONNX operator set.
        simplify: whether onnxsim runs after the passes.
        skip_passes: names of passes to leave out.
        allow_floor: accept sizes whose border pixels the library drops.
        verify: whether files are compared with PyTorch.
        verify_resolutions: further sizes to verify a dynamic file at.
        verify_passes: compare after each pass.
        verify_layers: compare after each block.
        images: folder of pictures to verify with, besides noise and a structured picture.
        rtol: relative tolerance; 1e-4 for fp32.
        atol: absolute tolerance.
        output_dir: folder that files go to.
        force: replace existing files.
        threads: threads of every engine; the CPUs this process may use for None.
        progress: told what happens.

    Returns:
        The report. Its verdict is ``failed`` when parity did not hold; files are kept and marked.

    Raises:
        VitpeError: see :mod:`vitpe_deploy.errors`; nothing was written.
    """
    chosen = choose(Precision, precision, "precision")
    request = ExportRequest(
        model=_model_request(
            model,
            encoding=encoding,
            weights=None if weights is None else Path(weights),
            kwargs=dict(model_kwargs or {}),
            seed=seed,
            resample=ResampleOverride(_interpolation(interpolation), antialias, align_corners),
        ),
        resolutions=_sizes(resolution),
        dynamic=choose(Dynamic, dynamic, "dynamic"),
        size_range=_range(size_range),
        batch=batch,
        outputs=tuple(outputs),
        target=choose(Target, target, "target"),
        formats=tuple(choose(Format, f, "format") for f in dict.fromkeys(formats)),
        precision=chosen,
        opset=opset,
        simplify=simplify,
        skip_passes=tuple(skip_passes),
        allow_floor=allow_floor,
        verify=VerifyRequest(
            enabled=verify,
            resolutions=tuple(Resolution.from_any(s) for s in verify_resolutions),
            images=None if images is None else Path(images),
            layers=verify_layers,
            passes=verify_passes,
            tolerance=_tolerance(DEFAULT_RTOL.get(chosen, 1e-2) if rtol is None else rtol, atol),
        ),
        output_dir=Path(output_dir),
        force=force,
        threads=threads,
    )
    return export_request(request, module=None if isinstance(model, str) else model, progress=progress)


def export_request(
    request: ExportRequest, *, module: nn.Module | None = None, progress: Progress | None = None
) -> ExportReport:
    """Export a complete request. ``module`` takes the place of the request's MODEL string."""
    source = open_model(request, module)
    run = require_exporters()
    report: ExportReport = run(request, source, progress=progress)
    return report


def open_model(request: ExportRequest, module: nn.Module | None = None) -> Source:
    """The source of a request, checked against it before anything heavy is imported."""
    return _source(request.model, module, request.resolutions)


def verify(
    artifact: str | Path,
    *,
    against: Model | None = None,
    resolutions: Sequence[Size] = (),
    runtimes: Sequence[str] | None = None,
    device: str = "CPU",
    images: str | Path | None = None,
    layers: bool = False,
    rtol: float | None = None,
    atol: float | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Compare an artifact with PyTorch again, or a bundle with its stored outputs.

    Args:
        artifact: an ``.onnx`` or ``.xml`` of ours, or a bundle.
        against: the model to compare with; what the manifest records for None.
        resolutions: sizes; those verified at export when empty.
        runtimes: onnxruntime, openvino; all that can run the file for None.
        device: in the engine's own words.
        images: folder of pictures to verify with, besides noise and a structured picture.
        layers: also name the first block whose activations leave tolerance.
        rtol: relative tolerance; the one of the export for None.
        atol: absolute tolerance; the one of the export for None.
        threads: threads of every engine.
        progress: told what happens.

    Raises:
        VitpeError: see :mod:`vitpe_deploy.errors`.
    """
    from vitpe_deploy.verify import VerifyOptions, run_verify

    options = VerifyOptions(
        resolutions=tuple(Resolution.from_any(s) for s in resolutions),
        runtimes=None if runtimes is None else tuple(canonical(r) for r in runtimes),
        device=device,
        images=None if images is None else Path(images),
        layers=layers,
        rtol=rtol,
        atol=atol,
        threads=threads,
    )
    source = None
    if against is not None:
        module = None if isinstance(against, str) else against
        source = _source(_model_request(against), module, options.resolutions)
    return run_verify(Path(artifact), options, against=source, progress=progress)


def require_exporters() -> Any:
    """The pipeline's entry, after making sure that ``exporters`` is ours.

    Raises:
        ArtifactError: another package of that name is first on the path.
        MissingExtraError: an exporter's dependency is not installed.
    """
    import importlib

    from vitpe_deploy.errors import MissingExtraError

    package = importlib.import_module("exporters")
    if getattr(package, "DISTRIBUTION", None) != "vitpe-deploy":
        where = getattr(package, "__file__", None) or list(getattr(package, "__path__", ["?"]))[0]
        raise ArtifactError(
            f"another package called 'exporters' shadows ours: {where}",
            hint="Uninstall it, then reinstall: pip install --force-reinstall --no-deps vitpe-deploy.",
        )
    try:
        return importlib.import_module("exporters.pipeline").run_export
    except ModuleNotFoundError as problem:
        raise MissingExtraError(problem.name or "torch", "export") from problem


def _source(
    request: ModelRequest, module: nn.Module | None, sizes: Sequence[Resolution]
) -> Source:
    if module is None:
        from vitpe_deploy.sources import open_source

        return open_source(request)
    from vitpe_deploy.sources.module import open_module

    return open_module(module, request, sizes[0] if sizes else None)


def _model_request(model: Model, **fields: Any) -> ModelRequest:
    name = model if isinstance(model, str) else type(model).__name__
    return dataclasses.replace(ModelRequest(), model=name, **fields)


def _sizes(resolution: Size | Sequence[Size] | None) -> tuple[Resolution, ...]:
    if resolution is None:
        return ()
    if isinstance(resolution, list):
        return tuple(Resolution.from_any(s) for s in resolution)
    return (Resolution.from_any(resolution),)  # type: ignore[arg-type]


def _range(value: str | tuple[int, int, int] | None) -> SizeRange | None:
    if value is None:
        return None
    return SizeRange.parse(value) if isinstance(value, str) else SizeRange(*value)


def _interpolation(value: str | None) -> str | None:
    if value is not None and value not in ("bicubic", "bilinear"):
        raise UsageError(
            f"--interpolation {value!r} is not known", hint="Choose from: bicubic, bilinear."
        )
    return value


def _tolerance(rtol: float, atol: float) -> Tolerance:
    for flag, number in (("--rtol", rtol), ("--atol", atol)):
        if not number >= 0 or number == float("inf"):
            raise UsageError(f"{flag} must be a number of at least 0, got {number}")
    return Tolerance(rtol, atol)
