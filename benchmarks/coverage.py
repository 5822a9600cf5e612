"""Which timm families come out right, at which sizes, in which engine.

    python benchmarks/coverage.py --families families.txt
    python benchmarks/coverage.py --families families.txt --only swin_tiny_patch4_window7_224 --json

One line per family; a cell is the largest relative difference to timm's own eager model, or the
refusal. Each export runs in a process of its own, with a time limit. Weights are drawn so that
positions matter (timm_weights.py), written to a file, and put into the reference by timm alone,
without a line of this package: ``timm.create_model(NAME, pretrained=True,
pretrained_cfg_overlay=dict(file=WEIGHTS), img_size=(H, W))`` at every static size, and
``dynamic_img_size=True`` for dynamic files where the class has it.

The exit code is 1 when a cell is wrong or crashes, or when a refusal is not in
coverage_refusals.toml, which names the source line behind each.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import fnmatch
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REFUSALS = HERE / "coverage_refusals.toml"
MODES = ("native", "static", "dynamic")
ENGINES = ("onnxruntime", "openvino")
LIMIT = 1e-4


@dataclass
class Cell:
    """One family in one mode.

    Attributes:
        max_rel: by engine and size, the largest relative difference.
        export_s: seconds from the name to the file, without verification.
        refusal: the message of a refusal.
        problem: a crash, or the time limit.
    """

    family: str
    mode: str
    max_rel: dict[str, dict[str, float]] = field(default_factory=dict)
    export_s: float | None = None
    refusal: str | None = None
    problem: str | None = None

    def worst(self, engine: str) -> float | None:
        """The worst size in one engine."""
        return max(self.max_rel.get(engine, {}).values(), default=None)

    def verdict(self, engine: str, listed: Sequence[Mapping[str, Any]]) -> str:
        """right, wrong, refused (on the list), unlisted or crashed."""
        if self.problem is not None:
            return "crashed"
        if self.refusal is not None:
            return "refused" if reason_for(self, listed) is not None else "unlisted"
        worst = self.worst(engine)
        return "right" if worst is not None and worst <= LIMIT else "wrong"


def reason_for(cell: Cell, listed: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The checked-in entry that explains a refusal: family, mode and a word of the message."""
    for entry in listed:
        named = any(fnmatch.fnmatch(cell.family, pattern) for pattern in entry["families"])
        if named and cell.mode in entry["modes"] and entry["says"] in (cell.refusal or ""):
            return entry
    return None


def read_refusals(path: Path = REFUSALS) -> list[Mapping[str, Any]]:
    """The checked-in list."""
    entries: list[Mapping[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))["refusal"]
    return entries


def run_cell(
    family: str, mode: str, options: Mapping[str, Any] | None = None, *, threads: int = 2
) -> Cell:
    """Export one family and compare the file with timm, in this process."""
    import torch

    import vitpe_deploy
    from vitpe_deploy.errors import VitpeError

    torch.set_num_threads(threads)
    cell, options = Cell(family, mode), dict(options or {})
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "weights.safetensors"
        draw(family, options, weights)
        try:
            size, sizes = _sizes(family, mode, options)
            start = time.perf_counter()
            report = vitpe_deploy.export(
                f"timm:{family}",
                size,
                dynamic="all" if mode == "dynamic" else "none",
                weights=weights,
                model_kwargs=options,
                verify=False,
                output_dir=Path(folder) / "out",
                threads=threads,
            )
            cell.export_s = round(time.perf_counter() - start, 1)
        except VitpeError as problem:
            cell.refusal = problem.message
            if not isinstance(problem, vitpe_deploy.errors.UsageError):
                cell.refusal, cell.problem = None, f"{type(problem).__name__}: {problem.message}"
            return cell
        path = Path(report.artifacts[0].path)
        for height, width in sizes:
            found = _compare(family, mode, options, weights, path, (height, width), threads)
            for engine, value in found.items():
                cell.max_rel.setdefault(engine, {})[f"{height}x{width}"] = value
    return cell


def draw(family: str, options: Mapping[str, Any], path: Path) -> None:
    import timm
    from safetensors.torch import save_file

    sys.path.insert(0, str(HERE))
    from timm_weights import redraw

    with _quiet():
        module = timm.create_model(family, **options).eval()
    save_file({n: t.contiguous() for n, t in redraw(module).items()}, path)


def _sizes(
    family: str, mode: str, options: Mapping[str, Any]
) -> tuple[str | None, list[tuple[int, int]]]:
    """The size to ask for, and the sizes to compare at."""
    from vitpe_deploy.request import ModelRequest, Resolution
    from vitpe_deploy.sources import open_source

    facts = open_source(ModelRequest(f"timm:{family}", kwargs=options)).facts()
    native = facts.native or Resolution(224, 224)
    if mode == "native":
        return None, [(native.height, native.width)]
    rule = facts.sizes(symbolic=mode == "dynamic")
    _, below, other = rule.nearby(native)
    if mode == "static":
        return str(other), [(other.height, other.width)]
    return None, [(s.height, s.width) for s in (native, below, other)]


def reference(
    family: str, mode: str, options: Mapping[str, Any], weights: Path, size: tuple[int, int]
) -> Any:
    """timm's own model for a size, with the file's weights put in by timm's own loader."""
    import timm
    import torch

    def create(**more: Any) -> Any:
        given = {**options, **more}
        number = given.get("num_classes", timm.get_pretrained_cfg(family).num_classes)
        overlay = {"file": str(weights), "custom_load": False, "num_classes": number}
        with _quiet():
            module = timm.create_model(
                family, pretrained=True, pretrained_cfg_overlay=overlay, **given
            )
        return module.eval()

    if mode == "native":
        return create()
    wanted = {"dynamic_img_size": True} if mode == "dynamic" else {"img_size": size}
    try:
        return create(**wanted)
    except (TypeError, RuntimeError, AssertionError):
        module = create()  # the class has no such option, or resamples its tables while it runs
    try:
        with torch.no_grad():
            module(torch.zeros(1, int(options.get("in_chans", 3)), *size))
    except (RuntimeError, AssertionError):
        return create(img_size=size)  # timm has no network for any size, but one for each
    return module


def _compare(
    family: str,
    mode: str,
    options: Mapping[str, Any],
    weights: Path,
    path: Path,
    size: tuple[int, int],
    threads: int,
) -> dict[str, float]:
    import numpy as np
    import torch

    from vitpe_deploy.runtimes import open_runtime

    batch = 2 if mode == "dynamic" else 1
    generator = torch.Generator().manual_seed(1)
    channels = int(options.get("in_chans", 3))
    pixels = torch.randn(batch, channels, *size, generator=generator)
    with torch.no_grad():
        right = reference(family, mode, options, weights, size)(pixels).numpy()
    found: dict[str, float] = {}
    for engine in ENGINES:
        with open_runtime(engine, path, device="CPU", threads=threads) as runtime:
            given = next(iter(runtime.run({"pixel_values": pixels.numpy()}).values()))
        if given.shape != right.shape or not np.isfinite(given).all():
            found[engine] = float("inf")
        else:
            found[engine] = float(np.abs(given - right).max() / np.abs(right).max())
    return found


@contextlib.contextmanager
def _quiet() -> Any:
    import logging
    import warnings

    logging.getLogger("timm").setLevel(logging.CRITICAL)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def run_child(
    family: str, mode: str, options: Mapping[str, Any], *, threads: int, limit_s: float
) -> Cell:
    """The same in a process of its own, ended with all it started when the time is up."""
    command = [sys.executable, str(Path(__file__).resolve()), "--cell", family, mode]
    command += ["--options", repr(dict(options)), "--threads", str(threads)]
    return run_process(command, family, mode, limit_s=limit_s)


def run_process(command: Sequence[str], family: str, mode: str, *, limit_s: float) -> Cell:
    """The cell that a command prints as its last line."""
    path = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH", "")]))
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        output, noise = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return Cell(family, mode, problem=f"over {limit_s:.0f} s")
    lines = output.strip().splitlines()
    if child.returncode != 0 or not lines:
        last = (noise.strip().splitlines() or ["no output"])[-1]
        return Cell(family, mode, problem=f"exit {child.returncode}: {last[:200]}")
    return Cell(**json.loads(lines[-1]))


def table(cells: Iterable[Cell], listed: Sequence[Mapping[str, Any]]) -> str:
    """One line per family; engines in the order of the header."""
    rows: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault(cell.family, {})[cell.mode] = cell
    lines = [f"{'family':<34} {'native':<28} {'static, not square':<28} {'dynamic, 3 sizes':<28}"]
    lines.append(f"{'':<34} {'ONNX Runtime / OpenVINO (s)':<28}".rstrip())
    for family, by_mode in rows.items():
        shown = [_shown(by_mode[m], listed) if m in by_mode else "-" for m in MODES]
        lines.append(f"{family:<34} " + " ".join(f"{text:<28}" for text in shown).rstrip())
    return "\n".join(lines)


def _shown(cell: Cell, listed: Sequence[Mapping[str, Any]]) -> str:
    if cell.problem is not None:
        return f"CRASH {cell.problem[:40]}"
    if cell.refusal is not None:
        return "refused" if reason_for(cell, listed) else "REFUSED, not on the list"
    marks = [f"{cell.worst(e):.0e}" + ("" if cell.verdict(e, listed) == "right" else " WRONG")
             for e in ENGINES]  # fmt: skip
    return f"{' / '.join(marks)} ({cell.export_s:.0f} s)"


def summary(cells: Sequence[Cell], listed: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Cells by verdict, each engine counted by itself."""
    counts = dict.fromkeys(("right", "wrong", "refused", "unlisted", "crashed"), 0)
    for cell in cells:
        for engine in ENGINES:
            counts[cell.verdict(engine, listed)] += 1
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table. Gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--families", type=Path, help="file with one timm name a line")
    parser.add_argument("--only", action="append", default=[], help="one name; may be repeated")
    parser.add_argument("--modes", default=",".join(MODES), help="native,static,dynamic")
    parser.add_argument("--options", default="{}", help="constructor options, a Python dict")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one export")
    parser.add_argument("--json", action="store_true", help="all numbers as JSON")
    parser.add_argument("--cell", nargs=2, metavar=("NAME", "MODE"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    options = ast.literal_eval(given.options)
    if given.cell:
        cell = run_cell(*given.cell, options, threads=given.threads)
        print(json.dumps(asdict(cell)))
        return 0
    names = given.families.read_text(encoding="utf-8").split() if given.families else given.only
    names = [n for n in names if not given.only or n in given.only] or given.only
    if not names:
        parser.error("give --families FILE or --only NAME")
    listed, cells = read_refusals(), []
    for family in names:
        for mode in given.modes.split(","):
            cell = run_child(family, mode, options, threads=given.threads, limit_s=given.limit)
            cells.append(cell)
            if not given.json:
                text = cell.refusal or cell.problem or ""
                print(
                    f"{family} {mode}: {_shown(cell, listed)} {text}", file=sys.stderr, flush=True
                )
    counts = summary(cells, listed)
    if given.json:
        print(json.dumps({"cells": [asdict(c) for c in cells], "summary": counts}, indent=1))
    else:
        print(table(cells, listed))
        print(", ".join(f"{number} {verdict}" for verdict, number in counts.items()))
    return 1 if counts["wrong"] or counts["unlisted"] or counts["crashed"] else 0


if __name__ == "__main__":
    sys.exit(main())
