"""Verdicts of cells against the checked-in list of refusals, and the table they make."""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from benchmarks.families.base import ENGINES, LIMIT, MODES, Cell

REFUSALS = Path(__file__).resolve().parents[1] / "coverage_refusals.toml"

Verdict: TypeAlias = Literal["right", "wrong", "refused", "unlisted", "crashed"]


@dataclass(frozen=True)
class Refusal:
    """One entry of the list.

    Attributes:
        library: of the networks.
        names: patterns of family names.
        modes: cells that are refused.
        says: a part of the message that the user gets.
        source: file and line of the library that make it so, below site-packages.
        code: what stands on that line.
        reason: in words.
        library_runs: whether the library itself has an answer there, so that the refusal is a gap
            of this package.
    """

    library: str
    names: tuple[str, ...]
    modes: tuple[str, ...]
    says: str
    source: str
    code: str
    reason: str
    library_runs: bool = False

    def explains(self, cell: Cell) -> bool:
        """Whether it is this cell's refusal."""
        return (
            cell.library == self.library
            and cell.mode in self.modes
            and any(fnmatch.fnmatch(cell.name, pattern) for pattern in self.names)
            and self.says in (cell.refusal or "")
        )


def read_refusals(path: Path = REFUSALS) -> tuple[Refusal, ...]:
    """The checked-in list."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["refusal"]
    return tuple(
        Refusal(**{k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()})
        for entry in entries
    )


def explained(cell: Cell, listed: Sequence[Refusal]) -> Refusal | None:
    """The entry behind a cell's refusal."""
    return next((entry for entry in listed if entry.explains(cell)), None)


def verdict(cell: Cell, engine: str, listed: Sequence[Refusal]) -> Verdict:
    """Of one engine; a cell may be refused for its shape and right at a square."""
    if cell.problem is not None:
        return "crashed"
    worst = cell.worst(engine)
    if worst is not None and not worst <= LIMIT:
        return "wrong"
    if cell.refusal is not None:
        return "refused" if explained(cell, listed) is not None else "unlisted"
    return "right" if worst is not None else "wrong"


def summary(cells: Sequence[Cell], listed: Sequence[Refusal]) -> dict[str, float]:
    """Cells by verdict, each engine counted by itself.

    ``percent`` is the share of right cells among those for which the library has an answer: all but
    the refusals whose entry says that the library has none.
    """
    counts: dict[str, float] = dict.fromkeys(
        ("right", "wrong", "refused", "unlisted", "crashed"), 0
    )
    without_rule = 0
    for cell in cells:
        entry = explained(cell, listed)
        for engine in ENGINES:
            found = verdict(cell, engine, listed)
            counts[found] += 1
            without_rule += found == "refused" and entry is not None and not entry.library_runs
    answered = sum(counts.values()) - without_rule
    counts["percent"] = round(100 * counts["right"] / answered, 1) if answered else 0.0
    return counts


def shown(cell: Cell, listed: Sequence[Refusal]) -> str:
    """A cell of the table."""
    if cell.problem is not None:
        return f"CRASH {cell.problem[:60]}"
    marks = [
        f"{worst:.0e}" + (" WRONG" if not worst <= LIMIT else "")
        for worst in map(cell.worst, ENGINES)
        if worst is not None
    ]
    numbers = " / ".join(marks) + (f" ({cell.export_s:.1f} s)" if marks else "")
    if cell.refusal is None:
        return numbers or "NOTHING"
    refused = "refused" if explained(cell, listed) is not None else "REFUSED, not on the list"
    return f"{refused}; square {numbers}" if numbers else refused


def report(cells: Sequence[Cell], listed: Sequence[Refusal]) -> str:
    """Markdown: one table per library, the refusals behind it, and the count."""
    parts = []
    for library in dict.fromkeys(cell.library for cell in cells):
        own = [cell for cell in cells if cell.library == library]
        parts += [f"### {library}", "", *_table(own, listed), ""]
    parts += _reasons(cells, listed)
    counts = summary(cells, listed)
    named = ", ".join(f"{n:.0f} {v}" for v, n in counts.items() if v != "percent")
    parts.append(
        f"{len(cells)} cells in 2 engines: {named}. "
        f"{counts['percent']} % of those for which the library has an answer are right."
    )
    return "\n".join(parts)


def _table(cells: Sequence[Cell], listed: Sequence[Refusal]) -> list[str]:
    rows: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault(cell.name, {})[cell.mode] = cell
    lines = [
        "| family | native | another size, not square | dynamic, three sizes |",
        "|---|---|---|---|",
    ]
    for name, by_mode in rows.items():
        texts = [shown(by_mode[m], listed) if m in by_mode else "" for m in MODES]
        lines.append(f"| {name} | " + " | ".join(texts) + " |")
    return lines


def _reasons(cells: Sequence[Cell], listed: Sequence[Refusal]) -> list[str]:
    used: dict[Refusal, list[Cell]] = {}
    for cell in cells:
        entry = explained(cell, listed)
        if entry is not None:
            used.setdefault(entry, []).append(cell)
    if not used:
        return []
    lines = ["| refused | cells | why | source line |", "|---|---|---|---|"]
    for entry, own in used.items():
        names = ", ".join(dict.fromkeys(c.name for c in own))
        modes = ", ".join(dict.fromkeys(c.mode for c in own))
        gap = " (A gap of this package.)" if entry.library_runs else ""
        lines.append(f"| {names} | {modes} | {entry.reason}{gap} | `{entry.source}` |")
    return [*lines, ""]


def unknown_sources(listed: Sequence[Refusal], packages: Mapping[str, Path]) -> list[str]:
    """Entries whose line of source does not say what they say it does.

    Args:
        listed: the entries.
        packages: root folder above the package of each library.
    """
    wrong = []
    for entry in listed:
        file, _, number = entry.source.rpartition(":")
        path = packages[entry.library] / file
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        if not 0 < int(number) <= len(lines) or entry.code not in lines[int(number) - 1]:
            wrong.append(f"{entry.source} does not say {entry.code!r}")
    return wrong
