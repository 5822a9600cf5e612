"""``vitpe_deploy.load``: a file that answers for pictures, with its own preprocessing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vitpe_deploy.buckets import is_index
from vitpe_deploy.deploy.choice import choose_artifact, choose_runtime
from vitpe_deploy.deploy.inputs import is_picture, pictures_to_batch, values_to_batch
from vitpe_deploy.deploy.opened import Opened
from vitpe_deploy.deploy.predictions import Prediction, top_of
from vitpe_deploy.errors import ArtifactError, SizeError, UsageError
from vitpe_deploy.inputs import InputLayout
from vitpe_deploy.manifest import Manifest, read_manifest
from vitpe_deploy.pixels import PixelInput
from vitpe_deploy.preprocess import Preprocess
from vitpe_deploy.request import Resolution
from vitpe_deploy.runtimes import RuntimeInfo, TensorInfo, open_runtime
from vitpe_deploy.runtimes.compile_cache import cache_root

if TYPE_CHECKING:
    from vitpe_deploy.deploy.buckets import LoadedBuckets

    Array: TypeAlias = npt.NDArray[Any]

Size: TypeAlias = "Resolution | int | str | tuple[int, int]"

MAX_BATCH = 8
"""Inputs of one run of a file whose batch is symbolic; more would only take memory."""


def load(
    path: str | Path,
    *,
    device: str = "CPU",
    runtime: str | None = None,
    threads: int | None = None,
    cache: str | Path | bool | None = None,
) -> LoadedArtifact | LoadedBuckets:
    """Load an artifact, buckets, or what is in a folder, to run it on pictures.

        with vitpe_deploy.load("out") as model:
            model("cat.jpg")["logits"]        # [1, classes]
            model.top("cat.jpg")[0][0].label

    Args:
        path: an ``.onnx`` or ``.xml`` of ours with its manifest, an index of buckets, or a folder
            with one export.
        device: in the engine's own words: CPU, GPU.1, NPU, AUTO.
        runtime: onnxruntime or openvino; what the file and the device go with for None.
        threads: threads of the engine; the CPUs this process may use for None.
        cache: folder where OpenVINO's compiled models are kept for the next start, True for the
            user's own cache folder; None keeps nothing. ONNX Runtime has nothing to keep.

    Raises:
        ArtifactError: a file is missing, damaged or not ours.
        DeviceError: no such device here.
        UsageError: several exports in the folder, or no such engine.
    """
    artifact = choose_artifact(Path(path), device, runtime)
    kept = cache_root(cache)

    def open_file(file: Path, manifest: Manifest) -> LoadedArtifact:
        engine = choose_runtime(file, device, runtime)
        if kept is not None and engine != "openvino":
            raise UsageError(
                f"cache is for OpenVINO, {file.name} would run in {engine}, which keeps nothing",
                hint="Leave cache out, or choose runtime='openvino' (vitpe-run --runtime).",
            )
        return LoadedArtifact(file, manifest, engine, device, threads, kept)

    if is_index(artifact):
        from vitpe_deploy.deploy.buckets import LoadedBuckets

        return LoadedBuckets(artifact, open_file)
    return open_file(artifact, read_manifest(artifact))


class LoadedArtifact(Opened):
    """A model in an engine, open until :meth:`close` or the end of a ``with``.

    Attributes:
        path: the file.
        manifest: everything known of it.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        runtime: str,
        device: str,
        threads: int | None,
        cache: Path | None = None,
    ) -> None:
        self.path = path
        self.manifest = manifest
        self._layout = manifest.layout()
        self._preprocess = manifest.preprocessing()
        self._runtime = open_runtime(runtime, path, device=device, threads=threads, cache=cache)
        self._runtime.__enter__()
        try:
            _check_described(manifest, self._runtime.inputs, path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the engine; a second call does nothing."""
        self._runtime.__exit__(None, None, None)

    @property
    def info(self) -> RuntimeInfo:
        """Engine, device and precision, as they are executed."""
        return self._runtime.info

    @property
    def size(self) -> Resolution | None:
        """The one size of a static file; None where height and width are symbolic."""
        return self.manifest.size()

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes in the order of the logits; empty when not known."""
        return self.manifest.labels

    @property
    def preprocess(self) -> Preprocess:
        """How pictures become inputs."""
        return self._preprocess

    @property
    def layout(self) -> InputLayout:
        """What the file takes."""
        return self._layout

    def __call__(
        self,
        inputs: Any,
        *,
        size: Size | None = None,
        resize: bool = False,
    ) -> dict[str, Array]:
        """Run on pictures or on inputs that are prepared already.

        Args:
            inputs: a picture (path, Pillow image, uint8 [H, W, 3]), a sequence of them, or an
                array as the model takes it: float32 [B, C, H, W], token ids [B, L]. A file that
                takes pixels takes uint8 arrays of exactly its shape as they are.
            size: the size to bring pictures to in a file of symbolic size; native for None.
            resize: resample prepared inputs of another size instead of refusing them.

        Returns:
            Every output by name, the batch first, one row per input.

        Raises:
            SizeError: a size that the file does not take; names the right one.
            UsageError: not an input of this model.
        """
        batch = self.prepare(inputs, size=size, resize=resize)
        rows = [self._run(part, count) for part, count in self._parts(batch)]
        return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}

    def prepare(
        self,
        inputs: Any,
        *,
        size: Size | None = None,
        resize: bool = False,
    ) -> Array:
        """What goes into the engine for ``inputs``; arguments as in a call."""
        if isinstance(inputs, np.ndarray) and not is_picture(inputs):
            as_it_is = isinstance(self._layout, PixelInput) and self._layout.holds(
                inputs, self.size
            )
            if inputs.dtype == np.uint8 and inputs.ndim == 4 and not as_it_is:
                inputs = list(inputs)
            else:
                return values_to_batch(
                    inputs, self.size, self._layout, self._preprocess, resize=resize
                )
        pictures = [inputs] if is_picture(inputs) else sequence_of(inputs)
        return pictures_to_batch(pictures, self._target(size), self._layout, self._preprocess)

    def top(self, inputs: Any, count: int = 5, **options: Any) -> list[list[Prediction]]:
        """The most likely classes of every input, best first; options as in a call.

        Raises:
            UsageError: the file has no logits.
        """
        return top_of(self(inputs, **options), count, self.labels, self.path.name)

    def _target(self, size: Size | None) -> Resolution:
        """The size that pictures are brought to."""
        own = self.size
        wanted = None if size is None else Resolution.from_any(size)
        if own is not None:
            if wanted not in (None, own):
                raise SizeError(
                    f"this file takes {own}, asked for {wanted}",
                    hint=f"Leave the size out, or export another file with --res {wanted}.",
                )
            return own
        if wanted is not None:
            return wanted
        native = self.manifest.native_resolution
        if native is None:
            raise UsageError(
                f"{self.path.name} takes many sizes and has no native one", hint="Give a size."
            )
        return Resolution(*native)

    def _parts(self, batch: Array) -> list[tuple[Array, int]]:
        """Batches that the file takes, each with the number of inputs that are not padding."""
        fixed = self.manifest.batch
        step = fixed or MAX_BATCH
        parts = []
        for start in range(0, len(batch), step):
            part = batch[start : start + step]
            count = len(part)
            if fixed is not None and count < fixed:
                part = np.concatenate([part, np.repeat(part[-1:], fixed - count, axis=0)])
            parts.append((part, count))
        if not parts:
            raise UsageError("there is nothing to run", hint="Give at least one input.")
        return parts

    def _run(self, part: Array, count: int) -> Mapping[str, Array]:
        outputs = self._runtime.run({self._runtime.inputs[0].name: part})
        for name, value in outputs.items():
            if value.ndim == 0 or len(value) != len(part):
                raise ArtifactError(
                    f"output {name!r} has shape {list(value.shape)} for a batch of {len(part)}"
                )
        return {name: value[:count] for name, value in outputs.items()}


def _check_described(manifest: Manifest, inputs: Sequence[TensorInfo], path: Path) -> None:
    """Refuse a manifest that speaks of another file.

    Raises:
        ArtifactError: the file has other inputs, or another shape.
    """
    layout, size = manifest.layout(), manifest.size()
    shape = list(layout.shape(size or Resolution(1, 1), manifest.batch or 1))
    given = inputs[0].shape if len(inputs) == 1 else ()
    free = set() if size is not None else set(layout.size_axes())
    free |= {0} if manifest.batch is None else set()
    same = len(shape) == len(given) and all(
        axis in free if not isinstance(dim, int) else dim == shape[axis]
        for axis, dim in enumerate(given)
    )
    if not same:
        described = ", ".join(map(str, inputs))
        raise ArtifactError(
            f"the manifest of {path.name} does not describe it: {shape} against {described}",
            hint="Keep the files of an export together, or export again.",
        )


def sequence_of(inputs: Any) -> Sequence[Any]:
    """Several inputs as they were given.

    Raises:
        UsageError: none, or something else.
    """
    if isinstance(inputs, Sequence) and not isinstance(inputs, (str, bytes)) and len(inputs):
        return inputs
    raise UsageError(
        f"cannot run on {type(inputs).__name__}"
        + (" of length 0" if isinstance(inputs, Sequence) else ""),
        hint="Give a path, a Pillow image, an array, or a sequence of pictures.",
    )
