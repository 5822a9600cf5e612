"""How a model wants its pixels, as plain data: refusals read it, so numpy stays out of here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from vitpe_deploy.errors import UsageError
from vitpe_deploy.request import closest

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

FILTERS = ("nearest", "bilinear", "bicubic", "lanczos")
"""Names of the filters that pictures can be resized with."""

FITS = ("box", "center-crop", "squash", "pad")
"""How a picture of another shape comes to the size of the input."""


@dataclass(frozen=True, slots=True)
class Preprocess:
    """How pixels become a model's input; the manifest carries it.

    ``value = (pixel * scale - mean) / std`` per channel. ``crop`` is the share of the picture's
    side that is kept, 1.0 for all of it. ``fit`` is one of:

    * ``box``: the largest centred box of the input's shape, shrunk by ``crop``, resized in one
      step;
    * ``center-crop``: the picture is resized until the input, enlarged by ``1 / crop``, lies
      inside it, and its centre is cut out, as timm and torchvision do;
    * ``squash``: the same, but the picture is resized to the enlarged input whatever its shape,
      as transformers does where a processor knows height and width;
    * ``pad``: the picture is resized until it lies inside the input, at its top left corner; the
      rest is zero after normalisation, as transformers' processor of SAM leaves it.
    """

    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    layout: str = "NCHW"
    color_order: str = "RGB"
    interpolation: str = "bicubic"
    crop: float = 1.0
    scale: float = 1 / 255
    fit: str = "box"

    def __post_init__(self) -> None:
        for flag, value, known in (
            ("layout", self.layout, ("NCHW",)),
            ("color_order", self.color_order, ("RGB", "BGR")),
            ("interpolation", self.interpolation, FILTERS),
            ("fit", self.fit, FITS),
        ):
            if value not in known:
                raise UsageError(
                    f"preprocess {flag} {value!r} is not known",
                    hint=f"{closest(str(value), known)}Choose from: {', '.join(known)}.",
                )
        if len(self.mean) != 3 or len(self.std) != 3 or not all(s > 0 for s in self.std):
            raise UsageError(
                f"preprocess mean {self.mean} and std {self.std} do not fit",
                hint="Give three numbers each, one per channel; std above 0.",
            )
        if not 0 < self.crop <= 1:
            raise UsageError(
                f"preprocess crop {self.crop} is out of range",
                hint="Give the share of the side to keep, above 0 and at most 1.",
            )

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; :meth:`from_dict` gives the same Preprocess back."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Preprocess:
        """From :meth:`as_dict`; keys left out take their defaults.

        Raises:
            UsageError: a key or value that is not known.
        """
        known = [field.name for field in fields(cls)]
        for key in document:
            if key not in known:
                raise UsageError(
                    f"preprocess has no key {key!r}",
                    hint=f"{closest(key, known)}Choose from: {', '.join(known)}.",
                )
        values = dict(document)
        try:
            for key in ("mean", "std"):
                if key in values:
                    values[key] = tuple(float(number) for number in values[key])
            for key in ("crop", "scale"):
                if key in values:
                    values[key] = float(values[key])
        except (TypeError, ValueError):
            raise UsageError(
                f"preprocess {key} {values[key]!r} is not a number or three of them",
                hint="mean and std take a list of three numbers, crop and scale one number.",
            ) from None
        return cls(**values)
