"""The Python interface: what the commands call, with Python's own types.

Modules and strings are accepted alike; what comes back are the frozen values that ``--json``
prints.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from vitpe_deploy.build_request import (
    Size,
    make_request,
    model_request,
    module_of,
    name_of,
    thread_count,
    tolerance,
)
from vitpe_deploy.errors import MissingExtraError, UsageError
from vitpe_deploy.export_steps import open_model, plan_exports, run_exports, source_of
from vitpe_deploy.own_exporters import require_exporters
from vitpe_deploy.request import ExportRequest, Resolution, closest

if TYPE_CHECKING:
    from torch import nn

    from vitpe_deploy.inspection.report import InspectReport
    from vitpe_deploy.progress import Progress
    from vitpe_deploy.results import ExportReport, VerifyReport
    from vitpe_deploy.sources.base import Source
    from vitpe_deploy.verification import VerifyOptions

Model: TypeAlias = "str | os.PathLike[str] | nn.Module"

_ONE_AT_A_TIME = threading.RLock()
"""Tracing changes what belongs to the whole process: torch's modes and number of threads, Python's
warnings and streams. Calls from several threads wait for each other."""


def export(
    model: Model = "vit_small_patch16_224",
    resolution: Size | Sequence[Size] | None = None,
    *,
    buckets: Size | Sequence[Size] | None = None,
    dynamic: str = "none",
    size_range: str | tuple[int, ...] | None = None,
    batch: int = 1,
    encoding: str | None = None,
    weights: str | Path | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    interpolation: str | None = None,
    antialias: bool | None = None,
    align_corners: bool | None = None,
    max_length: int | None = None,
    tower: str | None = None,
    pos_embed: str | None = None,
    outputs: Sequence[str] = (),
    target: str = "ort",
    formats: Sequence[str] = ("onnx",),
    precision: str = "fp32",
    calibration: str | Path | None = None,
    min_agreement: float = 0.99,
    int8_method: str = "auto",
    opset: int = 20,
    simplify: bool = True,
    skip_passes: Sequence[str] = (),
    embed_preprocess: bool = False,
    pixel_order: str | None = None,
    layout: str = "files",
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
        model: a MODEL string or the path of a file, or an ``nn.Module`` that takes pixel values
            [B, C, H, W].
        resolution: one size or several, in pixels, height first; the native size for None. A tuple
            of two integers is one size, ``(height, width)``.
        buckets: sizes of static files that share one weights file, in place of ``resolution``;
            every item is a size, so ``(224, 384)`` is 224x224 and 384x384.
        dynamic: which dimensions stay symbolic: none, batch, size, all.
        size_range: bounds in pixels of a dynamic file of pictures: low, high, and step or 1.
        batch: batch of a file whose batch is not symbolic.
        encoding: positional encoding of a reference model.
        weights: safetensors or state dict of the model's training size.
        model_kwargs: options of the model's constructor.
        seed: seed of random weights.
        interpolation: bicubic or bilinear in place of the source's own rule.
        antialias: in place of the source's own rule.
        align_corners: in place of the source's own rule.
        max_length: longest text of a text tower; learned positions are cut or stretched to it.
        pos_embed: path of the parameter that holds the positions, where inspection is not sure.
        tower: vision, text or both, of a model that has two; both are two files in one report.
        outputs: logits, pooled, cls, tokens, feature-map, block:k; the model's own when empty.
        target: whose kernels the graph is spelled for: ort, openvino, portable.
        formats: onnx, openvino, ort.
        precision: fp32, fp16, int8, int8-weights.
        calibration: folder of pictures, ``.npz`` of inputs, or ``random``; int8 needs one.
        min_agreement: agreement with fp32 below which int8 fails: top-1, or cosine.
        int8_method: one way of making int8 in place of the best of several.
        opset: ONNX operator set.
        simplify: whether onnxsim runs after the passes.
        skip_passes: names of passes to leave out.
        embed_preprocess: the file takes uint8 pixels and scales and normalises them by itself.
        pixel_order: nhwc or nchw; nhwc for None.
        layout: files, or the model repository of a server: triton, ovms.
        allow_floor: accept sizes whose border pixels the library drops.
        verify: whether files are compared with PyTorch.
        verify_resolutions: further sizes to verify a dynamic file at.
        verify_passes: compare after each pass.
        verify_layers: compare after each block.
        images: folder of pictures to verify with, besides noise and a structured picture.
        rtol: relative tolerance; for None 1e-4 in fp32 and 1e-2 in fp16. int8 passes by
            ``min_agreement``.
        atol: absolute tolerance.
        output_dir: folder that files go to.
        force: replace existing files.
        threads: threads of every engine; the CPUs this process may use for None.
        progress: told what happens.

    Returns:
        The report. Its verdict is ``failed`` when parity did not hold; files are kept and marked.

    Raises:
        VitpeError: see :mod:`vitpe_deploy.errors`; nothing was written, unless it is ``layout``
            that failed: then the files lie as ``layout="files"`` writes them.
    """
    request = make_request(
        name_of(model),
        resolution,
        buckets=buckets,
        dynamic=dynamic,
        size_range=size_range,
        batch=batch,
        encoding=encoding,
        weights=weights,
        model_kwargs=model_kwargs,
        seed=seed,
        interpolation=interpolation,
        antialias=antialias,
        align_corners=align_corners,
        max_length=max_length,
        tower=tower,
        pos_embed=pos_embed,
        outputs=outputs,
        target=target,
        formats=formats,
        precision=precision,
        calibration=calibration,
        min_agreement=min_agreement,
        int8_method=int8_method,
        opset=opset,
        simplify=simplify,
        skip_passes=skip_passes,
        embed_preprocess=embed_preprocess,
        pixel_order=pixel_order,
        layout=layout,
        allow_floor=allow_floor,
        verify=verify,
        verify_resolutions=verify_resolutions,
        verify_passes=verify_passes,
        verify_layers=verify_layers,
        images=images,
        rtol=rtol,
        atol=atol,
        output_dir=output_dir,
        force=force,
        threads=threads,
    )
    module = module_of(model)
    return export_request(request, module=module, progress=progress)


def export_request(
    request: ExportRequest, *, module: nn.Module | None = None, progress: Progress | None = None
) -> ExportReport:
    """Export a complete request. ``module`` takes the place of the request's MODEL string.

    Raises:
        VitpeError: as :func:`export`.
    """
    with _ONE_AT_A_TIME:
        return run_exports(request, plan_exports(request, module), progress=progress)


def verify(
    artifact: str | Path,
    *,
    against: Model | None = None,
    encoding: str | None = None,
    weights: str | Path | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    resolutions: Sequence[Size] = (),
    batches: Sequence[int] = (),
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
        artifact: an ``.onnx`` or ``.xml`` of ours, a bundle, or buckets by their index or folder.
        against: the model to compare with; what the manifest records for None.
        encoding: positional encoding of ``against``, as are weights, model_kwargs and seed.
        weights: safetensors or state dict of ``against``.
        model_kwargs: options of the constructor of ``against``.
        seed: seed of random weights of ``against``.
        resolutions: sizes; those verified at export when empty.
        batches: batches at each of ``resolutions``; those of the export when empty.
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
    from vitpe_deploy.verification import run_verify
    from vitpe_deploy.verify_buckets import find_index, verify_buckets

    options = _verify_options(
        resolutions, runtimes, device, images, layers, rtol, atol, threads, tuple(batches)
    )
    source = _against(
        against, encoding, weights, model_kwargs, seed, options.resolutions, Path(artifact)
    )
    index = find_index(Path(artifact))
    if index is not None:
        return verify_buckets(index, options, against=source, progress=progress)
    return run_verify(Path(artifact), options, against=source, progress=progress)


def bundle(
    artifact: str | Path,
    *,
    against: Model | None = None,
    encoding: str | None = None,
    weights: str | Path | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    resolutions: Sequence[Size] = (),
    images: str | Path | None = None,
    threads: int | None = None,
    output_dir: str | Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Pack an artifact with PyTorch's outputs, so that it can be checked without the model.

    Args are those of :func:`verify`; ``output_dir`` is the artifact's own folder for None.
    Gives the path of the bundle.

    Raises:
        VitpeError: see :mod:`vitpe_deploy.errors`; nothing was written.
    """
    from vitpe_deploy.buckets import is_index
    from vitpe_deploy.bundle import SUFFIX, is_bundle
    from vitpe_deploy.files import refuse_existing
    from vitpe_deploy.verification import pack

    path = Path(artifact)
    if is_bundle(path):
        raise UsageError(f"{path} is a bundle already", hint="Leave out --bundle to check it.")
    if path.is_dir() or is_index(path):
        raise UsageError(
            f"a bundle holds one file, {path} lists several",
            hint="Give --bundle one of the files in it.",
        )
    folder = path.parent if output_dir is None else Path(output_dir)
    refuse_existing([folder / f"{path.name}{SUFFIX}"], force=force)
    options = _verify_options(resolutions, None, "CPU", images, False, None, None, threads)
    source = _against(against, encoding, weights, model_kwargs, seed, options.resolutions, path)
    return pack(path, options, against=source, output_dir=folder, force=force, progress=progress)


def inspect(
    subject: Model | Path,
    *,
    encoding: str | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    tower: str | None = None,
    trace: bool = False,
    resolution: Size | None = None,
    target: str = "ort",
    progress: Progress | None = None,
) -> InspectReport:
    """Say what a model or a file is: positions, sizes, what fuses, who can run it.

    Nothing of a file is executed, and of a model given by name no weights are needed.

    Args:
        subject: a MODEL string, an ``nn.Module``, or the path of an ``.onnx``, ``.xml``, bundle,
            index of buckets or folder of buckets.
        encoding: positional encoding of a reference model.
        model_kwargs: options of the model's constructor.
        tower: vision or text, of a model that has two.
        trace: also load and trace the model and report what each pass does; as slow as an export.
        resolution: size to trace at; the native one for None.
        target: whose kernels passes spell for.
        progress: told what happens.

    Raises:
        VitpeError: see :mod:`vitpe_deploy.errors`.
    """
    from vitpe_deploy.inspection.files import inspect_file, is_file

    if not trace and resolution is not None:
        raise UsageError("--res is the size to trace at", hint="Add --trace, or leave it out.")
    if isinstance(subject, os.PathLike) or (isinstance(subject, str) and is_file(subject)):
        if encoding is not None or model_kwargs or tower is not None or trace:
            raise UsageError(
                "--pe, --model-kwarg, --tower and --trace are for models, this is a file",
                hint="Leave them out.",
            )
        return inspect_file(Path(subject))
    request = make_request(
        name_of(subject),
        resolution,
        encoding=encoding,
        model_kwargs=model_kwargs,
        tower=tower,
        target=target,
    )
    source = open_model(request, module_of(subject))
    source.facts()  # refuses what it refuses before torch is asked for
    try:
        from vitpe_deploy.inspection.models import inspect_source
    except ImportError as problem:
        raise MissingExtraError(problem.name or "torch", "export") from problem
    passes = None
    if trace:
        require_exporters()
        look = importlib.import_module("exporters.look").look_at_passes
        passes = look(request, source, progress=progress)
    return inspect_source(source, request.model.model, passes=passes)


def _against(
    model: Model | None,
    encoding: str | None,
    weights: str | Path | None,
    model_kwargs: Mapping[str, Any] | None,
    seed: int,
    sizes: Sequence[Resolution],
    artifact: Path,
) -> Source | None:
    if model is None:
        if encoding is not None or weights is not None or model_kwargs or seed:
            raise UsageError(
                "--pe, --weights, --model-kwarg and --seed describe the model of --against",
                hint="Add --against MODEL, or leave them out: the manifest has them.",
            )
        return None
    from vitpe_deploy.against import as_exported

    request = model_request(
        name_of(model), encoding=encoding, weights=weights, kwargs=model_kwargs, seed=seed
    )
    module = module_of(model)
    has_towers = None if module is None else hasattr(module, "get_text_features")
    request = as_exported(request, artifact, has_towers=has_towers)
    return source_of(request, module, sizes)


def _verify_options(
    resolutions: Sequence[Size],
    runtimes: Sequence[str] | None,
    device: str,
    images: str | Path | None,
    layers: bool,
    rtol: float | None,
    atol: float | None,
    threads: int | None,
    batches: tuple[int, ...] = (),
) -> VerifyOptions:
    from vitpe_deploy.verification import VerifyOptions

    tolerance(0.0 if rtol is None else rtol, 0.0 if atol is None else atol)
    return VerifyOptions(
        resolutions=Resolution.several(resolutions),
        runtimes=None if runtimes is None else tuple(dict.fromkeys(map(_engine, runtimes))),
        device=device,
        images=None if images is None else Path(images),
        layers=layers,
        rtol=rtol,
        atol=atol,
        threads=thread_count(threads),
        batches=batches,
    )


def _engine(name: str) -> str:
    """The canonical name of an engine that runs files.

    Raises:
        UsageError: unknown, or torch, which runs modules.
    """
    from vitpe_deploy.runtimes import canonical

    known = ("ort", "onnxruntime", "openvino")
    if name not in known:
        raise UsageError(
            f"--runtime {name!r} is not known",
            hint=f"{closest(name, known)}Choose from: ort, openvino.",
        )
    return canonical(name)
