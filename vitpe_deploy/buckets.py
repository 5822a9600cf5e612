"""Static files of several sizes that share one weights file: names, refusals, the choice.

Devices that take fixed shapes alone (the NPU) run pictures of any size this way: :func:`nearest`
chooses the bucket, and the stored preprocessing brings the picture to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitpe_deploy.errors import UsageError
from vitpe_deploy.request import Format, Resolution

if TYPE_CHECKING:
    from vitpe_deploy.request import ExportRequest

SUFFIX = ".buckets.json"

_DATA_SUFFIX = {"onnx": ".onnx.data", "openvino": ".bin"}


@dataclass(frozen=True, slots=True)
class BucketFiles:
    """Names of what the buckets of one export share.

    Attributes:
        stem: model, batch and precision.
        target: ``-portable`` and the like for ONNX files of another target than the default.
    """

    stem: str
    target: str = ""

    def data_name(self, kind: str) -> str:
        """The weights of all buckets of one format."""
        return f"{self._stem(kind)}{_DATA_SUFFIX[kind]}"

    def index_name(self, kind: str) -> str:
        """The list of the buckets of one format."""
        return f"{self._stem(kind)}{Format(kind).suffix}{SUFFIX}"

    def _stem(self, kind: str) -> str:
        return f"{self.stem}{self.target if kind == 'onnx' else ''}"


def is_index(path: Path) -> bool:
    """Whether the name is that of an index of buckets."""
    return path.name.endswith(SUFFIX)


def check_buckets(request: ExportRequest, *, symbolic_size: bool) -> None:
    """Refuse what contradicts ``--buckets``.

    Raises:
        UsageError: sizes named in two ways, a symbolic size, or a format without shared weights.
    """
    if request.resolutions:
        raise UsageError(
            "--buckets contradicts --res: both name the sizes",
            hint="Keep --buckets for files that share their weights, --res for files that do not.",
        )
    if symbolic_size:
        raise UsageError(
            f"--buckets contradicts --dynamic {request.dynamic}: a bucket has one size",
            hint="Leave one of them out; --dynamic batch goes with --buckets.",
        )
    unable = [kind.value for kind in request.formats if kind.value not in _DATA_SUFFIX]
    if unable:
        raise UsageError(
            f"--buckets contradicts --format {unable[0]}, whose files hold their own weights",
            hint=f"Use --format {' or '.join(_DATA_SUFFIX)}, or --res for separate files.",
        )


def nearest(sizes: Sequence[Resolution], height: int, width: int) -> Resolution:
    """The bucket for a picture of ``height`` x ``width`` pixels.

    The nearest shape first, because a wrong shape costs content; among buckets of that shape the
    nearest area, because a wrong scale costs detail. Shapes are compared by the ratio of their
    ratios, areas by their ratio; of equals the smaller bucket is taken.
    """

    def distance(size: Resolution) -> tuple[float, float, int]:
        shape = abs(math.log(size.height * width / (size.width * height)))
        area = size.height * size.width
        return round(shape, 9), round(abs(math.log(area / (height * width))), 9), area

    return min(sizes, key=distance)
