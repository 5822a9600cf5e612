"""What a command line reads from the disk, as hashes: has it changed since a result was kept?

Words that name a file or a folder stand for what is in it. Files count by their content, with those
that belong to them; folders by the names, sizes and times of all files below, because folders of
pictures are large.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from importlib.machinery import PathFinder
from os.path import exists
from pathlib import Path

from vitpe_deploy.files import sha256_of

_PYTHON = "py:"
_NOT_READ = "__pycache__"
_UNFINISHED = ".vitpe-tmp-"


def digest(words: Iterable[str]) -> str:
    """One hash of several words."""
    whole = hashlib.sha256()
    for word in words:
        whole.update(f"{len(word)}:{word}".encode())
    return whole.hexdigest()


def inputs_of(words: Iterable[str], *, apart_from: Collection[Path] = ()) -> dict[str, str]:
    """The words that name something on the disk, each with the hash of what is there.

    Args:
        words: of a command line: paths, ``hf:DIR``, ``KEY=PATH``, ``py:module:callable``.
        apart_from: files and folders that the command itself writes; those in folders that are
            read do not count.
    """
    found = {}
    for word in words:
        paths = list(_named(word))
        if paths:
            found[word] = digest(fingerprint(path, apart_from=apart_from) for path in paths)
    return found


def fingerprint(path: Path, *, apart_from: Collection[Path] = ()) -> str:
    """The hash of a file with its companions, or of a folder; of nothing when it is not there."""
    if path.is_dir():
        return digest(_listing(path, _below(path.resolve(), apart_from)))
    files = sorted({path, *_companions(path)})
    return digest(f"{file.name} {_content(file)}" for file in files if file.is_file())


def _content(file: Path) -> str:
    """What the command itself will refuse counts as one more content."""
    try:
        return sha256_of(file)
    except OSError:
        return "cannot be read"


def _below(folder: Path, paths: Iterable[Path]) -> set[Path]:
    """Those of the paths that lie in a folder, or are it, as seen from there."""
    whole = (path.resolve() for path in paths)
    return {path.relative_to(folder) for path in whole if path.is_relative_to(folder)}


def _listing(folder: Path, apart_from: Collection[Path]) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        parts = relative.parts
        if any(part == _NOT_READ or part.startswith(_UNFINISHED) for part in parts):
            continue
        if any(one in apart_from for one in (relative, *relative.parents)):
            continue
        if path.is_file():
            about = path.stat()
            yield f"{'/'.join(parts)} {about.st_size} {about.st_mtime_ns}"


def _companions(path: Path) -> Iterator[Path]:
    """Weights and manifests beside a model file, and the files that an index names."""
    yield from path.parent.glob(f"{_literal(path.name)}.*")
    if path.suffix == ".xml":
        yield path.with_suffix(".bin")
    if path.suffix == ".json" and path.is_file():
        text = path.read_text(encoding="utf-8", errors="replace")
        for name in sorted(set(re.findall(r'"([^"/\\]+\.[^"/\\]+)"', text))):
            beside = path.with_name(name)
            if beside.is_file() and beside != path:
                yield beside
                yield from beside.parent.glob(f"{_literal(name)}.*")


def _literal(name: str) -> str:
    """A name in which no letter is a wildcard."""
    return re.sub(r"([*?\[])", r"[\1]", name)


def _named(word: str) -> Iterator[Path]:
    """What a word may name: itself, what follows a prefix or a key, or a module of Python's."""
    if word.startswith(_PYTHON):
        yield from _module(word.removeprefix(_PYTHON).partition(":")[0].partition(".")[0])
        return
    for text in (word, word.partition(":")[2], word.partition("=")[2]):
        if text and exists(text):
            yield Path(text)


def _module(name: str) -> Iterator[Path]:
    """The folder of a package, or a module's file with those beside it, which it may import."""
    found = PathFinder.find_spec(name, ["", *sys.path]) if name else None
    if found is None:
        return
    if found.submodule_search_locations:
        yield from map(Path, found.submodule_search_locations)
    elif found.has_location and found.origin is not None:
        yield from sorted(Path(found.origin).parent.glob("*.py"))


__all__ = ["digest", "fingerprint", "inputs_of"]
