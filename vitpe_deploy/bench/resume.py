"""Finished rows on disk, one JSON line each, so that an interrupted run goes on where it was.

Rows of one group were timed against each other, so a group is kept whole or measured again. The
first line says how and where all of them were measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vitpe_deploy.bench.documents import ResultRow
from vitpe_deploy.bench.host import read_host
from vitpe_deploy.bench.plan import BenchOptions, Group
from vitpe_deploy.bench.rows import judge_of
from vitpe_deploy.bench.sweep import EXPORTS
from vitpe_deploy.errors import ArtifactError, UsageError
from vitpe_deploy.fingerprint import fingerprint

NAME = "bench.jsonl"
REPORTS = ("bench.json", "bench.md")
"""The finished report, beside the rows: as a document, and to be read."""

WRITTEN = (NAME, *REPORTS, EXPORTS)
"""Everything that a benchmark writes to the folder of ``--output``."""

SCHEMA = "vitpe.bench-rows/1"


def measured_how(options: BenchOptions) -> dict[str, Any]:
    """What two rows have to share to stand in one report, as plain JSON."""
    host = read_host()
    return {
        "schema": SCHEMA,
        **{f"schedule.{key}": value for key, value in asdict(options.schedule).items()},
        "images": None if options.images is None else str(options.images),
        "labels": None if options.labels is None else str(options.labels),
        **{f"content of --{name}": hashed for name, hashed in _content(options)},
        "cpu": host.cpu,
        "cores_used": host.cores_used,
        **{f"versions.{name}": version for name, version in host.versions.items()},
    }


def _content(options: BenchOptions) -> Iterator[tuple[str, str]]:
    for name, path in (("images", options.images), ("labels", options.labels)):
        if path is not None:
            yield name, fingerprint(path)[:16]


class Journal:
    """The file ``bench.jsonl`` of a folder.

    Args:
        folder: made when it is not there.
        how: of :func:`measured_how`.
        fresh: forget what the file holds.

    Raises:
        ArtifactError: the file is there and is not ours. A last line that was cut off by an
            interruption is dropped.
        UsageError: its rows were measured in another way, or somewhere else.
    """

    def __init__(self, folder: Path, how: Mapping[str, Any], *, fresh: bool = False) -> None:
        self._path = folder / NAME
        folder.mkdir(parents=True, exist_ok=True)
        self._rows: dict[str, ResultRow] = {}
        if fresh:
            self._path.unlink(missing_ok=True)
        if self._path.is_file():
            self._read(how)
        if not self._path.is_file():
            self._path.write_text(json.dumps(how) + "\n", encoding="utf-8")

    def _read(self, how: Mapping[str, Any]) -> None:
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        if not lines or not lines[0].endswith("\n"):  # killed while it wrote the first
            self._path.unlink()
            return
        self._check(lines[0], how)
        good = lines[:1]
        for number, line in enumerate(lines[1:], 2):
            try:
                row = ResultRow.model_validate_json(line)
            except ValidationError as problem:
                if number == len(lines) and not line.endswith("\n"):
                    break
                raise self._not_ours(number) from problem
            self._rows[row.id] = row
            good.append(line)
        self._path.write_text("".join(good), encoding="utf-8")

    def _check(self, line: str, how: Mapping[str, Any]) -> None:
        try:
            before = json.loads(line)
            known = before["schema"] == SCHEMA
        except (json.JSONDecodeError, KeyError, TypeError):
            known = False
        if not known:
            raise self._not_ours(1)
        for key, value in how.items():
            if before.get(key) != value:
                raise UsageError(
                    f"{self._path} was measured with {key} {before.get(key)}, now it is {value}",
                    hint="Give another --output, or --force to measure all again.",
                )

    def _not_ours(self, number: int) -> ArtifactError:
        return ArtifactError(
            f"{self._path} line {number} is not a row of vitpe-bench",
            hint="Give another --output, or --force to measure all again.",
        )

    def rows(self, group: Group, sha256: Mapping[Path, str]) -> list[ResultRow] | None:
        """The rows of a group when all of them are there, of the same files and limits."""
        found: list[ResultRow] = []
        for planned in group:
            row = self._rows.get(planned.id)
            if row is None or row.sha256 != sha256[planned.artifact.path]:
                return None
            limit = judge_of(planned.artifact.manifest).limit
            if row.agreement is not None and row.agreement.limit != limit:
                return None
            found.append(row)
        return found or None

    def keep(self, rows: Sequence[ResultRow]) -> None:
        """Append the rows of a finished group."""
        with self._path.open("a", encoding="utf-8") as file:
            for row in rows:
                file.write(row.model_dump_json() + "\n")
