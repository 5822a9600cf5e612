"""Accuracy of the embedded models at sizes they were not trained for, in every engine.

    python benchmarks/digits_accuracy.py                          # all models
    python benchmarks/digits_accuracy.py --only digits-rope-2d    # one; repeat the flag for more
    python benchmarks/digits_accuracy.py --markdown               # the tables of docs/digits.md
    python benchmarks/digits_accuracy.py --json

Every model is exported baked, one file per size with a symbolic batch, and in-graph, one file for
all sizes. Each file classifies all 449 test digits in ONNX Runtime and in OpenVINO, and the
untouched PyTorch model classifies the same inputs. An engine must give PyTorch's class for every
picture, except where PyTorch's own logits of the two classes are within 1e-4. Exit code 1 when one
does not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import vitpe_deploy
from vitpe_deploy import digits
from vitpe_deploy.digits import dataset
from vitpe_deploy.errors import UsageError, VitpeError
from vitpe_deploy.models.presets import VideoConfig
from vitpe_deploy.request import ModelRequest, Resolution, closest
from vitpe_deploy.runtimes import open_runtime
from vitpe_deploy.sources import open_source

SIZES_PX = (24, 32, 48, 64)
NATIVE_PX = 32
ENGINES = ("onnxruntime", "openvino")
POSITIONS = ("baked", "in-graph")
TIE = 1e-4
BATCH = 64

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Variant:
    """A model, perhaps with its positions read in another way by the same weights."""

    model: str
    mode: str | None = None

    @property
    def name(self) -> str:
        """How the tables call it."""
        return self.model if self.mode is None else f"{self.model} ({self.mode})"

    @property
    def kwargs(self) -> dict[str, Any]:
        """``--model-kwarg``."""
        return {} if self.mode is None else {"pe.mode": self.mode}


@dataclass(frozen=True, slots=True)
class Row:
    """One file in one engine at one size; PyTorch is both files' own reference.

    Attributes:
        accuracy: share of test digits classified right.
        torch_accuracy: of the untouched model, on the same inputs.
        ties: pictures with another class than PyTorch's, whose logits PyTorch has within 1e-4.
        disagreements: pictures with another class that is no tie. Must be 0.
        max_rel: largest difference of logits over the largest logit.
    """

    model: str
    size_px: int
    positions: str
    engine: str
    accuracy: float
    torch_accuracy: float
    ties: int
    disagreements: int
    max_rel: float


def variants(models: list[str]) -> list[Variant]:
    """Each model; sinusoids in both modes."""
    found = []
    for model in models:
        sinusoidal = digits.PRESETS[model].encoding.startswith("sincos")
        modes = ("extrapolate", "rescale") if sinusoidal else (None,)
        found += [Variant(model, mode) for mode in modes]
    return found


def test_inputs(model: str, pixels: dataset.Pixels, size_px: int) -> dataset.Inputs:
    """All digits at a size, as pictures or as clips."""
    config, size = digits.PRESETS[model], Resolution(size_px, size_px)
    if isinstance(config, VideoConfig):
        return dataset.clips(pixels, size, config.frames)
    return dataset.pictures(pixels, size)


def torch_logits(variant: Variant, inputs: Mapping[int, dataset.Inputs]) -> dict[int, Logits]:
    """The eager model at each size, a fresh copy for each."""
    import torch

    loaded = open_source(ModelRequest(variant.model, kwargs=variant.kwargs)).load()
    found = {}
    for size_px, x in inputs.items():
        size = Resolution(size_px, size_px)
        module = loaded.fresh(size)
        with torch.inference_mode():
            parts = [
                loaded.call(module, torch.from_numpy(x[start : start + BATCH]), ("logits",))
                for start in range(0, len(x), BATCH)
            ]
        found[size_px] = torch.cat([part["logits"] for part in parts]).numpy()
    return found


def engine_logits(engine: str, path: Path, x: dataset.Inputs, threads: int) -> Logits:
    """All inputs through a file."""
    with open_runtime(engine, path, threads=threads) as runtime:
        name = runtime.inputs[0].name
        parts = [
            runtime.run({name: np.ascontiguousarray(x[start : start + BATCH])})["logits"]
            for start in range(0, len(x), BATCH)
        ]
    return np.concatenate(parts)


def export_files(
    variant: Variant, sizes: tuple[int, ...], positions: str, folder: Path, threads: int
) -> dict[int, Path]:
    """The file that answers for each size."""
    report = vitpe_deploy.export(
        variant.model,
        list(sizes) if positions == "baked" else None,
        dynamic="batch" if positions == "baked" else "all",
        model_kwargs=variant.kwargs,
        verify=False,
        output_dir=folder,
        threads=threads,
    )
    if positions == "in-graph":
        return dict.fromkeys(sizes, Path(report.artifacts[0].path))
    files = {}
    for artifact in report.artifacts:
        assert artifact.resolution is not None  # baked
        files[artifact.resolution[0]] = Path(artifact.path)
    return files


def compare(expected: Logits, got: Logits) -> tuple[int, int, float]:
    """Ties, disagreements and the relative difference; [N, classes] each."""
    ours, theirs = got.argmax(axis=1), expected.argmax(axis=1)
    rows = np.flatnonzero(ours != theirs)
    gaps = expected[rows, theirs[rows]] - expected[rows, ours[rows]]
    ties = int((gaps <= TIE).sum())
    difference = float(np.abs(got - expected).max() / np.abs(expected).max())
    return ties, len(rows) - ties, difference


def measure(
    variant: Variant,
    sizes: tuple[int, ...],
    *,
    engines: tuple[str, ...] = ENGINES,
    threads: int = 1,
) -> Iterator[Row]:
    """Rows of one model."""
    data = dataset.load("test")
    inputs = {size_px: test_inputs(variant.model, data.pixels, size_px) for size_px in sizes}
    expected = torch_logits(variant, inputs)
    right = {size_px: share_right(logits, data.labels) for size_px, logits in expected.items()}
    for positions in POSITIONS:
        with tempfile.TemporaryDirectory(prefix="vitpe-digits-") as folder:
            files = export_files(variant, sizes, positions, Path(folder), threads)
            for size_px in sizes:
                for engine in engines:
                    got = engine_logits(engine, files[size_px], inputs[size_px], threads)
                    ties, disagreements, max_rel = compare(expected[size_px], got)
                    yield Row(
                        model=variant.name,
                        size_px=size_px,
                        positions=positions,
                        engine=engine,
                        accuracy=share_right(got, data.labels),
                        torch_accuracy=right[size_px],
                        ties=ties,
                        disagreements=disagreements,
                        max_rel=max_rel,
                    )


def share_right(logits: Logits, labels: npt.NDArray[np.int64]) -> float:
    """Accuracy in 0..1."""
    return float((logits.argmax(axis=1) == labels).mean())


def by_model(rows: list[Row]) -> dict[str, list[Row]]:
    """Rows under the name of their model, in order."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row.model, []).append(row)
    return grouped


def _size_head(size_px: int) -> str:
    return f"{size_px} px ({size_px / NATIVE_PX:g}x)" if size_px != NATIVE_PX else "32 px (native)"


def summary(rows: list[Row]) -> list[list[str]]:
    """Accuracy in PyTorch, a line per model, sizes as columns; the heads first."""
    sizes = sorted({row.size_px for row in rows})
    lines = [["model", *map(_size_head, sizes)]]
    for model, own in by_model(rows).items():
        at = {row.size_px: row.torch_accuracy for row in own}
        lines.append([model, *(f"{at[size]:.1%}" for size in sizes)])
    return lines


def details(rows: list[Row]) -> list[list[str]]:
    """Every cell: PyTorch / ONNX Runtime / OpenVINO, a line per model and kind of positions."""
    sizes = sorted({row.size_px for row in rows})
    lines = [["model", "positions", *map(_size_head, sizes), "differing top-1", "max_rel"]]
    for model, own in by_model(rows).items():
        for positions in POSITIONS:
            part = [row for row in own if row.positions == positions]
            cells = []
            for size in sizes:
                here = {row.engine: row for row in part if row.size_px == size}
                values = [next(iter(here.values())).torch_accuracy]
                values += [here[engine].accuracy for engine in ENGINES if engine in here]
                cells.append(" / ".join(f"{100 * v:.1f}" for v in values))
            differing = sum(row.disagreements for row in part)
            ties = sum(row.ties for row in part)
            told = f"{differing}" + (f" (and {ties} tied)" if ties else "")
            worst = max(row.max_rel for row in part)
            lines.append([model, positions, *cells, told, f"{worst:.1e}"])
    return lines


def as_text(lines: list[list[str]]) -> str:
    """Columns padded to their widest cell."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def as_markdown(lines: list[list[str]]) -> str:
    """A table; numbers to the right."""
    head, *body = [f"| {' | '.join(line)} |" for line in lines]
    rule = "|".join("---" if name in ("model", "positions") else "---:" for name in lines[0])
    return "\n".join([head, f"|{rule}|", *body])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="a model; repeatable")
    parser.add_argument("--threads", type=int, default=1, help="of every engine (default: 1)")
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    parser.add_argument("--markdown", action="store_true", help="two tables on stdout")
    chosen = parser.parse_args(arguments)
    models = chosen.only or list(digits.PRESETS)
    rows: list[Row] = []
    try:
        for model in models:
            if model not in digits.PRESETS:
                raise UsageError(
                    f"--only {model!r} is not an embedded model",
                    hint=f"{closest(model, digits.PRESETS)}"
                    f"Choose from: {', '.join(digits.PRESETS)}.",
                )
        for variant in variants(models):
            found = list(measure(variant, SIZES_PX, threads=chosen.threads))
            rows += found
            wrong = sum(row.disagreements for row in found)
            sys.stderr.write(f"{variant.name}: {len(found)} files x sizes, {wrong} differ\n")
    except VitpeError as problem:
        sys.stderr.write(f"error: {problem.message}\n{problem.hint}\n")
        return problem.exit_code
    wrong = sum(row.disagreements for row in rows)
    if chosen.json:
        document = {
            "schema": "vitpe.digits-accuracy/1",
            "test_digits": len(dataset.load("test").labels),
            "tie": TIE,
            "disagreements": wrong,
            "rows": [asdict(row) for row in rows],
        }
        print(json.dumps(document, indent=2))
    else:
        form = as_markdown if chosen.markdown else as_text
        print(form(summary(rows)), form(details(rows)), sep="\n\n")
    if wrong:
        sys.stderr.write(f"error: {wrong} answers differ from PyTorch's\n")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
