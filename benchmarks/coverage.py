"""Which families come out right, at which sizes, in which engine.

    python benchmarks/coverage.py
    python benchmarks/coverage.py --library timm --only 'swin*' --modes static,dynamic
    python benchmarks/coverage.py --results cells.jsonl --limit 120

One line per family of timm, transformers and torchvision; a cell is the largest relative
difference to the library's own eager model in ONNX Runtime and in OpenVINO, and the seconds of the
export, or the refusal. Networks are shallow (families/), nothing is downloaded, and weights are
drawn so that positions matter. With ``--results`` each finished cell is a line of a file, and cells
that are in it are not run again, but for those that crashed: the table can be made in pieces, also
by two processes.

The exit code is 1 when a cell is wrong or crashes, or when a refusal is not in
coverage_refusals.toml, which names the source line behind each.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.families import LIBRARIES, open_library
from benchmarks.families.base import MODES, Bench, Cell
from benchmarks.families.children import run_cells
from benchmarks.families.verdicts import read_refusals, report, shown, summary


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table. Gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--library", action="append", default=[], choices=LIBRARIES)
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="one family, or a pattern"
    )
    parser.add_argument("--modes", default=",".join(MODES), help=",".join(MODES))
    parser.add_argument(
        "--others", action="store_true", help="further names of the same mechanisms"
    )
    parser.add_argument("--results", type=Path, help="file of finished cells, one JSON per line")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one cell")
    parser.add_argument("--json", action="store_true", help="all numbers as JSON")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        return _child(given.threads)
    wanted = [
        (library, name, mode)
        for library in given.library or LIBRARIES
        for name in open_library(library).names(others=given.others)
        if not given.only or any(fnmatch.fnmatch(name, pattern) for pattern in given.only)
        for mode in given.modes.split(",")
    ]
    if not wanted:
        parser.error(f"no family is called {' or '.join(given.only)}")
    listed, known = read_refusals(), _finished(given.results)
    todo = [key for key in wanted if key not in known]
    command = [sys.executable, str(Path(__file__).resolve()), "--child"]
    command += ["--threads", str(given.threads)]
    for cell in run_cells(command, todo, limit_s=given.limit):
        known[cell.key] = cell
        if given.results is not None:
            with given.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(cell)) + "\n")
        text = cell.refusal or cell.problem or ""
        print(*cell.key, shown(cell, listed), text, file=sys.stderr, flush=True)
    cells = [known[key] for key in wanted]
    counts = summary(cells, listed)
    if given.json:
        print(json.dumps({"cells": [asdict(c) for c in cells], "summary": counts}, indent=1))
    else:
        print(report(cells, listed))
    return 1 if counts["wrong"] or counts["unlisted"] or counts["crashed"] else 0


def _finished(path: Path | None) -> dict[tuple[str, str, str], Cell]:
    """Cells of a file, without those that crashed; of two lines for one cell the last counts."""
    if path is None or not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    cells: Iterable[Cell] = (Cell(**json.loads(line)) for line in lines if line.strip())
    known = {cell.key: cell for cell in cells}
    return {key: cell for key, cell in known.items() if cell.problem is None}


def _child(threads: int) -> int:
    """Cells named on stdin, answered on stdout one line each; what libraries print goes away."""
    with Bench(threads=threads) as bench:
        for line in sys.stdin:
            library, name, mode = json.loads(line)
            with contextlib.redirect_stdout(sys.stderr):
                cell = bench.cell(open_library(library), name, mode)
            print(json.dumps(asdict(cell)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
