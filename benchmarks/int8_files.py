"""Files that int8.py times, each kind made in a process of its own.

    python benchmarks/int8_files.py MODEL KIND --folder DIR

Kinds: ``ours`` (our int8 for ONNX Runtime, the best of its candidates on this machine), ``nncf``
(our int8 IR for OpenVINO, SmoothQuant's alpha searched), ``dynamic``
(``onnxruntime.quantization.quantize_dynamic`` of plain exports, as it is and with the settings
that AVX2 needs). Networks carry random weights, so noise calibrates; what int8 costs in agreement
is measured on trained weights by ``int8.py --agreement``.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from peer_files import OPSETS, SUITE

SETTINGS: Mapping[str, Mapping[str, bool]] = {
    "default": {},
    "per-channel-reduced": {"per_channel": True, "reduce_range": True},
}


def make_ours(name: str, folder: Path, *, form: str, threads: int) -> dict[str, Any]:
    """One int8 file of ours, and what its candidates gave."""
    import vitpe_deploy

    entry = SUITE[name]
    report = vitpe_deploy.export(
        entry.model,
        entry.size or None,
        formats=(form,),
        precision="int8",
        calibration="random",
        verify=False,
        output_dir=folder / f"int8-{form}",
        force=True,
        threads=threads,
    )
    (artifact,) = report.artifacts
    return {
        "path": str(Path(artifact.path).resolve()),
        "size_bytes": artifact.size_bytes,
        "candidates": [c.model_dump() for c in report.candidates],
    }


def make_dynamic(folder: Path) -> dict[str, Any]:
    """Every plain file through ONNX Runtime's own dynamic quantisation."""
    from onnxruntime.quantization import quantize_dynamic

    logging.disable(logging.WARNING)
    found: dict[str, Any] = {}
    for opset in OPSETS:
        for label, options in SETTINGS.items():
            path = folder / f"quantized{opset}-{label}.onnx"
            try:
                quantize_dynamic(str(folder / f"opset{opset}.onnx"), str(path), **options)
            except Exception as problem:  # a peer that fails is reported, not hidden
                said = (str(problem).splitlines() or [""])[0][:160]
                found[path.stem] = {"problem": f"{type(problem).__name__}: {said}"}
                continue
            found[path.stem] = {"path": str(path.resolve()), "size_bytes": path.stat().st_size}
    return found


def main() -> int:
    """One process of int8.py."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", choices=tuple(SUITE))
    parser.add_argument("kind", choices=("ours", "nncf", "dynamic"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    kinds: Mapping[str, Callable[[], dict[str, Any]]] = {
        "ours": lambda: make_ours(args.model, args.folder, form="onnx", threads=args.threads),
        "nncf": lambda: make_ours(args.model, args.folder, form="openvino", threads=args.threads),
        "dynamic": lambda: make_dynamic(args.folder),
    }
    found = kinds[args.kind]()
    target = args.folder / f"int8-{args.kind}.json"
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps(found, indent=1))
    os.replace(partial, target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
