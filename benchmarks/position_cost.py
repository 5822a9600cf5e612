"""What positions cost when they are computed in the graph: dynamic over static latency.

    python benchmarks/position_cost.py [--only NAME] [--engine ENGINE] [--starts 3] [--rounds 50]
    python benchmarks/position_cost.py --export-only     # the files, without timing
    python benchmarks/position_cost.py --markdown        # the table of all rows measured so far

For each encoding a static and a dynamic file are exported at one size and timed at it, as
``vitpe-bench`` times: one child process per file, interleaved rounds, equal threads, ratios paired
by round. A round is one run of each file: a machine that drifts by some percent within seconds
drifts under both. A process can be slow for all of its life (where its memory lies, which core its
pool starts on), so both files are started anew several times, and the 95 % interval knows how far
the starts disagree.

Each finished row is one line of ``--results``; rows that are there are not measured again, so the
work can be cut into pieces. Targets at ViT-S/224: at most 1.02 for absolute, rotary and conditional
encodings, 1.10 for biases; exits 1 when an interval lies above its target altogether.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from vitpe_deploy.bench.inputs import save_inputs
from vitpe_deploy.bench.protocol import ChildSpec
from vitpe_deploy.bench.rounds import Candidate, Schedule, compare, measure

BIASES = frozenset({"relative-1d", "relative-2d", "decomposed", "hybrid"})
ENGINES = ("onnxruntime", "openvino")
BASELINE = "none"
WARMUP_S = 3.0
"""Seconds at most: a machine that is never stable would warm up for most of the time."""


@dataclass(frozen=True, slots=True)
class Row:
    """One encoding in one engine: ratios are dynamic over static latency."""

    encoding: str
    engine: str
    model: str
    size: int
    threads: int
    static_ms: float
    ratio: float
    low: float
    high: float

    @property
    def limit(self) -> float:
        """The target of this kind of encoding."""
        return 1.10 if self.encoding in BIASES else 1.02


def files(encoding: str, options: argparse.Namespace) -> tuple[Path, Path]:
    """Static and dynamic file of one encoding, exported in a child so that this stays small."""
    folder: Path = options.files / f"{options.model}+{encoding}-{options.size}"
    paths = folder / "static.onnx", folder / "dynamic.onnx"
    if all(path.exists() for path in paths):
        return paths
    script = (
        "import os, sys, vitpe_deploy as v\n"
        "m, e, s, o = sys.argv[1:]\n"
        "for d, r, n in (('none', int(s), 'static'), ('size', None, 'dynamic')):\n"
        "    a = v.export(m, r, encoding=e, dynamic=d, output_dir=o, verify=False, force=True)\n"
        "    os.replace(a.artifacts[0].path, f'{o}/{n}.onnx')\n"
    )
    command = [sys.executable, "-c", script, options.model, encoding, str(options.size)]
    subprocess.run([*command, str(folder)], capture_output=True, text=True, check=True)
    return paths


def measured(encoding: str, engine: str, options: argparse.Namespace) -> Row:
    """Start both files several times and time them in turns each time."""
    static, dynamic = files(encoding, options)
    pixels = np.random.default_rng(0).standard_normal((1, 3, options.size, options.size))
    inputs = save_inputs(static.with_name("inputs.npz"), [pixels.astype(np.float32)])
    candidates = [
        Candidate(path.name, ChildSpec(str(path), engine, "CPU", options.threads, str(inputs)))
        for path in (static, dynamic)
    ]
    runs = options.starts * options.rounds
    schedule = Schedule(
        rounds=runs, starts=options.starts, iters=runs, warmup_limit_s=WARMUP_S
    )  # one run of each file per round
    first, second = measure(candidates, schedule)
    ratio = compare(first, second)
    return Row(
        encoding=encoding,
        engine=engine,
        model=options.model,
        size=options.size,
        threads=options.threads,
        static_ms=round(first.summary.median, 2),
        ratio=round(ratio.median, 4),
        low=round(ratio.low, 4),
        high=round(ratio.high, 4),
    )


def read_rows(path: Path, options: argparse.Namespace) -> dict[tuple[str, str], Row]:
    """Rows of earlier runs that were made with the same model, size and threads."""
    if not path.exists():
        return {}
    rows = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = Row(**json.loads(line))
        if (row.model, row.size, row.threads) == (options.model, options.size, options.threads):
            rows[row.encoding, row.engine] = row
    return rows


def markdown(rows: Sequence[Row]) -> str:
    """The table; the ratio over ``none`` is what the encoding adds to symbolic shapes alone."""
    bare = {row.engine: row.ratio for row in rows if row.encoding == BASELINE}
    lines = [
        "| encoding | engine | static ms | dynamic/static | 95 % interval | over `none` | target |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda r: (r.encoding, r.engine)):
        over = f"{row.ratio / bare[row.engine]:.3f}" if row.engine in bare else "-"
        lines.append(
            f"| {row.encoding} | {row.engine} | {row.static_ms:.1f} | {row.ratio:.3f} "
            f"| {row.low:.3f} to {row.high:.3f} | {over} | {row.limit:.2f} |"
        )
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """The options."""
    from vitpe_deploy.threads import available_cpus

    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--only", action="append", help="an encoding; repeatable")
    options.add_argument("--engine", action="append", choices=ENGINES, help="repeatable")
    options.add_argument("--model", default="vit_small_patch16_224")
    options.add_argument("--size", type=int, default=224)
    options.add_argument("--starts", type=int, default=3, help="how often both files are started")
    options.add_argument("--rounds", type=int, default=50, help="runs of each file per start")
    options.add_argument("--threads", type=int, default=available_cpus())
    options.add_argument("--results", type=Path, default=Path("out/position_cost.jsonl"))
    options.add_argument("--files", type=Path, default=Path("out/position_cost"))
    options.add_argument("--export-only", action="store_true")
    options.add_argument("--markdown", action="store_true", help="print what was measured; no more")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is missing, print every row, say which are above their targets."""
    from vitpe_deploy import encodings

    options = parser().parse_args(argv)
    rows = read_rows(options.results, options)
    if options.markdown:
        print(markdown(list(rows.values())))
    else:
        names = options.only or [n for n in encodings.names() if "vit" in encodings.networks_of(n)]
        for name in names:
            files(name, options)
        missing = [(n, e) for n in names for e in options.engine or ENGINES if (n, e) not in rows]
        for name, engine in () if options.export_only else missing:
            row = measured(name, engine, options)
            options.results.parent.mkdir(parents=True, exist_ok=True)
            rows[name, engine] = row
            with options.results.open("a", encoding="utf-8") as out:
                out.write(json.dumps(asdict(row)) + "\n")
            print(f"{name} in {engine}: {row.ratio:.3f} ({row.low:.3f} to {row.high:.3f})")
            sys.stdout.flush()
    above = [row for row in rows.values() if row.low > row.limit]
    for row in above:
        print(f"above its target: {row.encoding} in {row.engine}", file=sys.stderr)
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
