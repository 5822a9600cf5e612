"""Which families of the transformers library come out right, at which sizes, in which engine.

    python benchmarks/coverage_transformers.py
    python benchmarks/coverage_transformers.py --only swin --only beit --modes static,dynamic

The table of coverage.py for small networks of the library's own config classes
(transformers_configs.py): nothing is downloaded. Weights are drawn so that positions matter. The
reference is the class itself, fresh at every size, run as the library documents it: with
``interpolate_pos_encoding=True`` where its forward has that argument, and with nothing masked and
nothing shuffled where it masks.

The exit code is 1 when a cell is wrong or crashes, or when a refusal is not in
coverage_refusals_transformers.toml, which names the source line behind each.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from coverage import (
    ENGINES,
    MODES,
    Cell,
    _shown,
    read_refusals,
    run_process,
    summary,
    table,
)
from coverage import LIMIT as LIMIT
from transformers_configs import SMALL, build

HERE = Path(__file__).resolve().parent
REFUSALS = HERE / "coverage_refusals_transformers.toml"
_TABLES = re.compile(
    r"(position_embeddings?|pos_embed|bias_table|attention_biases|rel_pos_[hw]|cls_token"
    r"|distillation_token|register_tokens|detection_tokens|class_pos_embed)$"
)
_GAINS = re.compile(r"(lambda_?\d?|layer_scale\w*|layerscale\w*\.\w+)$")


def redraw(module: Any, seed: int = 0) -> Any:
    """Position tables N(0, 0.5^2), layers that keep their input's size; gives the module."""
    import torch
    from torch import nn

    generator = torch.Generator().manual_seed(seed)
    owners = dict(module.named_modules())
    drawn: dict[str, Any] = {}
    for name, value in module.state_dict().items():
        owner, leaf = owners[name.rpartition(".")[0]], name.rpartition(".")[2]
        noise = torch.randn(value.shape, generator=generator)
        if not value.is_floating_point():
            continue
        if leaf == "running_var":
            drawn[name] = 1 + 0.2 * noise.abs()
        elif leaf == "running_mean":
            drawn[name] = 0.1 * noise
        elif _TABLES.search(name):
            drawn[name] = 0.5 * noise
        elif _GAINS.search(name):
            drawn[name] = 0.5 + 0.1 * noise
        elif leaf == "weight" and value.dim() == 1:
            drawn[name] = 1 + 0.1 * noise
        elif value.dim() > 1 and isinstance(owner, (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)):
            drawn[name] = noise * value[0].numel() ** -0.5
        elif leaf == "bias" or value.dim() == 1:
            drawn[name] = 0.1 * noise
        else:  # a class may leave memory as it found it
            drawn[name] = 0.5 * noise
    module.load_state_dict({**module.state_dict(), **drawn})
    return module


def run_cell(family: str, mode: str, *, threads: int = 2) -> Cell:
    """Export one small network and compare the file with transformers, in this process."""
    import torch

    import vitpe_deploy
    from vitpe_deploy.errors import UnsupportedError, VitpeError
    from vitpe_deploy.request import ModelRequest
    from vitpe_deploy.sources import open_source

    torch.set_num_threads(threads)
    cell = Cell(family, mode)
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / family
        redraw(build(family)).save_pretrained(saved)
        try:
            facts = open_source(ModelRequest(f"hf:{saved}")).facts()
            rule = facts.sizes(symbolic=mode == "dynamic")
            assert facts.native is not None
            native, below, other = rule.nearby(facts.native)
            if mode == "static" and rule.fixed is not None:
                raise UnsupportedError(f"one size: {rule.fixed_reason}")
            if mode == "static" and rule.square:
                other = below
            sizes = {"native": [native], "static": [other], "dynamic": [native, below, other]}[mode]
            start = time.perf_counter()
            report = vitpe_deploy.export(
                f"hf:{saved}",
                None if mode != "static" else str(other),
                dynamic="all" if mode == "dynamic" else "none",
                verify=False,
                output_dir=Path(folder) / "out",
                threads=threads,
            )
            cell.export_s = round(time.perf_counter() - start, 1)
        except UnsupportedError as problem:
            cell.refusal = problem.message
            return cell
        except VitpeError as problem:
            cell.problem = f"{type(problem).__name__}: {problem.message}"
            return cell
        path = Path(report.artifacts[0].path)
        for size in sizes:
            batch = 2 if mode == "dynamic" else 1
            found = compare(family, path, (size.height, size.width), batch, threads)
            for engine, value in found.items():
                cell.max_rel.setdefault(engine, {})[str(size)] = value
    return cell


def reference(family: str, pixels: Any) -> dict[str, Any]:
    """The class itself, fresh, at the size of the pixels; tensors by the library's names."""
    import torch

    module = redraw(build(family))
    options: dict[str, Any] = {}
    taken = inspect.signature(type(module).forward).parameters
    fixed = family in ("pvt", "levit", "sam", "vitpose_backbone")
    if "interpolate_pos_encoding" in taken and not fixed:
        options["interpolate_pos_encoding"] = True
    if family == "vit_mae":
        module.config.mask_ratio = 0.0
        patches = (pixels.shape[-2] // 16) * (pixels.shape[-1] // 16)
        options["noise"] = torch.linspace(0, 1, patches).expand(pixels.shape[0], -1)
    with torch.no_grad():
        result = module(pixels, **options)
    found = {k: v for k, v in result.items() if isinstance(v, torch.Tensor)}
    for key, value in result.items():
        if isinstance(value, tuple) and len(value) == 1:
            found[key] = value[0]
    return {k: v.numpy() for k, v in found.items()}


_LIBRARY_NAMES = {
    "tokens": "last_hidden_state", "feature-map": "last_hidden_state", "pooled": "pooler_output",
}  # fmt: skip


def compare(
    family: str, path: Path, size: tuple[int, int], batch: int, threads: int
) -> dict[str, float]:
    """Largest relative difference over all outputs of the file, by engine."""
    import numpy as np
    import torch

    from vitpe_deploy.runtimes import open_runtime

    pixels = torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(1))
    right = reference(family, pixels)
    found: dict[str, float] = {}
    for engine in ENGINES:
        worst = 0.0
        with open_runtime(engine, path, device="CPU", threads=threads) as runtime:
            given = runtime.run({"pixel_values": pixels.numpy()})
        for name, value in given.items():
            wanted = right.get(name)
            if wanted is None:
                wanted = right.get(_LIBRARY_NAMES.get(name, ""), right.get("feature_maps"))
            if (
                wanted is None
                or value.shape != wanted.shape
                or not np.isfinite(value - wanted).all()
            ):
                worst = float("inf")
            else:
                worst = max(worst, float(np.abs(value - wanted).max() / np.abs(wanted).max()))
        found[engine] = worst
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table. Gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", default=[], help="one family; may be repeated")
    parser.add_argument("--modes", default=",".join(MODES), help="native,static,dynamic")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one export")
    parser.add_argument("--json", action="store_true", help="all numbers as JSON")
    parser.add_argument("--cell", nargs=2, metavar=("NAME", "MODE"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.cell:
        print(json.dumps(asdict(run_cell(*given.cell, threads=given.threads))))
        return 0
    unknown = [n for n in given.only if n not in SMALL]
    if unknown:
        parser.error(f"no small network of {', '.join(unknown)}; there are: {', '.join(SMALL)}")
    listed, cells = read_refusals(REFUSALS), []
    for family in given.only or SMALL:
        for mode in given.modes.split(","):
            command = [sys.executable, str(Path(__file__).resolve()), "--cell", family, mode]
            command += ["--threads", str(given.threads)]
            cell = run_process(command, family, mode, limit_s=given.limit)
            cells.append(cell)
            text = cell.refusal or cell.problem or ""
            print(f"{family} {mode}: {_shown(cell, listed)} {text}", file=sys.stderr, flush=True)
    counts = summary(cells, listed)
    if given.json:
        print(json.dumps({"cells": [asdict(c) for c in cells], "summary": counts}, indent=1))
    else:
        print(table(cells, listed))
        print(", ".join(f"{number} {verdict}" for verdict, number in counts.items()))
    return 1 if counts["wrong"] or counts["unlisted"] or counts["crashed"] else 0


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
