"""What is asked for: frozen values without I/O, shared by the command line and the Python API.

Height comes first everywhere. Nothing here imports torch, onnx or an engine.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from numbers import Integral
from pathlib import Path
from typing import Any, SupportsInt, TypeGuard, TypeVar

from vitpe_deploy.errors import UsageError

_RESOLUTION = re.compile(r"(\d{1,6})(?:[xX](\d{1,6}))?")

OPSETS = range(18, 24)
"""Opsets that are traced and verified. torch's exporter starts at 18; Attention arrives in 23."""


def is_integer(value: object) -> TypeGuard[SupportsInt]:
    """Whether it counts something: numpy's integers do, truth values do not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True, order=True)
class Resolution:
    """An image size in pixels, height first."""

    height: int
    width: int

    def __post_init__(self) -> None:
        if self.height < 1 or self.width < 1:
            raise UsageError(
                f"a size must be at least 1x1, got {self.height}x{self.width}",
                hint="Give N or HEIGHTxWIDTH in pixels, for example 384 or 384x512.",
            )

    @classmethod
    def parse(cls, text: str) -> Resolution:
        """``"384"`` is square, ``"384x512"`` is height 384 and width 512."""
        match = _RESOLUTION.fullmatch(text.strip())
        if match is None:
            raise UsageError(
                f"cannot read the size {text!r}",
                hint="Give N or HEIGHTxWIDTH in pixels, for example 384 or 384x512.",
            )
        height = int(match[1])
        return cls(height, int(match[2]) if match[2] else height)

    @classmethod
    def from_any(cls, value: Resolution | int | str | tuple[int, int] | list[int]) -> Resolution:
        """From what people pass: ``384``, ``(384, 512)``, ``"384x512"`` or a Resolution.

        Raises:
            UsageError: anything else.
        """
        if isinstance(value, Resolution):
            return value
        if isinstance(value, str):
            return cls.parse(value)
        if is_integer(value):
            return cls(int(value), int(value))
        if isinstance(value, tuple | list) and len(value) == 2 and all(map(is_integer, value)):
            return cls(int(value[0]), int(value[1]))
        raise UsageError(
            f"cannot read the size {value!r}",
            hint="Give N or (HEIGHT, WIDTH) in pixels, for example 384 or (384, 512).",
        )

    @classmethod
    def several(cls, value: object) -> tuple[Resolution, ...]:
        """One size in any form of :meth:`from_any`, or a sequence of them.

        Every item of a sequence is a size: ``(224, 384)`` is 224x224 and 384x384.

        Raises:
            UsageError: a size that cannot be read.
        """
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            return tuple(map(cls.from_any, value))
        return (cls.from_any(value),)  # type: ignore[arg-type]  # which refuses what it is not

    def __str__(self) -> str:
        return f"{self.height}x{self.width}"

    def as_list(self) -> list[int]:
        """``[height, width]``, the form that JSON uses."""
        return [self.height, self.width]


class _Choice(StrEnum):
    """A closed set of words; an unknown word is answered with the closest one."""


class Dynamic(_Choice):
    """Which dimensions of the input stay symbolic in the file."""

    NONE = "none"
    BATCH = "batch"
    SIZE = "size"
    ALL = "all"
    LENGTH = "length"

    @property
    def batch(self) -> bool:
        """Whether the batch dimension is symbolic."""
        return self in (Dynamic.BATCH, Dynamic.ALL)

    @property
    def size(self) -> bool:
        """Whether height and width are symbolic."""
        return self in (Dynamic.SIZE, Dynamic.ALL)


class Target(_Choice):
    """Whose kernels the graph is spelled for."""

    ORT = "ort"
    OPENVINO = "openvino"
    PORTABLE = "portable"


class Precision(_Choice):
    """Number format of weights and compute."""

    FP32 = "fp32"
    FP16 = "fp16"
    INT8 = "int8"
    INT8_WEIGHTS = "int8-weights"

    @property
    def by_agreement(self) -> bool:
        """Whether parity is a matter of agreement, because single numbers are rounded away."""
        return self in (Precision.INT8, Precision.INT8_WEIGHTS)


class Format(_Choice):
    """File formats."""

    ONNX = "onnx"
    OPENVINO = "openvino"
    ORT = "ort"

    @property
    def suffix(self) -> str:
        """Of the main file, with its dot."""
        return ".xml" if self is Format.OPENVINO else f".{self}"

    @property
    def engines(self) -> tuple[str, ...]:
        """Runtimes that read such files."""
        if self is Format.ONNX:
            return ("onnxruntime", "openvino")
        return ("openvino",) if self is Format.OPENVINO else ("onnxruntime",)


INT8_METHODS: Mapping[Format, tuple[str, ...]] = {
    Format.ONNX: ("dynamic", "dynamic-reduced", "static", "static-reduced"),
    Format.ORT: ("dynamic", "dynamic-reduced", "static", "static-reduced"),
    Format.OPENVINO: ("nncf", "nncf-smooth-0.15", "nncf-smooth-0.5"),
}
"""Ways of making int8; left to ``auto`` the best of those that suit the CPU is measured."""


C = TypeVar("C", bound=_Choice)


def closest(word: str, known: Iterable[str]) -> str:
    """``"Did you mean 'x'? "`` when something is near enough to be a typo, else nothing."""
    match = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"Did you mean {match[0]!r}? " if match else ""


def choose(kind: type[C], value: str | C, flag: str) -> C:
    """The member of ``kind`` that ``value`` names.

    Raises:
        UsageError: unknown word; the hint has the closest one and the whole list.
    """
    try:
        return kind(value)
    except ValueError:
        known = [member.value for member in kind]
        raise UsageError(
            f"{flag} {str(value)!r} is not known",
            hint=f"{closest(str(value), known)}Choose from: {', '.join(known)}.",
        ) from None


@dataclass(frozen=True, slots=True)
class SizeRange:
    """Bounds of a dynamic file in pixels, both ends included."""

    low: int
    high: int
    step: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high or self.step < 1:
            step = "" if self.step == 1 else f":{self.step}"
            raise UsageError(
                f"the range '{self.low}:{self.high}{step}' is empty",
                hint="LOW must be at least 1 and at most HIGH, STEP at least 1.",
            )

    @classmethod
    def parse(cls, text: str) -> SizeRange:
        """``"224:1024:32"``, the step optional."""
        parts = text.split(":")
        if len(parts) not in (2, 3) or not all(p.isdigit() and len(p) < 7 for p in parts):
            raise UsageError(
                f"cannot read the range {text!r}",
                hint="Give LOW:HIGH or LOW:HIGH:STEP, for example 224:1024:32.",
            )
        return cls(*map(int, parts))

    @classmethod
    def from_any(cls, value: SizeRange | str | tuple[int, ...] | list[int]) -> SizeRange:
        """From what people pass: ``"224:1024:32"``, ``(224, 1024, 32)`` or a SizeRange.

        Raises:
            UsageError: anything else, or an empty range.
        """
        if isinstance(value, SizeRange):
            return value
        if isinstance(value, str):
            return cls.parse(value)
        if isinstance(value, tuple | list) and len(value) in (2, 3) and all(map(is_integer, value)):
            return cls(*map(int, value))
        raise UsageError(
            f"cannot read the range {value!r}",
            hint="Give (LOW, HIGH) or (LOW, HIGH, STEP), for example (224, 1024, 32).",
        )

    def __str__(self) -> str:
        return f"{self.low}:{self.high}:{self.step}"

    def __contains__(self, size: object) -> bool:
        """Whether a Resolution lies inside on both axes and on the step."""
        if not isinstance(size, Resolution):
            return False
        return all(
            self.low <= n <= self.high and (n - self.low) % self.step == 0
            for n in (size.height, size.width)
        )


@dataclass(frozen=True, slots=True)
class ResampleOverride:
    """The user's word on how position tables are resampled; None keeps the source's own rule."""

    interpolation: str | None = None
    antialias: bool | None = None
    align_corners: bool | None = None

    def __bool__(self) -> bool:
        return any(v is not None for v in (self.interpolation, self.antialias, self.align_corners))


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Which network, with which weights."""

    model: str = "vit_small_patch16_224"
    encoding: str | None = None
    weights: Path | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    resample: ResampleOverride = ResampleOverride()
    tower: str | None = None
    pos_embed: str | None = None
    max_length: int | None = None


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Parity passes when ``max_abs <= atol + rtol * max|reference|``."""

    rtol: float = 1e-4
    atol: float = 0.0

    def limit(self, largest_reference: float) -> float:
        """The largest allowed absolute difference."""
        return self.atol + self.rtol * largest_reference


DEFAULT_RTOL: Mapping[Precision, float] = {Precision.FP32: 1e-4, Precision.FP16: 1e-2}


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """How an artifact is proved equal to PyTorch."""

    enabled: bool = True
    resolutions: tuple[Resolution, ...] = ()
    runtimes: tuple[str, ...] = ("onnxruntime", "openvino")
    device: str = "CPU"
    images: Path | None = None
    layers: bool = False
    passes: bool = False
    tolerance: Tolerance = Tolerance()


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """Everything that decides what is written.

    Attributes:
        buckets: sizes of static files that share one weights file, in place of ``resolutions``.
        pixel_order: ``nhwc`` or ``nchw`` where the file takes uint8 pixels and normalises them
            by itself; None where it takes prepared values.
        layout: how the files lie: as they are, or as a server's model repository.
    """

    model: ModelRequest = ModelRequest()
    resolutions: tuple[Resolution, ...] = ()
    buckets: tuple[Resolution, ...] = ()
    dynamic: Dynamic = Dynamic.NONE
    size_range: SizeRange | None = None
    batch: int = 1
    outputs: tuple[str, ...] = ()
    target: Target = Target.ORT
    formats: tuple[Format, ...] = (Format.ONNX,)
    precision: Precision = Precision.FP32
    calibration: str | None = None
    min_agreement: float = 0.99
    int8_method: str = "auto"
    opset: int = 20
    simplify: bool = True
    skip_passes: tuple[str, ...] = ()
    pixel_order: str | None = None
    layout: str = "files"
    allow_floor: bool = False
    verify: VerifyRequest = VerifyRequest()
    output_dir: Path = Path("out")
    force: bool = False
    threads: int | None = None
