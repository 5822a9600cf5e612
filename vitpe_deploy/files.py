"""Writing files so that a reader never sees half of one.

Everything is written under a temporary name in the destination folder and renamed when complete;
the set of an export is renamed only after all of it is there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from vitpe_deploy.errors import ArtifactError, UsageError

_CHUNK = 8 << 20
_MARK = ".vitpe-tmp"


class StagedFiles:
    """Files of one export on their way into a folder.

    Inside the ``with``, :meth:`path` gives the temporary path of a file; :meth:`commit` renames
    all of them. Leaving without a commit removes them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._staging = folder / f"{_MARK}-{os.getpid()}"
        self._made_folder = False
        self._names: list[str] = []

    def __enter__(self) -> Self:
        try:
            self._made_folder = not self.folder.exists()
            self.folder.mkdir(parents=True, exist_ok=True)
            self._staging.mkdir(exist_ok=True)
        except OSError as problem:
            raise ArtifactError(
                f"cannot write to {self.folder}: {problem.strerror or problem}",
                hint="Choose another folder with --output.",
            ) from problem
        return self

    def path(self, name: str) -> Path:
        """Where to write the file that will be called ``name``."""
        if name not in self._names:
            self._names.append(name)
        return self._staging / name

    def commit(self) -> tuple[Path, ...]:
        """Rename every staged file to its name. Gives the final paths."""
        finals = []
        for name in self._names:
            final = self.folder / name
            try:
                os.replace(self._staging / name, final)
            except OSError as problem:
                raise ArtifactError(
                    f"cannot write {final}: {problem.strerror or problem}"
                ) from problem
            finals.append(final)
        self._names.clear()
        return tuple(finals)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._staging.is_dir():
            for leftover in self._staging.iterdir():
                leftover.unlink(missing_ok=True)
            self._staging.rmdir()
        if self._made_folder and self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()


def refuse_existing(paths: Iterable[Path], *, force: bool) -> None:
    """Refuse to write over files unless told to.

    Raises:
        UsageError: names the first file that is there.
    """
    if force:
        return
    for path in paths:
        if path.exists():
            raise UsageError(
                f"{path} exists already", hint="Use --force to replace it, or another --output."
            )


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def total_size(paths: Iterable[Path]) -> int:
    """Bytes of all files together."""
    return sum(path.stat().st_size for path in paths)
