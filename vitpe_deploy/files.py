"""Writing files so that a reader never sees half of an export.

Everything is written into a temporary folder inside the destination and moved when all of it is
complete. A set of files cannot be renamed at once, so the names are written down before the first
is moved: whoever comes next, reader or writer, finishes what a killed process had begun to move
(:func:`finish_interrupted`). A writer also removes what was never finished. A process that lives
holds a lock on its temporary folder; moves into one folder happen one set at a time.

Processes that are killed are covered, power cuts are not: nothing is forced to the disk.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vitpe_deploy.errors import ArtifactError, UsageError

fcntl: Any
try:
    fcntl = importlib.import_module("fcntl")
except ImportError:  # Windows has no advisory locks of this kind
    fcntl = None

_CHUNK = 8 << 20
_MARK = ".vitpe-tmp-"
_LOCK = ".lock"
_JOURNAL = ".commit.json"
_PROBE = 1 << 16
_UNLOCKED_AGE_S = 24 * 3600.0
"""Where there are no locks, a temporary folder of this age belongs to nobody."""

_DISK_ERRORS = frozenset(
    {
        errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO,
        errno.ENOENT, errno.ENOTDIR,
    }
)  # fmt: skip


class StagedFiles:
    """Files of one export on their way into a folder.

    Inside the ``with``, :meth:`path` gives the temporary path of a file; :meth:`commit` moves
    all of them. Leaving without a commit removes them. What the disk refuses becomes an
    :class:`ArtifactError` that names the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._staging = folder
        self._lock = -1
        self._made_folder = False
        self._names: list[str] = []

    def __enter__(self) -> Self:
        try:
            self._made_folder = not self.folder.exists()
            self.folder.mkdir(parents=True, exist_ok=True)
            with _one_at_a_time(self.folder):
                _clean(self.folder, remove_unfinished=True)
                self._staging = Path(tempfile.mkdtemp(prefix=_MARK, dir=self.folder))
                self._lock = _take_lock(self._staging / _LOCK)
        except OSError as problem:
            raise _disk_error(self.folder, problem) from problem
        return self

    def path(self, name: str) -> Path:
        """Where to write the file that will be called ``name``, which may lie in sub-folders."""
        if name not in self._names:
            self._names.append(name)
        staged = self._staging / name
        if staged.parent != self._staging:
            staged.parent.mkdir(parents=True, exist_ok=True)
        return staged

    def commit(self, *, replace: bool = True) -> tuple[Path, ...]:
        """Move every staged file to its name. Gives the final paths.

        ``replace`` decides about files of those names that are there by now: another process may
        have written them since the start.

        Raises:
            UsageError: a file is in the way, and ``replace`` is false.
            ArtifactError: the folder or a staged file is gone, or the disk refuses.
        """
        missing = [name for name in self._names if not (self._staging / name).is_file()]
        if missing:
            raise ArtifactError(
                f"cannot write to {self.folder}: {missing[0]} was removed on the way",
                hint="Is something else cleaning that folder?",
            )
        try:
            with _one_at_a_time(self.folder):
                self._check_ways(replace=replace)
                _write_journal(self._staging, self._names)
                _move(self._staging, self.folder, self._names)
                (self._staging / _JOURNAL).unlink(missing_ok=True)
        except OSError as problem:
            raise _disk_error(self.folder, problem) from problem
        finals = tuple(self.folder / name for name in self._names)
        self._names.clear()
        return finals

    def _check_ways(self, *, replace: bool) -> None:
        """Nothing may stop the moves half-way, so what would is found before the first."""
        finals = [self.folder / name for name in self._names]
        linked = next((n for n in self._names if _leads_away(self.folder, n)), None)
        if linked is not None:
            raise ArtifactError(
                f"cannot write {self.folder / linked}: it lies behind a link or a file",
                hint="Remove that, or choose another folder with --output.",
            )
        folder = next((path for path in finals if path.is_dir()), None)
        if folder is not None:
            raise ArtifactError(
                f"cannot write {folder}: a folder of that name is in the way",
                hint="Remove it, or choose another folder with --output.",
            )
        refuse_existing(finals, force=replace)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        refused: OSError | None = None
        if isinstance(error, OSError):
            # Where numpy writes by itself, the number that says why is lost.
            refused = error if error.errno is not None else disk_refusal(self._staging)
        if self._staging != self.folder:
            # Ctrl-C in the midst of the moves: what has begun is finished, never half undone.
            if names := _read_journal(self._staging):
                with suppress(OSError), _one_at_a_time(self.folder):
                    _move(self._staging, self.folder, names)
            shutil.rmtree(self._staging, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        if self._made_folder:
            with suppress(OSError):
                self.folder.rmdir()  # only goes when it is empty
        if refused is not None and refused.errno in _DISK_ERRORS:
            raise _disk_error(self.folder, refused) from error


def disk_refusal(folder: Path) -> OSError | None:
    """Why files in ``folder`` could not be written, asked by writing a little more to each.

    For libraries that do not say it themselves. What is in the folder is not usable afterwards.
    """
    try:
        for path in (*folder.iterdir(), folder / "probe"):
            if path.is_file() or not path.exists():
                with path.open("ab") as file:
                    file.write(bytes(_PROBE))
    except OSError as problem:
        return problem
    return None


def finish_interrupted(folder: Path) -> None:
    """Finish the moves that a killed process had begun in ``folder``; usually there are none.

    A folder that cannot be written to is left as it is.
    """
    with suppress(OSError):
        if any(folder.glob(f"{_MARK}*/{_JOURNAL}")):
            with _one_at_a_time(folder):
                _clean(folder, remove_unfinished=False)


def _clean(folder: Path, *, remove_unfinished: bool) -> None:
    """Finish or remove the temporary folders of processes that are gone."""
    for staging in sorted(folder.glob(f"{_MARK}*")):
        if staging.is_symlink() or not staging.is_dir() or not _is_abandoned(staging):
            continue
        names = _read_journal(staging)
        if names:
            _move(staging, folder, names)
        elif not remove_unfinished:
            continue
        shutil.rmtree(staging, ignore_errors=True)


def _write_journal(staging: Path, names: Iterable[str]) -> None:
    unfinished = staging / f"{_JOURNAL}.new"
    unfinished.write_text(json.dumps(list(names)), encoding="utf-8")
    os.replace(unfinished, staging / _JOURNAL)


def _read_journal(staging: Path) -> list[str]:
    """The names that were about to be moved; nothing when it had not come to that."""
    try:
        names = json.loads((staging / _JOURNAL).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return []
    if not isinstance(names, list):
        return []
    return [n for n in names if isinstance(n, str) and _stays_below(n)]


def _stays_below(name: str) -> bool:
    """Whether a name leads nowhere but down, on every system, and not into our own folders."""
    parts = name.split("/")
    return (
        not any(part in ("", ".", "..") for part in parts)
        and "\\" not in name
        and ":" not in name
        and not parts[0].startswith(_MARK)
    )


def _leads_away(folder: Path, name: str) -> bool:
    """Whether a sub-folder on the way to a name is a link, which may lead anywhere, or a file."""
    above = list((folder / name).relative_to(folder).parents)[:-1]
    return any((folder / p).is_symlink() or (folder / p).is_file() for p in above)


def _move(staging: Path, folder: Path, names: Iterable[str]) -> None:
    for name in names:
        if _leads_away(folder, name) or not (staging / name).is_file():
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # moved before the process was killed
            os.replace(staging / name, folder / name)


def _take_lock(path: Path) -> int:
    """An open descriptor whose lock lasts as long as this process keeps it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if fcntl is not None:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _is_abandoned(staging: Path) -> bool:
    lock = staging / _LOCK
    if fcntl is None:
        return time.time() - staging.stat().st_mtime > _UNLOCKED_AGE_S
    if not lock.is_file():  # it is made while nobody else is in the folder: its maker was killed
        return True
    descriptor = os.open(lock, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Inside, no other process of ours moves files into ``folder``."""
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _disk_error(folder: Path, problem: OSError) -> ArtifactError:
    return ArtifactError(
        f"cannot write to {folder}: {problem.strerror or problem}",
        hint="Make room, or choose another folder with --output."
        if problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        else "Choose another folder with --output.",
    )


def refuse_existing(paths: Iterable[Path], *, force: bool) -> None:
    """Refuse to write over files unless told to.

    Raises:
        UsageError: names the first file that is there.
        ArtifactError: the folder may not even be looked into.
    """
    if force:
        return
    for path in paths:
        try:
            there = path.exists()
        except OSError as problem:
            raise _disk_error(path.parent, problem) from problem
        if there:
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
