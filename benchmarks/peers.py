"""Ours beside what other exporters give: latency, memory, size, on one machine.

    python benchmarks/peers.py --quick --work DIR
    python benchmarks/peers.py --only vit-s16-224 --work DIR --results DIR/peers.jsonl
    python benchmarks/peers.py --report DIR/peers.jsonl
    python benchmarks/peers.py --only vit-s16-224 --ablation --work DIR

Peers: torch.onnx.export(dynamo=True) at opsets 18, 20, 23, each also through the transformer
optimizer of ONNX Runtime and through onnxsim (``--quick``: those of opset 18 alone), in both
engines; openvino.convert_model straight from torch; torch eager and torch.compile (not in
``--quick``: compiling costs minutes and is never the best on these CPUs).

Everything is timed as ``vitpe-bench`` times it. All peers run a few rounds first; the two fastest
plain exports and the two fastest others of each engine, and torch where it comes near, are then
measured well, interleaved with ours and in processes started twice. A ratio is peer over ours,
paired by round: above 1, ours is faster. Every second round is compared with the peer that is the
fastest in the other ones, so that nobody is the best by chance alone. A peer whose output is wrong
is no peer. Networks carry random weights.

What an export takes is measured by export_cost.py, where both sides take turns.

A machine is seldom quiet for as long as the suite takes, so it can be run in pieces. Files are made
in child processes and kept in ``--work``, and so is the order of the peers: a second run makes and
ranks nothing (``--remake`` makes our files again, after a change). ``--prepare`` makes files and
stops. ``--results`` appends one line of JSON per model as soon as it is measured; ``--report``
reads the last line of each model and judges the whole. ``--plain --static`` is the short form:
plain exports at three opsets as the only peers, and none of our dynamic files.

Exits 1 when a floor of peer_floors.py is missed, and names it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peer_ablation import ablation_files, run_ablation
from peer_bench import Bench, against, is_plain, rank_peers, row
from peer_files import SUITE
from peer_floors import ENGINES, misses
from peer_tables import ablation_table, tables

from vitpe_deploy.bench.host import read_host
from vitpe_deploy.bench.rounds import Measured, compare, measure
from vitpe_deploy.bench.statistics import geometric_mean
from vitpe_deploy.threads import available_cpus


def run_model(bench: Bench, name: str) -> dict[str, Any]:
    """All figures of one model."""
    entry = SUITE[name]
    plain, ours = bench.files(name, "plain"), bench.files(name, "ours")
    result: dict[str, Any] = {
        "model": name,
        "pooled_by_cls": entry.pooled_by_cls,
        "bias": entry.bias,
        "size": entry.size,
    }
    for side, found in (("torch.onnx.export", plain), ("ours", ours)):
        if "problem" in found:
            return result | {"problem": f"{side}: {found['problem']}"}
    computed = ours["onnx"]["output_shapes"]
    if computed != [plain["output_shape"]]:
        return result | {"problem": f"ours computes {computed}, peers {plain['output_shape']}"}
    dynamic: dict[str, Any] = (
        {"problem": "left out by --static"}
        if bench.options.static
        else bench.files(name, "dynamic")
    )
    ranked = rank_peers(bench, name)
    left_out = list(ranked["left_out"])
    own = [
        bench.candidate(name, f"ours in {e}", ours[f]["path"], e, check=False)
        for e, f in zip(ENGINES, ("onnx", "openvino"), strict=True)
    ]
    if "problem" in dynamic:
        left_out.append({"peer": "ours, dynamic", "reason": dynamic["problem"]})
    else:
        own += [
            bench.candidate(name, f"dynamic in {e}", dynamic[f]["path"], e, check=False)
            for e, f in zip(ENGINES, ("onnx", "openvino"), strict=True)
        ]
    chosen = [p for p in bench.peers(name)[0] if p.label in ranked["chosen"]]
    bench.say(f"{name}: {', '.join(c.label for c in chosen)}")
    measured = {m.candidate.label: m for m in measure([*own, *chosen], bench.schedule)}
    result["rows"] = [r for r in ranked["rows"] if r["label"] not in ranked["chosen"]] + [
        row(m) for m in measured.values()
    ]
    result |= ratios(measured)
    result["left_out"] = left_out
    peaks = {r["label"]: r["first_peak_bytes"] for r in result["rows"]}
    peaks = {label: v for label, v in peaks.items() if not label.startswith(("ours", "dynamic"))}
    result["memory"] = memory(measured["ours in onnxruntime"], peaks)
    result["file"] = {
        "ours_bytes": ours["onnx"]["size_bytes"],
        "weights_bytes": plain["weights_bytes"],
        "ratio": ours["onnx"]["size_bytes"] / plain["weights_bytes"],
    }
    result["max_rel"] = {
        f"{form} in {engine}": value
        for form in ("onnx", "openvino")
        for engine, value in ours[form]["max_rel"].items()
    }
    return result


def ratios(measured: dict[str, Measured]) -> dict[str, Any]:
    """Best peer over ours per engine and across them, and dynamic over static.

    ``plain_over_ours`` knows torch's own files alone (all peers where none of these is right),
    ``peer_over_ours`` all peers.
    """
    found: dict[str, Any] = {"plain_over_ours": {}, "peer_over_ours": {}, "dynamic_over_static": {}}
    peers = [m for label, m in measured.items() if not label.startswith(("ours", "dynamic"))]
    own = [m for label, m in measured.items() if label.startswith("ours")]
    for engine in ENGINES:
        mine = measured[f"ours in {engine}"]
        rivals = [m for m in peers if m.candidate.spec.runtime == engine]
        plain = [m for m in rivals if is_plain(m.candidate.label)]
        found["plain_over_ours"][engine] = against(mine, plain or rivals)
        found["peer_over_ours"][engine] = against(mine, rivals)
        if f"dynamic in {engine}" in measured:
            other = measured[f"dynamic in {engine}"]
            found["dynamic_over_static"][engine] = asdict(compare(mine, other))
    fastest = min(own, key=lambda m: m.summary.median)
    found["peer_over_ours"]["across"] = against(fastest, peers)
    return found


def memory(mine: Measured, peaks: dict[str, int | None]) -> dict[str, Any]:
    """Peak of the first inference above the loaded session, in ONNX Runtime."""
    known = {k: v for k, v in peaks.items() if v is not None and k.endswith("in onnxruntime")}
    ours = mine.loaded.first_peak_bytes
    if not known or ours is None:
        return {"ours_bytes": ours, "peer_bytes": None, "peer": None, "ratio": None}
    best = min(known, key=lambda label: known[label])
    ratio = ours / known[best] if known[best] else None
    return {"ours_bytes": ours, "peer_bytes": known[best], "peer": best, "ratio": ratio}


def prepare(bench: Bench, name: str, *, ablation: bool) -> None:
    """Make all files that a run of this model reads."""
    dynamic = [] if bench.options.static else ["dynamic"]
    others = [] if bench.options.plain else ["derived", "convert"]
    for kind in ("plain", "ours", *others, *dynamic):
        problem = bench.files(name, kind).get("problem")
        if problem:
            bench.say(f"{name}: {kind}: {problem}")
    if ablation:
        ablation_files(bench, name)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=tuple(SUITE), help="repeatable")
    parser.add_argument("--quick", action="store_true", help="fewer peers and rounds")
    parser.add_argument("--ablation", action="store_true", help="a row per pass instead")
    parser.add_argument("--work", default="peers-work", help="folder that files are kept in")
    parser.add_argument("--prepare", action="store_true", help="make files, time nothing")
    parser.add_argument("--remake", action="store_true", help="make our own files again")
    parser.add_argument("--plain", action="store_true", help="plain exports as the only peers")
    parser.add_argument("--static", action="store_true", help="without our dynamic files")
    parser.add_argument("--results", type=Path, help="append a line of JSON per model here")
    parser.add_argument("--report", type=Path, help="print what such a file holds, time nothing")
    parser.add_argument("--threads", type=int, default=available_cpus())
    parser.add_argument("--rounds", type=int, help="50, or 20 with --quick")
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    options = parser.parse_args(argv)
    bench = Bench(options)
    names = options.only or list(SUITE)
    if options.prepare:
        for name in names:
            prepare(bench, name, ablation=options.ablation)
        return 0
    kind = "ablation" if options.ablation else "peers"
    results = kept_results(options.report, kind, names) if options.report else []
    for name in [] if options.report else names:
        if options.ablation:
            results.append({"model": name, "rows": run_ablation(bench, name)})
        else:
            results.append(run_model(bench, name))
        if options.results:
            with options.results.open("a", encoding="utf-8") as lines:
                entry = {"schema": f"vitpe.{kind}.model/1", "host": asdict(read_host())}
                lines.write(json.dumps(entry | results[-1]) + "\n")
    if options.ablation:
        rows = [row for result in results for row in result["rows"]]
        document: dict[str, Any] = {"schema": "vitpe.ablation/1", "rows": rows}
        sys.stdout.write(json.dumps(document, indent=1) if options.json else ablation_table(rows))
        sys.stdout.write("\n")
        return int(any("problem" in row for row in rows))
    document = judged(results, options)
    sys.stdout.write((json.dumps(document, indent=1) if options.json else tables(document)) + "\n")
    for floor in document["missed"]:
        bench.say(f"missed: {floor}")
    return 1 if document["missed"] else 0


def kept_results(file: Path, kind: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """The last line of each model in a file of ``--results``, in the order of the suite."""
    found: dict[str, dict[str, Any]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if entry["schema"] == f"vitpe.{kind}.model/1":
            found[entry["model"]] = entry
    return [found[name] for name in names if name in found]


def judged(results: Sequence[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """All results, their geometric means, and the floors that are missed."""
    good = [r for r in results if "problem" not in r]
    kinds = {"plain_over_ours": ENGINES, "peer_over_ours": (*ENGINES, "across")}
    means = {
        kind: {where: geometric_mean([r[kind][where]["median"] for r in good]) for where in places}
        for kind, places in kinds.items()
        if good
    }
    return {
        "schema": "vitpe.peers/1",
        "host": asdict(read_host()),
        "threads": options.threads,
        "quick": options.quick,
        "models": results,
        "geometric_mean": means,
        "missed": misses(results, means, whole_suite=len(results) == len(SUITE)),
    }


if __name__ == "__main__":
    sys.exit(main())
