"""Pictures with their right classes, for top-1 beside latency.

A labels file has one line per picture, ``FILE,LABEL``: the file's path below the picture folder,
and the index of its class or its name, where the artifact's manifest knows the names::

    file,label
    zero/1.png,0
    seven/3.png,7

The first line may be that title. Pictures without a line are not counted.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitpe_deploy.errors import ArtifactError, UsageError
from vitpe_deploy.images import list_images
from vitpe_deploy.inputs import InputLayout
from vitpe_deploy.preprocess import Preprocess
from vitpe_deploy.request import Resolution

TITLE = ("file", "label")


@dataclass(frozen=True, slots=True)
class LabelledPictures:
    """Paths and class indices, in the order of the file."""

    paths: tuple[Path, ...]
    classes: tuple[int, ...]

    def top1(self, found: Sequence[int]) -> float:
        """Share of right classes."""
        return float(np.mean([a == b for a, b in zip(found, self.classes, strict=True)]))


def read_labels(file: Path, folder: Path, names: Sequence[str]) -> LabelledPictures:
    """The pictures of a labels file.

    Args:
        file: see the module's docstring.
        folder: where the pictures are.
        names: names of the classes in the order of the logits; may be empty.

    Raises:
        ArtifactError: the file cannot be read.
        UsageError: a line that is none, a picture that is not there, a class that does not exist.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            lines = [line for line in csv.reader(stream) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise ArtifactError(f"--labels {file} cannot be read: {problem}") from problem
    if lines and tuple(word.strip().lower() for word in lines[0]) == TITLE:
        lines = lines[1:]
    there = {path.relative_to(folder).as_posix(): path for path in list_images(folder)}
    paths, classes = [], []
    for line in lines:
        if len(line) != 2:
            raise UsageError(
                f"--labels {file}: {','.join(line)!r} is not FILE,LABEL",
                hint="One line per picture, for example zero/1.png,0",
            )
        name, word = (part.strip() for part in line)
        if name not in there:
            raise UsageError(
                f"--labels {file} names {name!r}, which is not in {folder}",
                hint="Paths are those below the folder of --images.",
            )
        paths.append(there[name])
        classes.append(_class(word, names, file))
    if not paths:
        raise UsageError(f"--labels {file} names no picture", hint="One line each: FILE,LABEL.")
    return LabelledPictures(tuple(paths), tuple(classes))


def _class(word: str, names: Sequence[str], file: Path) -> int:
    """A name before a number: classes of digits are called by numbers."""
    if word in names:
        return list(names).index(word)
    if word.isdigit() and (not names or int(word) < len(names)):
        return int(word)
    known = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    raise UsageError(
        f"--labels {file}: {word!r} is not a class",
        hint=f"Give the index of the class{f', or its name: {known}' if names else ''}.",
    )


def save_pictures(
    path: Path,
    pictures: LabelledPictures,
    size: Resolution,
    *,
    layout: InputLayout,
    preprocess: Preprocess,
) -> Path:
    """Write the inputs of all pictures, ``[n, ...]``, one by one. Gives the path.

    Raises:
        UsageError: the artifact does not take pictures.
    """
    if layout.kind != "image":
        raise UsageError(f"--labels are for pictures, the artifact takes {layout.kind}")
    from vitpe_deploy.images import load_image, prepare

    shape = (len(pictures.paths), *layout.shape(size, 1)[1:])
    stored = np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(layout.dtype), shape=shape)
    for place, picture in enumerate(pictures.paths):
        values = prepare(load_image(picture), size.height, size.width, preprocess)
        stored[place] = np.tile(values, (-(-shape[1] // len(values)), 1, 1))[: shape[1]]
    stored.flush()
    return path
