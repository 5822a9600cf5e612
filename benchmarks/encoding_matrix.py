"""Every encoding at every kind of size, baked and in the graph, in both engines, against PyTorch.

    python benchmarks/encoding_matrix.py [--only NAME] [--markdown] [--json]

Each encoding rides on the smallest reference network that carries it. Positions are drawn with
standard deviation 0.5, so that a wrong one shows. Prints the worst max_rel of each cell over
batches 1 and 3 and exits 1 when a cell is above 1e-4 or missing.
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

import vitpe_deploy
from vitpe_deploy import encodings
from vitpe_deploy.errors import UnsupportedError
from vitpe_deploy.request import Resolution

LIMIT = 1e-4
BATCHES = (1, 3)
ENGINES = ("onnxruntime", "openvino")

_SMALL = {"embed_dim": 32, "depth": 2, "num_heads": 2}
_CARRIERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "vit": (
        "vit_tiny_patch16_224",
        {**_SMALL, "image_size": 96, "num_classes": 10, "register_tokens": 1},
    ),
    "swin": ("swin_micro_patch4_window4_64", {}),
    "video": ("video_micro_patch8_48", {}),
}
_SIZES: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "vit": {"native": (96, 96), "smaller": (64, 64), "larger": (144, 144), "non-square": (64, 160)},
    "swin": {"native": (64, 64), "smaller": (32, 32), "larger": (96, 96), "non-square": (52, 128)},
    "video": {"native": (48, 48), "smaller": (32, 32), "larger": (72, 72), "non-square": (40, 96)},
}

VARIANTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "learned-2d": {"add": {"mode": "add"}},
    "sincos-1d": {"rescale": {"mode": "rescale"}},
    "sincos-2d": {
        "detr": {"layout": "detr"},
        "interleaved rescale": {"layout": "interleaved", "mode": "rescale"},
    },
    "relative-2d": {"geometric": {"resample": "geometric"}, "scaled": {"placement": "scaled"}},
    "rope-2d": {
        "eva02": {"coordinates": "eva02"},
        "rope-vit": {"coordinates": "rope-vit"},
        "dinov3": {"coordinates": "dinov3"},
    },
}
"""Options that change the mathematics of an encoding, each a row of its own."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One encoding at one kind of size, in one form and engine; worst over batches."""

    encoding: str
    size: str
    form: str
    engine: str
    max_rel: float | None
    refusal: str | None = None

    @property
    def good(self) -> bool:
        """Inside tolerance, or refused in the graph with a reason."""
        if self.refusal is not None:
            return self.form == "in-graph"
        return self.max_rel is not None and self.max_rel <= LIMIT


def rows() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Row label, encoding, and the encoding's options."""
    for name in encodings.names():
        yield name, name, {}
        for label, options in VARIANTS.get(name, {}).items():
            yield f"{name} ({label})", name, options


def cells_of(
    label: str,
    name: str,
    options: Mapping[str, Any],
    folder: Path,
    *,
    baked_kinds: tuple[str, ...] | None = None,
) -> Iterator[Cell]:
    """All cells of one row; ``baked_kinds`` leaves out baked files of other sizes."""
    homes = encodings.networks_of(name)
    network = next(n for n in ("vit", "swin", "video") if n in homes)
    model, kwargs = _CARRIERS[network]
    if name == "log-cpb":
        model = "swinv2_micro_patch4_window4_64"
    kwargs = {**kwargs, **{f"pe.{k}": v for k, v in options.items()}}

    def export(**more: Any) -> str:
        report = vitpe_deploy.export(
            model,
            encoding=name,
            model_kwargs=kwargs,
            output_dir=folder,
            verify=False,
            force=True,
            **more,
        )
        return report.artifacts[0].path

    for kind, size in _SIZES[network].items():
        if baked_kinds is not None and kind not in baked_kinds:
            continue
        yield from _judge(label, kind, "baked", export(resolution=size, dynamic="batch"), size)
    try:
        path = export(dynamic="all")
    except UnsupportedError as refusal:
        for kind in _SIZES[network]:
            for engine in ENGINES:
                yield Cell(label, kind, "in-graph", engine, None, refusal.message)
        return
    for kind, size in _SIZES[network].items():
        yield from _judge(label, kind, "in-graph", path, size)


def _judge(label: str, kind: str, form: str, path: str, size: tuple[int, int]) -> Iterator[Cell]:
    report = vitpe_deploy.verify(path, resolutions=[Resolution(*size)], batches=BATCHES, rtol=LIMIT)
    for engine in ENGINES:
        found = [r for r in report.parity if r.runtime == engine]
        seen = {r.batch for r in found}
        values = [r.max_rel for r in found]
        complete = seen == set(BATCHES) and all(v is not None for v in values)
        worst = max(v for v in values if v is not None) if complete else None
        yield Cell(label, kind, form, engine, worst)


def table(cells: list[Cell]) -> str:
    """Markdown: a row per encoding, a column per size, the worst of both engines in each form."""
    kinds = ("native", "smaller", "larger", "non-square")
    lines = ["| encoding | form | " + " | ".join(kinds) + " |", "|---" * (2 + len(kinds)) + "|"]
    for label in dict.fromkeys(c.encoding for c in cells):
        for form in ("baked", "in-graph"):
            own = [c for c in cells if c.encoding == label and c.form == form]
            shown = []
            for kind in kinds:
                at = [c for c in own if c.size == kind]
                if any(c.refusal for c in at):
                    shown.append("refused")
                elif not at or any(c.max_rel is None for c in at):
                    shown.append("missing")
                else:
                    shown.append(f"{max(c.max_rel or 0.0 for c in at):.1e}")
            lines.append(f"| {label} | {form} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def main() -> int:
    """Print the matrix."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", action="append", help="an encoding; repeatable")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cells: list[Cell] = []
    with tempfile.TemporaryDirectory() as folder:
        for label, name, own in rows():
            if options.only and name not in options.only:
                continue
            print(f"{label} ...", file=sys.stderr, flush=True)
            cells += cells_of(label, name, own, Path(folder))
    if options.json:
        print(json.dumps([asdict(c) for c in cells], indent=1))
    else:
        print(table(cells))
    return 0 if all(c.good for c in cells) else 1


if __name__ == "__main__":
    sys.exit(main())
