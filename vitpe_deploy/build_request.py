"""From Python's own types, or the command line's text, to a frozen request.

Nothing here looks at the model: what only its facts can tell is decided when the export is planned.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from vitpe_deploy.errors import UsageError
from vitpe_deploy.request import (
    DEFAULT_RTOL,
    INT8_METHODS,
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
    closest,
    is_integer,
)
from vitpe_deploy.towers import check_tower

Size: TypeAlias = "Resolution | int | str | tuple[int, int]"

KERNELS = ("bicubic", "bilinear")

_LARGEST_SEED = 2**63 - 1
"""torch's generators take 64 bits."""


def make_request(
    model: str = "vit_small_patch16_224",
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
) -> ExportRequest:
    """The request that :func:`vitpe_deploy.export` carries out; same arguments.

    Raises:
        UsageError: a value that cannot be read or does not exist.
    """
    chosen = choose(Precision, precision, "--precision")
    return ExportRequest(
        model=model_request(
            model,
            encoding=encoding,
            weights=weights,
            kwargs=model_kwargs,
            seed=seed,
            max_length=max_length,
            tower=tower,
            pos_embed=pos_embed,
            resample=ResampleOverride(_interpolation(interpolation), antialias, align_corners),
        ),
        resolutions=_sizes(resolution),
        buckets=() if buckets is None else Resolution.several(buckets),
        dynamic=choose(Dynamic, dynamic, "--dynamic"),
        size_range=None if size_range is None else SizeRange.from_any(size_range),
        batch=batch,
        outputs=tuple(outputs),
        target=choose(Target, target, "--target"),
        formats=tuple(choose(Format, f, "--format") for f in dict.fromkeys(formats)),
        precision=chosen,
        calibration=None if calibration is None else str(calibration),
        min_agreement=_agreement(min_agreement),
        int8_method=_int8_method(int8_method),
        opset=opset,
        simplify=simplify,
        skip_passes=tuple(skip_passes),
        pixel_order=_pixel_order(embed_preprocess, pixel_order),
        layout=_layout(layout),
        allow_floor=allow_floor,
        verify=VerifyRequest(
            enabled=verify,
            resolutions=Resolution.several(verify_resolutions),
            images=None if images is None else Path(images),
            layers=verify_layers,
            passes=verify_passes,
            tolerance=tolerance(DEFAULT_RTOL.get(chosen, 1e-2) if rtol is None else rtol, atol),
        ),
        output_dir=Path(output_dir),
        force=force,
        threads=thread_count(threads),
    )


def model_request(
    model: str,
    *,
    encoding: str | None = None,
    weights: str | Path | None = None,
    kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    resample: ResampleOverride = ResampleOverride(),
    max_length: int | None = None,
    tower: str | None = None,
    pos_embed: str | None = None,
) -> ModelRequest:
    """Which network, with which weights.

    Raises:
        UsageError: a seed that torch does not take, or a tower that does not exist.
    """
    if not 0 <= seed <= _LARGEST_SEED:
        raise UsageError(f"--seed must be from 0 to {_LARGEST_SEED}, got {seed}")
    return ModelRequest(
        model=model,
        encoding=encoding,
        weights=None if weights is None else Path(weights),
        kwargs=dict(kwargs or {}),
        seed=seed,
        resample=resample,
        max_length=max_length,
        tower=check_tower(tower),
        pos_embed=pos_embed,
    )


def name_of(model: object) -> str:
    """The MODEL string, or the class of a module."""
    return os.fspath(model) if isinstance(model, str | os.PathLike) else type(model).__name__


def module_of(model: Any) -> Any:
    """The module that was given in place of a MODEL string; None for a string or a path.

    Raises:
        UsageError: it is none of these.
    """
    if isinstance(model, str | os.PathLike):
        return None
    if not callable(getattr(model, "named_parameters", None)):
        raise UsageError(
            f"a model is a name, a path or a torch module, got {type(model).__name__}",
            hint="See the docstring of vitpe_deploy.export.",
        )
    return model


def thread_count(threads: int | None) -> int | None:
    """``threads`` as given.

    Raises:
        UsageError: below 1.
    """
    if threads is not None and threads < 1:
        raise UsageError(
            f"--threads must be at least 1, got {threads}",
            hint="Leave it out to use every CPU this process may use.",
        )
    return threads


def _sizes(resolution: Size | Sequence[Size] | None) -> tuple[Resolution, ...]:
    """One size or several; a tuple of two integers is one, height and width."""
    if resolution is None:
        return ()
    if isinstance(resolution, tuple) and resolution and all(map(is_integer, resolution)):
        return (Resolution.from_any(resolution),)
    return Resolution.several(resolution)


def _pixel_order(embed: bool, order: str | None) -> str | None:
    if order is not None and not embed:
        raise UsageError(
            "--pixel-order is for files that take pixels", hint="Add --embed-preprocess."
        )
    return (order or "nhwc") if embed else None


def _layout(name: str) -> str:
    if name != "files":  # the others bring the manifest along, which refusals do without
        from vitpe_deploy.layouts import layout_of

        return layout_of(name).name
    return name


def _interpolation(value: str | None) -> str | None:
    if value is not None and value not in KERNELS:
        raise UsageError(
            f"--interpolation {value!r} is not known",
            hint=f"{closest(value, KERNELS)}Choose from: {', '.join(KERNELS)}.",
        )
    return value


def _agreement(value: float) -> float:
    if not 0 < value <= 1:
        raise UsageError(f"--min-agreement must be above 0 and at most 1, got {value}")
    return value


def _int8_method(value: str) -> str:
    known = ("auto", *(m for methods in INT8_METHODS.values() for m in methods))
    if value not in known:
        raise UsageError(
            f"--int8-method {value!r} is not known",
            hint=f"{closest(value, known)}Choose from: {', '.join(known)}.",
        )
    return value


def tolerance(rtol: float, atol: float) -> Tolerance:
    """Both as a tolerance.

    Raises:
        UsageError: negative, infinite or not a number.
    """
    for flag, number in (("--rtol", rtol), ("--atol", atol)):
        if not number >= 0 or number == float("inf"):
            raise UsageError(f"{flag} must be a number of at least 0, got {number}")
    return Tolerance(rtol, atol)
