"""What int8 buys and what it costs: latency beside fp32 and other int8 files, and agreement.

    python benchmarks/int8.py --work DIR                          # latency in ONNX Runtime
    python benchmarks/int8.py --openvino --work DIR               # the NNCF candidates in OpenVINO
    python benchmarks/int8.py --agreement --work DIR              # on trained weights
    python benchmarks/int8.py --only vit-s16-224 --work DIR --json

Latency: our int8 file against our fp32 file, against the best fp32 file of the peers
(torch.onnx.export at opsets 18, 20, 23) and against the best that
``onnxruntime.quantization.quantize_dynamic`` makes of those; one child process per file,
interleaved rounds, equal threads, ratios paired by round. ``--work`` may be that of peers.py, whose
files are used where they are there. ``--isa AVX2`` limits oneDNN inside OpenVINO to it
(``ONEDNN_MAX_CPU_ISA``); ONNX Runtime has no such switch and takes what the CPU has.

Agreement: top-1 of every embedded ``digits-*`` model with PyTorch's on the 449 test digits, which
calibrated nothing; and of the trained DINOv2-small on photographs the least cosine of the class
token and the mean cosine of patch tokens, with its fp32 file, calibrated on other photographs.

Exits 1 when a floor is missed, and names it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from int8_agreement import digits_rows, photograph_rows
from peer_files import SUITE

from vitpe_deploy.bench.host import read_host
from vitpe_deploy.bench.protocol import ChildSpec
from vitpe_deploy.bench.rounds import Candidate, Measured, Schedule, compare, measure
from vitpe_deploy.threads import available_cpus

HERE = Path(__file__).parent
MODELS = ("vit-s16-224", "vit-b16-384")
SHORT = Schedule(rounds=3, iters=3, warmup=2, warmup_limit_s=2.0)
FLOORS = {"ours fp32": 1.5, "best fp32 peer": 1.75, "best quantize_dynamic": 1.12}
DIGITS_TOP1 = 0.99
CLS_COSINE = 0.99
PATCH_COSINE = 0.98


def made(name: str, kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """What the script of a kind says of its files, run when they are not there."""
    folder = options.work.resolve() / "full" / name
    script, word, extra = "peer_files.py", kind, []
    if kind.startswith("int8-"):
        script, word = "int8_files.py", kind.removeprefix("int8-")
        extra = ["--threads", str(options.threads)]
    record = folder / f"{kind}.json"
    if not record.is_file():
        say(f"{name}: make {kind}")
        command = [sys.executable, str(HERE / script), name, word, "--folder", str(folder)]
        done = subprocess.run([*command, *extra], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"error: {kind} of {name} failed\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(record.read_text())
    return found


def say(text: str) -> None:
    """A line of progress."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def speed(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Latency of one model in ONNX Runtime."""
    ours, plain = made(name, "int8-ours", options), made(name, "plain", options)
    fp32, dynamic = made(name, "ours", options), made(name, "int8-dynamic", options)
    folder = options.work.resolve() / "full" / name
    groups = {
        "ours fp32": {"ours fp32": fp32["onnx"]["path"]},
        "best fp32 peer": {
            f"torch.onnx.export, {key}": str(folder / f"{key}.onnx")
            for key in plain
            if key.startswith("opset")
        },
        "best quantize_dynamic": {
            key: found["path"] for key, found in dynamic.items() if "path" in found
        },
    }
    inputs = str(folder / "inputs.npz")

    def candidates(paths: Mapping[str, str]) -> list[Candidate]:
        return [
            Candidate(label, ChildSpec(path, "onnxruntime", "CPU", options.threads, inputs))
            for label, path in paths.items()
        ]

    for role, paths in groups.items():
        if len(paths) > 1:
            say(f"{name}: {role}: {len(paths)} files, a few rounds")
            tried = measure(candidates(paths), SHORT)
            fastest = sorted(tried, key=lambda m: m.summary.min)[:2]
            groups[role] = {m.candidate.label: paths[m.candidate.label] for m in fastest}
    chosen = {label: path for paths in groups.values() for label, path in paths.items()}
    say(f"{name}: {', '.join(chosen)}")
    first, *others = measure(
        candidates({"ours int8": ours["path"], **chosen}),
        Schedule(rounds=options.rounds, min_time_s=4.0),
    )
    return {
        "model": name,
        "int8_ms": first.summary.median,
        "size_bytes": ours["size_bytes"],
        "candidates": ours["candidates"],
        "left_out": {k: v["problem"] for k, v in dynamic.items() if "problem" in v},
        "ratios": {
            role: against(first, [m for m in others if m.candidate.label in paths])
            for role, paths in groups.items()
        },
    }


def against(mine: Measured, rivals: Sequence[Measured]) -> dict[str, Any]:
    """Latency of the fastest rival over ours."""
    best = min(rivals, key=lambda m: compare(mine, m).median)
    return {
        "file": best.candidate.label,
        "ms": best.summary.median,
        "size_bytes": Path(best.candidate.spec.path).stat().st_size,
        **asdict(compare(mine, best)),
    }


def missed(document: Mapping[str, Any]) -> list[str]:
    """Every floor that is missed, in words."""
    found = [
        f"{one['model']} over {role}: {one['ratios'][role]['median']:.3f}, floor {floor:.2f}"
        for one in document.get("speed", ())
        for role, floor in FLOORS.items()
        if one["ratios"][role]["median"] < floor
    ]
    found += [
        f"{row['model']}: top-1 {row['top1']:.4f} in {row['runtime']}, floor {DIGITS_TOP1}"
        for row in document.get("digits", ())
        if row["top1"] < DIGITS_TOP1
    ]
    for row in document.get("photographs", ()):
        if row["cls_cosine"] < CLS_COSINE or row["patch_cosine"] < PATCH_COSINE:
            found.append(
                f"{row['file']} in {row['runtime']}: cls {row['cls_cosine']:.4f}, "
                f"patch tokens {row['patch_cosine']:.4f}"
            )
    return found


def markdown(document: Mapping[str, Any]) -> str:
    """The tables of a document."""
    lines = [f"{document['host']['cpu']}, {', '.join(document['host']['isa'])}"]
    if document["speed"]:
        lines += ["", "| model | int8 ms | over | its ms | ratio | 95 % interval | floor |"]
        lines += ["|---|---|---|---|---|---|---|"]
    lines += [
        f"| {one['model']} | {one['int8_ms']:.1f} | {role}: {r['file']} | {r['ms']:.1f} "
        f"| **{r['median']:.3f}** | {r['low']:.3f} to {r['high']:.3f} | {FLOORS[role]:.2f} |"
        for one in document["speed"]
        for role, r in one["ratios"].items()
    ]
    tried = [(one["model"], c) for one in document["speed"] for c in one["candidates"]]
    tried += [(name, c) for name, found in document["openvino"].items() for c in found]
    if tried:
        lines += ["", "| model | candidate | engine | ms | MB | agreement on noise | chosen |"]
        lines += ["|---|---|---|---|---|---|---|"]
    lines += [
        f"| {name} | {c['method']} | {c['runtime']} | {c['latency_ms'] or 0:.1f} "
        f"| {c['size_bytes'] / 1e6:.1f} | {c['agreement'] or 0:.4f} "
        f"| {'*' if c['chosen'] else ''} |"
        for name, c in tried
    ]
    if document["digits"]:
        lines += ["", "| model | engine | method | top-1 with PyTorch | accuracy | PyTorch's |"]
        lines += ["|---|---|---|---|---|---|"]
    lines += [
        f"| {r['model']} | {r['runtime']} | {r['method']} | {r['top1']:.4f} "
        f"| {r['accuracy']:.4f} | {r['torch_accuracy']:.4f} |"
        for r in document["digits"]
    ]
    if document["photographs"]:
        lines += ["", "| DINOv2-small | engine | least cls cosine | mean patch cosine | least |"]
        lines += ["|---|---|---|---|---|"]
    lines += [
        f"| {r['file']} | {r['runtime']} | {r['cls_cosine']:.4f} | {r['patch_cosine']:.4f} "
        f"| {r['least_patch_cosine']:.3f} |"
        for r in document["photographs"]
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=tuple(SUITE), help="repeatable")
    parser.add_argument("--openvino", action="store_true", help="NNCF candidates instead")
    parser.add_argument("--agreement", action="store_true", help="agreement instead of latency")
    parser.add_argument("--digits", action="append", help="of --agreement: these models alone")
    parser.add_argument("--formats", default="onnx", help="of --agreement: onnx,openvino")
    parser.add_argument("--work", type=Path, default=Path("peers-work"), help="folder of files")
    parser.add_argument("--isa", help="ONEDNN_MAX_CPU_ISA of every process, for example AVX2")
    parser.add_argument("--threads", type=int, default=available_cpus())
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    options = parser.parse_args(argv)
    if options.isa:
        os.environ["ONEDNN_MAX_CPU_ISA"] = options.isa  # inherited by the children
    names = options.only or MODELS
    document: dict[str, Any] = {
        "schema": "vitpe.int8/1",
        "host": asdict(read_host()),
        "isa": options.isa,
        "threads": options.threads,
        "speed": [],
        "openvino": {},
        "digits": [],
        "photographs": [],
    }
    if options.agreement:
        formats = options.formats.split(",")
        document["digits"] = digits_rows(formats, options.digits, options.threads, say)
        if not options.digits:
            document["photographs"] = photograph_rows(formats, options.threads, say)
    elif options.openvino:
        for name in names:
            document["openvino"][name] = made(name, "int8-nncf", options)["candidates"]
    else:
        document["speed"] = [speed(name, options) for name in names]
    document["missed"] = missed(document)
    said = json.dumps(document, indent=1) if options.json else markdown(document)
    sys.stdout.write(said + "\n")
    for floor in document["missed"]:
        say(f"missed: {floor}")
    return int(bool(document["missed"]))


if __name__ == "__main__":
    sys.exit(main())
