"""How latency grows with resolution, and where attention overtakes the linear layers.

    python benchmarks/resolution_scaling.py [--model vit_tiny_patch16_224] [--pe rope-2d]
        [--sizes 128,224,320,416,512,640,768] [--threads 2] [--rounds 12] [-o scaling.json]

One static file per size, timed as ``vitpe-bench`` times: a child process each, shuffled rounds.
With N tokens a block costs ``b N`` in its linear layers and ``c N^2`` in attention, so

    latency(N) = a + b N + c N^2        a, b, c >= 0, fitted to relative errors

says how they share the time: they are even at N = b / c. Counted in operations that is at
N = (8 + 4 mlp_ratio) D / 4, six times the width of a plain ViT. The exponent is the slope of
log latency over log N, over all sizes and between the two largest. Intervals are bootstrapped
over rounds.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from trust_files import export_model

from vitpe_deploy.bench import statistics
from vitpe_deploy.bench.flops import gflops
from vitpe_deploy.bench.inputs import save_inputs
from vitpe_deploy.bench.protocol import ChildSpec
from vitpe_deploy.bench.rounds import Candidate, Schedule, measure
from vitpe_deploy.manifest import read_manifest
from vitpe_deploy.threads import available_cpus

Floats = npt.NDArray[np.float64]

SIZES = (128, 224, 320, 416, 512, 640, 768)
ENGINES = ("onnxruntime", "openvino")
RESAMPLES = 400


@dataclass(frozen=True, slots=True)
class Fit:
    """``a + b N + c N^2`` in milliseconds, and the slopes of the logarithms."""

    a_ms: float
    b_ms: float
    c_ms: float
    exponent: float
    last_exponent: float

    @property
    def even_tokens(self) -> float:
        """Tokens at which attention takes as long as the linear layers; infinite for c = 0."""
        return self.b_ms / self.c_ms if self.c_ms > 0 else math.inf

    def attention_share(self, tokens: float) -> float:
        """Share of attention in the time that grows with tokens."""
        grown = self.b_ms * tokens + self.c_ms * tokens**2
        return self.c_ms * tokens**2 / grown if grown else 0.0


def fit(tokens: Floats, latency_ms: Floats) -> Fit:
    """Fit one engine.

    Args:
        tokens: [sizes], rising.
        latency_ms: [sizes].
    """
    design = np.stack([np.ones_like(tokens), tokens, tokens**2], axis=1) / latency_ms[:, None]
    a, b, c = non_negative(design, np.ones_like(tokens))
    x, y = np.log(tokens), np.log(latency_ms)
    slope = float(np.polyfit(x, y, 1)[0])
    return Fit(a, b, c, slope, float((y[-1] - y[-2]) / (x[-1] - x[-2])))


def non_negative(design: Floats, wanted: Floats) -> tuple[float, float, float]:
    """Least squares with coefficients of at least 0: the best of all subsets of the columns.

    Three columns have seven subsets, so trying them all is exact.
    """
    best, found = math.inf, (0.0, 0.0, 0.0)
    for mask in range(1, 8):
        columns = [k for k in range(3) if mask >> k & 1]
        some, *_ = np.linalg.lstsq(design[:, columns], wanted, rcond=None)
        if (some < 0).any():
            continue
        error = float(((design[:, columns] @ some - wanted) ** 2).sum())
        if error < best:
            whole = [0.0, 0.0, 0.0]
            for k, value in zip(columns, some, strict=True):
                whole[k] = float(value)
            best, found = error, (whole[0], whole[1], whole[2])
    return found


def intervals(tokens: Floats, rounds: Floats) -> dict[str, tuple[float, float]]:
    """95 % bootstrap intervals of exponent and even point; ``rounds`` is [sizes, rounds] of ms."""
    generator = np.random.default_rng(0)
    exponents, evens = [], []
    for _ in range(RESAMPLES):
        chosen = generator.integers(0, rounds.shape[1], rounds.shape[1])
        one = fit(tokens, np.median(rounds[:, chosen], axis=1))
        exponents.append(one.exponent)
        evens.append(one.even_tokens)
    return {
        "exponent": tuple(np.percentile(exponents, [2.5, 97.5])),
        # nearest rank: even points may be infinite, and between two of those lies nothing
        "even_tokens": tuple(np.percentile(evens, [2.5, 97.5], method="nearest")),
    }


def timed(files: Sequence[Path], engine: str, folder: Path, options: argparse.Namespace) -> Floats:
    """Medians per round [sizes, rounds] in milliseconds."""
    candidates = []
    for path in files:
        manifest = read_manifest(path)
        size = manifest.size()
        if size is None:
            raise ValueError(f"{path} has no size of its own")
        x = np.random.default_rng(0).standard_normal(manifest.layout().shape(size, 1))
        inputs = save_inputs(folder / f"{path.stem}.npz", [x.astype(np.float32)])
        spec = ChildSpec(str(path), engine, "CPU", options.threads, str(inputs))
        candidates.append(Candidate(path.name, spec))
    schedule = Schedule(rounds=options.rounds, min_time_s=options.min_time)
    return np.stack([statistics.round_medians(m.rounds) for m in measure(candidates, schedule)])


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--pe", help="encoding; the model's own when left out")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--threads", type=int, default=available_cpus())
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--min-time", type=float, default=2.0, help="seconds per file and engine")
    parser.add_argument("--work", type=Path, help="folder that keeps the files")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args(argv)
    sizes = sorted({int(word) for word in options.sizes.split(",")})
    if len(sizes) < 4:
        parser.error("three coefficients need at least four --sizes")
    document = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        pe = ("--pe", options.pe) if options.pe else ()
        files = [export_model(options.model, folder, *pe, "--res", str(s)) for s in sizes]
        patch = read_manifest(files[0]).patch_size
        prefix = read_manifest(files[0]).prefix_tokens
        tokens = np.array([(s // patch[0]) * (s // patch[1]) + prefix for s in sizes], float)
        work = [gflops(path, (1, 3, s, s)) for path, s in zip(files, sizes, strict=True)]
        for engine in ENGINES:
            rounds = timed(files, engine, folder, options)
            medians = np.median(rounds, axis=1)
            found, sure = fit(tokens, medians), intervals(tokens, rounds)
            low, high = sure["exponent"]
            few, many = sure["even_tokens"]
            print(f"\n{options.model} {options.pe or ''} in {engine}, {options.threads} threads\n")
            print("| px | tokens | GFLOP | median ms | GFLOP/s | attention, fitted |")
            print("|---|---|---|---|---|---|")
            for s, n, g, ms in zip(sizes, tokens, work, medians, strict=True):
                rate = "" if g is None else f"{g / ms * 1e3:.0f}"
                count = "" if g is None else f"{g:.2f}"
                share = found.attention_share(n)
                print(f"| {s} | {n:.0f} | {count} | {ms:.2f} | {rate} | {share:.0%} |")
            print(
                f"\nlatency grows as tokens^{found.exponent:.2f} ({low:.2f} to {high:.2f}), "
                f"^{found.last_exponent:.2f} between the two largest; attention overtakes the "
                f"linear layers at {found.even_tokens:.0f} tokens ({few:.0f} to {many:.0f})",
                flush=True,
            )
            document[engine] = {
                **asdict(found),
                "even_tokens": found.even_tokens if math.isfinite(found.even_tokens) else None,
                "sizes_px": sizes,
                "tokens": tokens.tolist(),
                "rounds_ms": rounds.tolist(),
            }
    if options.output is not None:
        options.output.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
