"""Short names for rows: only what tells them apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from vitpe_deploy.bench.documents import ResultRow

Part = Callable[[ResultRow], str]


def _size(row: ResultRow) -> str:
    return "x".join(map(str, row.resolution))


def _precision(row: ResultRow) -> str:
    """That of the file, and what is executed where it is another."""
    executed = row.precision_executed
    return row.precision_stored if executed == "f32" else f"{row.precision_stored} as {executed}"


_PARTS: tuple[Part, ...] = (
    lambda row: row.model or Path(row.artifact).name,
    lambda row: row.encoding or "",
    _precision,
    lambda row: row.runtime,
    lambda row: row.device,
    _size,
    lambda row: f"batch {row.batch}",
    lambda row: f"{row.threads} threads",
    lambda row: "" if row.mode == "latency" else row.mode,
)


def short_names(rows: Sequence[ResultRow], *, same: Sequence[ResultRow] | None = None) -> list[str]:
    """A name for each row out of the parts in which the rows differ.

    Args:
        rows: what is named.
        same: the rows that names have to tell apart; ``rows`` for None.

    Returns:
        One name per row; the engine stands in every one. Rows that no part tells apart are named
        by their files.
    """
    among = list(rows if same is None else same)
    telling = [p for p in _PARTS if len({p(row) for row in among}) > 1]
    if not any(part(rows[0]) == rows[0].runtime for part in telling):
        telling.append(lambda row: row.runtime)
    names = [" ".join(word for part in telling if (word := part(row))) for row in rows]
    if len(set(names)) == len(names):
        return names
    return [f"{Path(row.artifact).name} {name}" for row, name in zip(rows, names, strict=True)]


def group_name(row: ResultRow) -> str:
    """What the rows that were timed against each other have in common."""
    threads = f"{row.threads} thread{'s' if row.threads > 1 else ''}"
    return f"{_size(row)}, batch {row.batch}, {threads}"


def groups(rows: Sequence[ResultRow]) -> list[list[ResultRow]]:
    """Rows of one size, batch, thread count and mode, in the order of the report."""
    found: dict[tuple[object, ...], list[ResultRow]] = {}
    for row in rows:
        found.setdefault((row.mode, row.threads, row.batch, row.resolution), []).append(row)
    return list(found.values())
