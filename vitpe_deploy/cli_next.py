"""Two commands to paste next: what was not done yet, never what was just run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitpe_deploy.results import ExportReport, ParityRow, VerifyReport

_COMMANDS = 2
_SLACK = 1.05
"""A suggested tolerance is a little above the difference that was found."""
_FLAG_WORDS = {"onnxruntime": "ort"}
"""Engines by the word that ``--runtime`` is usually given."""


def after_export(report: ExportReport) -> list[str]:
    """Lines of what follows an export."""
    main = report.artifacts[0].path
    if report.verdict == "failed":
        return _lines(_after_failure(main, report.parity, layers=bool(report.layers)))
    return _lines(_after_good_export(report, main))


def after_verify(report: VerifyReport, *, bundle: bool) -> list[str]:
    """Lines of what follows a verification."""
    path, layers = report.artifact, bool(report.layers)
    if report.verdict == "failed":
        return _lines(_after_failure(path, report.parity, layers=layers or bundle))
    return _lines(_after_good_verify(report, layers=layers, bundle=bundle))


def _after_good_export(report: ExportReport, main: str) -> Iterator[str]:
    index = next((path for path in report.indexes), None)
    if report.verdict == "unverified":
        yield _command("verify", index if index and _is_buckets(index) else main)
    if index is None:
        yield _bench(main, report.parity)
        yield _command("verify", main, "--bundle")
    elif _is_buckets(index):
        yield _bench(index, report.parity)
        yield f"{_command('run', index)} IMAGE"
    else:
        yield f"{_command('run', index)} IMAGE --prompt TEXT"
        yield _bench(main, report.parity)


def _after_good_verify(report: VerifyReport, *, layers: bool, bundle: bool) -> Iterator[str]:
    path = report.artifact
    if bundle:
        yield _command("inspect", path)
        packed = Path(path).with_name(Path(path).name.removesuffix(".bundle.zip"))
        if packed.is_file():
            yield _bench(str(packed), report.parity)
        return
    if _is_buckets(path):
        yield _bench(path, report.parity)
        yield f"{_command('run', path)} IMAGE"
        return
    if not layers and _has_layers(path):
        yield _command("verify", path, "--layers")
    yield _command("verify", path, "--bundle")
    yield _bench(path, report.parity)


def _after_failure(path: str, rows: Sequence[ParityRow], *, layers: bool) -> Iterator[str]:
    """Where it goes wrong, and the tolerance that would do when it is only a matter of that."""
    if not layers and _has_layers(path):
        yield _command("verify", path, "--layers")
    needed = [row.limit_needed for row in rows if row.limit_needed is not None]
    if needed and len(needed) == len(rows):
        yield _command("verify", path, "--rtol", f"{_SLACK * max(needed):.1e}")
    yield _command("inspect", path)


def _has_layers(path: str) -> bool:
    """Whether values inside of a file can be compared."""
    from vitpe_deploy.manifest import manifest_path, read_manifest

    return manifest_path(Path(path)).is_file() and bool(read_manifest(Path(path)).layer_values)


def _is_buckets(path: str) -> bool:
    from vitpe_deploy.buckets import is_index

    return is_index(Path(path))


def _bench(path: str, rows: Sequence[ParityRow]) -> str:
    """A benchmark in the engines that were proved, which leaves PyTorch out."""
    engines = dict.fromkeys(_FLAG_WORDS.get(row.runtime, row.runtime) for row in rows)
    runtimes = ("--runtime", ",".join(engines)) if len(engines) > 1 else ()
    return _command("bench", path, *runtimes)


def _command(name: str, *words: str) -> str:
    return shlex.join((f"vitpe-{name}", *words))


def _lines(commands: Iterator[str]) -> list[str]:
    return [
        ("Next: " if k == 0 else "      ") + command
        for k, command in enumerate(islice(commands, _COMMANDS))
    ]
