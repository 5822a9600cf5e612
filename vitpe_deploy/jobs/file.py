"""A jobs file as command lines.

Keys are the flags of the command without their dashes, so what ``--help`` says holds here too::

    [defaults]                       # for every job that does not say otherwise
    threads = 2

    [[job]]
    model = "vit_tiny_patch16_224"
    pe = ["learned-1d", "rope-2d"]   # the flag takes one value: two jobs
    res = [224, "384x512"]           # the flag can be repeated: one job with both
    simplify = false                 # --no-simplify
    model-kwarg = { depth = 6 }
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitpe_deploy.errors import ArtifactError, UsageError
from vitpe_deploy.request import closest

NAME = "name"
WHAT = ("model", "artifact")
"""Keys whose values are arguments and no flags."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of the command as its parser knows it.

    Attributes:
        name: long, without dashes.
        switch: takes no value.
        negative: name of its opposite, or empty.
        repeats: can be given more than once.
    """

    name: str
    switch: bool = False
    negative: str = ""
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """One command line with a name that no other job of the file has."""

    name: str
    argv: tuple[str, ...]

    def has(self, flag: str) -> bool:
        """Whether the job itself gives a flag."""
        return f"--{flag}" in self.argv

    def value(self, flag: str) -> str | None:
        """What the job gives for a flag; None when it does not."""
        return self.argv[self.argv.index(f"--{flag}") + 1] if self.has(flag) else None


def read_jobs(path: Path, flags: Sequence[Flag], *, many: bool) -> tuple[Job, ...]:
    """All jobs of a file, lists multiplied out.

    Args:
        path: a TOML file.
        flags: what a job may say.
        many: whether the command takes several models or artifacts at a time.

    Raises:
        ArtifactError: the file cannot be read.
        UsageError: a key that is no flag, or two jobs of one name.
    """
    document = _read(path)
    unknown = sorted(set(document) - {"defaults", "job"})
    if unknown:
        raise UsageError(
            f"{path}: [{unknown[0]}] is not known", hint="A jobs file has [defaults] and [[job]]."
        )
    jobs, defaults = document.get("job", []), document.get("defaults", {})
    if not isinstance(jobs, list) or not jobs or not isinstance(defaults, Mapping):
        raise UsageError(f"{path} holds no jobs", hint='Begin one with [[job]] and model = "...".')
    known = {flag.name: flag for flag in flags}
    found: list[Job] = []
    for number, given in enumerate(jobs, 1):
        where = f"{path} job {number}"
        if not isinstance(given, Mapping):
            raise UsageError(f"{where} is not a table", hint="Begin it with [[job]].")
        found += _expanded({**defaults, **given}, where, known, many=many, number=number)
    names = [job.name for job in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{path}: two jobs are called {twice!r}", hint="Give each its own name.")
    return tuple(found)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise ArtifactError(f"{path} cannot be read: {problem.strerror}") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ArtifactError(f"{path} is not TOML: {problem}") from problem


def _expanded(
    given: Mapping[str, Any], where: str, known: Mapping[str, Flag], *, many: bool, number: int
) -> Iterator[Job]:
    """One job for every combination of values of flags that take one."""
    what = [(key, given[key]) for key in WHAT if key in given]
    if not what:
        raise UsageError(f"{where} names no model", hint='Add model = "vit_tiny_patch16_224".')
    fixed: list[str] = []
    choices: list[list[tuple[str, ...]]] = []
    for key, value in given.items():
        if key == NAME:
            continue
        if key in WHAT:
            words = [str(word) for word in _list(value)]
            if many:
                fixed += words
            else:
                choices.append([(word,) for word in words])
            continue
        if key not in known:
            near = closest(key, [*known, *WHAT, NAME])
            raise UsageError(f"{where}: {key!r} is not a flag", hint=f"{near}See --help.")
        options = _words(known[key], value, where)
        if len(options) == 1 or known[key].repeats:
            fixed += [word for option in options for word in option]
        else:
            choices.append(options)
    several = [options for options in choices if len(options) > 1]
    base = str(given.get(NAME) or "")
    if not base:
        arguments = [str(word) for _, value in what for word in _list(value)]
        base = f"{number:02d}-{_plain(Path(arguments[0]).name)}"
    for chosen in itertools.product(*choices):
        telling = [words[-1] for words, options in zip(chosen, choices, strict=True)
                   if options in several]  # fmt: skip
        name = "-".join([base, *map(_plain, telling)])
        yield Job(name, tuple([*(word for words in chosen for word in words), *fixed]))


def _words(flag: Flag, value: Any, where: str) -> list[tuple[str, ...]]:
    """The value of a flag as words of a command line, one tuple for each choice."""
    if flag.switch:
        if not isinstance(value, bool):
            raise UsageError(f"{where}: {flag.name} is true or false, got {value!r}")
        if value:
            return [(f"--{flag.name}",)]
        return [(f"--{flag.negative}",)] if flag.negative else [()]
    if isinstance(value, Mapping):
        value = [f"{key}={inner}" for key, inner in value.items()]
    if any(isinstance(one, bool | Mapping | list) for one in _list(value)):
        raise UsageError(f"{where}: {flag.name} takes a value or a list of them, got {value!r}")
    return [(f"--{flag.name}", str(one)) for one in _list(value)]


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def _plain(text: str) -> str:
    """Fit for the name of a folder."""
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.") or "job"
