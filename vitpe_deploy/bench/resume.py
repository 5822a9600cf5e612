"""Finished rows on disk, one JSON line each, so that an interrupted run goes on where it was.

Rows of one group were timed against each other, so a group is kept whole or measured again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from vitpe_deploy.bench.documents import ResultRow
from vitpe_deploy.bench.plan import Group
from vitpe_deploy.errors import ArtifactError

NAME = "bench.jsonl"


class Journal:
    """The file ``bench.jsonl`` of a folder.

    Raises:
        ArtifactError: the file is there and is not ours. A last line that was cut off by an
            interruption is dropped.
    """

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        self._path = folder / NAME
        folder.mkdir(parents=True, exist_ok=True)
        self._rows: dict[str, ResultRow] = {}
        if fresh:
            self._path.unlink(missing_ok=True)
        elif self._path.is_file():
            self._read()

    def _read(self) -> None:
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        good = []
        for number, line in enumerate(lines, 1):
            try:
                row = ResultRow.model_validate_json(line)
            except ValidationError as problem:
                if number == len(lines) and not line.endswith("\n"):
                    break
                raise ArtifactError(
                    f"{self._path} line {number} is not a row of vitpe-bench",
                    hint="Give another --output, or --force to measure all again.",
                ) from problem
            self._rows[row.id] = row
            good.append(line)
        self._path.write_text("".join(good), encoding="utf-8")

    def rows(self, group: Group, sha256: Mapping[Path, str]) -> list[ResultRow] | None:
        """The rows of a group when all of them are there, made from the same files."""
        found: list[ResultRow] = []
        for planned in group:
            row = self._rows.get(planned.id)
            if row is None or row.sha256 != sha256[planned.artifact.path]:
                return None
            found.append(row)
        return found or None

    def keep(self, rows: Sequence[ResultRow]) -> None:
        """Append the rows of a finished group."""
        with self._path.open("a", encoding="utf-8") as file:
            for row in rows:
                file.write(row.model_dump_json() + "\n")
