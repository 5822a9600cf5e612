"""Data to calibrate int8 and fp16 files on, and other data to measure their agreement on.

A folder of pictures, an ``.npz`` of prepared inputs, or noise when that is asked for by name. A
file is never judged by what it was calibrated on: the samples are split, the same way each time.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vitpe_deploy.errors import ArtifactError, UsageError, VitpeError
from vitpe_deploy.inputs import InputLayout
from vitpe_deploy.request import Resolution

if TYPE_CHECKING:
    from vitpe_deploy.preprocess import Preprocess

Array: TypeAlias = npt.NDArray[Any]

RANDOM = "random"
"""The word for noise and a structured picture in place of data."""

MOST_SAMPLES = 256
"""Samples beyond these are left out: agreement hardly moves, and each takes an inference."""

MOST_CALIBRATING = 32
"""Samples beyond these judge instead: ranges hardly move any more."""


@dataclass(frozen=True, slots=True)
class CalibrationData:
    """Batches [batch, ...] that ranges are taken from, and others that the result is judged by.

    The last batch of either part is filled up from the start of the same part.
    """

    calibrate: tuple[Array, ...]
    judge: tuple[Array, ...]
    calibrated_on: int
    judged_on: int


MOST_BYTES = 2 << 30
"""An ``.npz`` that unpacks to more is not read: a few compressed bytes can claim any size."""


def check_calibration(word: str, layout: InputLayout) -> None:
    """Refuse, before anything is loaded, what cannot be calibration data.

    Raises:
        UsageError: no such file or folder, nothing in it, or arrays that do not fit the model.
        ArtifactError: an ``.npz`` that is damaged or holds NaN.
    """
    if word == RANDOM:
        return
    path = Path(word)
    if path.is_dir():
        from vitpe_deploy.images import list_images

        if layout.kind == "text":
            raise UsageError(
                "--calibration with a folder of pictures has no meaning for a text tower",
                hint="Give an .npz with token ids named input_ids.",
            )
        list_images(path)
    elif path.suffix == ".npz" and path.is_file():
        _read_npz(path, layout)
    else:
        found = "is neither a folder nor an .npz file" if path.exists() else "does not exist"
        raise UsageError(
            f"--calibration {word} {found}",
            hint="Give a folder of pictures, an .npz with arrays named like the inputs, or the "
            "word random.",
        )


def calibration_data(
    word: str, layout: InputLayout, size: Resolution, batch: int, preprocess: Preprocess
) -> CalibrationData:
    """The samples of one size: at most half of them calibrate, evenly spread, the rest judge.

    Raises:
        UsageError: the ``.npz`` holds samples of another size, or there is one sample alone.
        ArtifactError: the data cannot be read.
    """
    samples = _samples(word, layout, size, preprocess)[:MOST_SAMPLES]
    if len(samples) < 2:
        raise UsageError(
            f"--calibration {word} holds one sample: what calibrates a file cannot judge it",
            hint="Give at least two; a hundred or more make the agreement a share of inputs.",
        )
    chosen = calibrating(len(samples))
    first = [x for place, x in enumerate(samples) if place in chosen]
    rest = [x for place, x in enumerate(samples) if place not in chosen]
    return CalibrationData(_batched(first, batch), _batched(rest, batch), len(first), len(rest))


def calibrating(count: int) -> frozenset[int]:
    """Places of the samples that calibrate, of so many: sorted folders give of every class."""
    taken = min(MOST_CALIBRATING, count // 2)
    return frozenset((2 * k + 1) * count // (2 * taken) for k in range(taken))


def _samples(
    word: str, layout: InputLayout, size: Resolution, preprocess: Preprocess
) -> Sequence[Array]:
    """Inputs [1, ...] in the order of the data."""
    if word == RANDOM:
        return layout.arrays(size, 1, preprocess=preprocess, seeds=12)
    path = Path(word)
    if path.is_dir():
        return layout.arrays(size, 1, preprocess=preprocess, images=path, seeds=0)[1:]
    data = _read_npz(path, layout)
    wanted = layout.shape(size, 1)[1:]
    if data.shape[1:] != wanted:
        raise UsageError(
            f"--calibration {path}: samples of {layout.name} have shape {list(data.shape[1:])}, "
            f"the file takes {list(wanted)}",
            hint="Prepare the samples at the size that is exported.",
        )
    return np.split(data, len(data))


def _batched(samples: Sequence[Array], batch: int) -> tuple[Array, ...]:
    count = len(samples)
    return tuple(
        np.concatenate([samples[(start + k) % count] for k in range(batch)])
        for start in range(0, count, batch)
    )


def _read_npz(path: Path, layout: InputLayout) -> Array:
    """The array of the model's input [samples, ...] in its dtype.

    Raises:
        UsageError: of another name, rank, channels or dtype, or token ids out of range.
        ArtifactError: damaged, pickled or not finite.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = list(archive.files)
            if names != [layout.name]:
                raise UsageError(
                    f"--calibration {path} holds {', '.join(names) or 'nothing'}, the model takes "
                    f"{layout.name}",
                    hint=f"Save it with np.savez(path, {layout.name}=samples).",
                )
            _refuse_bomb(path)
            data = archive[layout.name]
    except VitpeError:
        raise
    except Exception as problem:  # of zipfile, zlib, and numpy's header parser
        lines = str(problem).splitlines() or [type(problem).__name__]
        raise ArtifactError(
            f"--calibration {path} cannot be read: {lines[0][:200]}",
            hint="Arrays of numbers only, saved with np.savez: pickled objects are not loaded.",
        ) from problem
    shape = layout.shape(Resolution(1, 1), 1)
    free = {0, *layout.size_axes()}
    fits = data.ndim == len(shape) and all(
        axis in free or data.shape[axis] == n for axis, n in enumerate(shape)
    )
    if not fits or data.size == 0:
        raise UsageError(
            f"--calibration {path}: {layout.name} has shape {list(data.shape)}, the model takes "
            f"{['?' if axis in free else n for axis, n in enumerate(shape)]}"
        )
    wanted = np.dtype(layout.dtype)
    if data.dtype.kind != wanted.kind:
        raise UsageError(
            f"--calibration {path}: {layout.name} is {data.dtype}, the model takes {layout.dtype}",
            hint="Save prepared inputs, as the model takes them.",
        )
    if data.dtype.kind == "f" and not np.isfinite(data).all():
        raise ArtifactError(f"--calibration {path}: {layout.name} holds NaN or infinity")
    vocabulary = getattr(layout, "vocab_size", None)
    if vocabulary is not None and (data.min() < 0 or data.max() >= vocabulary):
        raise UsageError(
            f"--calibration {path}: token ids must be from 0 to {vocabulary - 1}, "
            f"got {data.min()} to {data.max()}"
        )
    converted: Array = data.astype(wanted, copy=False)
    return converted


def _refuse_bomb(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        size = max(member.file_size for member in archive.infolist())
    if size > MOST_BYTES:
        raise UsageError(
            f"--calibration {path} unpacks to {size} bytes, more than {MOST_BYTES}",
            hint=f"At most {MOST_SAMPLES} samples are used; save no more.",
        )


def agreement_inputs(
    word: str,
    layout: InputLayout,
    size: Resolution,
    batch: int,
    *,
    preprocess: Preprocess,
    images: Path | None,
) -> tuple[Array, ...] | str:
    """Inputs that the agreement of an int8 file is counted on, or why there are none.

    Of the calibration data those that did not calibrate. There are none when the data are gone
    since, when an ``.npz`` holds another size, and when a single sample is left to judge.

    Raises:
        UsageError: the data are there, but do not fit the model any more.
        ArtifactError: they cannot be read.
    """
    if word != RANDOM and not Path(word).exists():
        return f"the calibration data {word} are not there, seen from {Path.cwd()}"
    check_calibration(word, layout)
    try:
        data = calibration_data(word, layout, size, batch, preprocess)
    except UsageError as problem:  # samples of another size
        return problem.message
    batches = data.judge
    if images is not None:
        batches += layout.arrays(size, batch, preprocess=preprocess, images=images, seeds=0)[1:]
    if data.judged_on < 2 and len(batches) < 2:
        return f"of the calibration data {word} one sample is left to judge"
    return batches
