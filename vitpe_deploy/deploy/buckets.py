"""Several static files as one model: each picture goes to the bucket that is nearest to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vitpe_deploy.bucket_index import BucketIndex, read_index
from vitpe_deploy.buckets import nearest
from vitpe_deploy.deploy.inputs import is_picture, picture_size
from vitpe_deploy.deploy.loader import LoadedArtifact, Size, sequence_of
from vitpe_deploy.deploy.opened import Opened
from vitpe_deploy.deploy.predictions import Prediction, top_of
from vitpe_deploy.errors import SizeError, UsageError
from vitpe_deploy.inputs import InputLayout
from vitpe_deploy.manifest import Manifest, read_manifest
from vitpe_deploy.pixels import PixelInput
from vitpe_deploy.preprocess import Preprocess
from vitpe_deploy.request import Resolution
from vitpe_deploy.runtimes import RuntimeInfo

if TYPE_CHECKING:
    Array: TypeAlias = npt.NDArray[Any]


class LoadedBuckets(Opened):
    """The buckets of one index; an engine is opened when the first picture comes to its bucket.

    Attributes:
        path: the index.
        index: what it says.
    """

    def __init__(self, path: Path, opener: Callable[[Path, Manifest], LoadedArtifact]) -> None:
        self.path = path
        self.index: BucketIndex = read_index(path)
        self._open_file = opener
        self._manifests = {
            bucket.size: read_manifest(path.with_name(bucket.file)) for bucket in self.index.buckets
        }
        self._opened: dict[Resolution, LoadedArtifact] = {}

    def close(self) -> None:
        """Let go of every engine; a second call does nothing."""
        while self._opened:
            self._opened.popitem()[1].close()

    @property
    def sizes(self) -> tuple[Resolution, ...]:
        """Sizes of the buckets, smallest first."""
        return tuple(self._manifests)

    @property
    def size(self) -> None:
        """No one size."""
        return None

    @property
    def manifest(self) -> Manifest:
        """That of the smallest bucket; all differ in their size alone."""
        return self._manifests[self.sizes[0]]

    @property
    def info(self) -> RuntimeInfo:
        """Engine, device and precision of the bucket that was opened first."""
        return (next(iter(self._opened.values()), None) or self.bucket(self.sizes[0])).info

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes in the order of the logits; empty when not known."""
        return self.manifest.labels

    @property
    def preprocess(self) -> Preprocess:
        """How pictures become inputs."""
        return self.manifest.preprocessing()

    @property
    def layout(self) -> InputLayout:
        """What every bucket takes."""
        return self.manifest.layout()

    def bucket(self, size: Size) -> LoadedArtifact:
        """The bucket of exactly this size, opened.

        Raises:
            SizeError: there is none.
        """
        wanted = Resolution.from_any(size)
        if wanted not in self._manifests:
            raise self._no_bucket(str(wanted))
        if wanted not in self._opened:
            manifest = self._manifests[wanted]
            file = self.path.with_name(manifest.files[0])
            self._opened[wanted] = self._open_file(file, manifest)
        return self._opened[wanted]

    def choose(self, picture: Any) -> Resolution:
        """The bucket for a picture, by :func:`vitpe_deploy.buckets.nearest`."""
        return nearest(self.sizes, *picture_size(picture))

    def __call__(
        self, inputs: Any, *, size: Size | None = None, resize: bool = False
    ) -> dict[str, Array]:
        """Run on pictures, each in its bucket, or on inputs that are prepared already.

        Args:
            inputs: as :class:`~vitpe_deploy.deploy.loader.LoadedArtifact` takes them.
            size: the bucket to use, in place of the nearest.
            resize: bring prepared inputs of another size to the nearest bucket.

        Returns:
            Every output by name, one row per input in the order given.

        Raises:
            SizeError: no such bucket; names those that there are.
            UsageError: not an input of this model, or outputs that differ in shape from bucket to
                bucket.
        """
        if isinstance(inputs, np.ndarray) and not is_picture(inputs) and inputs.dtype != np.uint8:
            return self._values(inputs, resize)
        if isinstance(inputs, np.ndarray) and inputs.ndim == 4:
            layout = self.layout
            if isinstance(layout, PixelInput):
                for one in self.sizes:
                    if layout.holds(inputs, one):
                        return self.bucket(one)(inputs)
            inputs = list(inputs)
        pictures = [inputs] if is_picture(inputs) else list(sequence_of(inputs))
        if size is not None:
            return self.bucket(size)(pictures)
        chosen = [self.choose(picture) for picture in pictures]
        rows: list[dict[str, Array]] = [{} for _ in pictures]
        for wanted in dict.fromkeys(chosen):
            places = [k for k, one in enumerate(chosen) if one == wanted]
            found = self.bucket(wanted)([pictures[k] for k in places])
            for row, k in enumerate(places):
                rows[k] = {name: value[row] for name, value in found.items()}
        return _together(rows)

    def top(self, inputs: Any, count: int = 5, **options: Any) -> list[list[Prediction]]:
        """The most likely classes of every input, best first; options as in a call.

        Raises:
            UsageError: the files have no logits.
        """
        return top_of(self(inputs, **options), count, self.labels, self.path.name)

    def _values(self, values: Array, resize: bool) -> dict[str, Array]:
        """Prepared inputs in the bucket of their size, or in the nearest where that is allowed."""
        axes = tuple(self.layout.size_axes())
        offset = values.ndim - len(self.layout.shape(Resolution(1, 1), 1))
        sides = [values.shape[axis + offset] for axis in axes] if -1 <= offset <= 0 else []
        if len(sides) != 2 or min(sides) < 1:
            return self.bucket(self.sizes[0])(values)  # which says what is wrong with it
        wanted = Resolution(sides[0], sides[1])
        if wanted not in self._manifests:
            if not resize:
                raise self._no_bucket(str(wanted))
            wanted = nearest(self.sizes, wanted.height, wanted.width)
        return self.bucket(wanted)(values, resize=resize)

    def _no_bucket(self, got: str) -> SizeError:
        return SizeError(
            f"there is no bucket of {got}; there are: {', '.join(map(str, self.sizes))}",
            hint="Feed pictures, pass resize=True (vitpe-run --resize), or export with this size "
            "among --buckets.",
        )


def _together(rows: Sequence[dict[str, Array]]) -> dict[str, Array]:
    """Rows as one array per output.

    Raises:
        UsageError: an output has another shape in another bucket.
    """
    for name in rows[0]:
        shapes = sorted({row[name].shape for row in rows})
        if len(shapes) > 1:
            raise UsageError(
                f"output {name!r} has the shapes {', '.join(map(str, map(list, shapes)))} in "
                "different buckets, so these pictures cannot be one batch",
                hint="Run them one by one, or name one bucket with size= (vitpe-run --res).",
            )
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
