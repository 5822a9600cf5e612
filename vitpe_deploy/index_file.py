"""An index: a small document that lists files of its own folder that belong together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from vitpe_deploy.errors import ArtifactError
from vitpe_deploy.files import finish_interrupted
from vitpe_deploy.results import Value

Index = TypeVar("Index", bound=Value)


def read_index_file(
    path: Path, kind: type[Index], *, what: str, whole: str, files: Callable[[Index], Iterable[str]]
) -> Index:
    """An index from its file.

    Args:
        path: the document.
        kind: what it must be.
        what: how a message calls the document, ``an index of buckets``.
        whole: how it calls what is listed, ``the buckets``.
        files: names of the files that an index lists.

    Raises:
        ArtifactError: missing, damaged, or files that it lists are missing.
    """
    finish_interrupted(path.parent)
    if not path.is_file():
        raise ArtifactError(f"{path} does not exist")
    try:
        index = kind.model_validate_json(path.read_bytes())
    except (ValidationError, OSError) as problem:
        lines = " ".join(str(problem).splitlines()[:3])
        raise ArtifactError(f"{path} is not {what}: {lines[:200]}") from problem
    for name in files(index):
        if Path(name).name != name:
            raise ArtifactError(f"{path} names a file outside its folder: {name!r}")
        if not (path.parent / name).is_file():
            raise ArtifactError(
                f"{path.name} is incomplete: {name} is missing in {path.parent}",
                hint=f"Keep all files of {whole} in one folder.",
            )
    return index
