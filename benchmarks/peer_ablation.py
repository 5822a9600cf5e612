"""What each pass is worth: latency with all passes, and of the file with all but one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from peer_bench import Bench
from peer_floors import ENGINES

from vitpe_deploy.bench.rounds import compare, measure


def ablation_files(bench: Bench, name: str) -> dict[str, dict[str, Any]]:
    """Files without one pass, for each that can be left out and changed this model."""
    from exporters.passes import PASSES

    ours = bench.files(name, "ours")
    if "problem" in ours:
        return {}
    changed = [
        p.name
        for p in PASSES
        if not p.required and any(ours[f]["passes"].get(p.name) for f in ("onnx", "openvino"))
    ]
    return {p: bench.files(name, f"skip:{p}") for p in changed}


def run_ablation(bench: Bench, name: str) -> list[dict[str, Any]]:
    """Latency with all passes, and with all but one, for each pass that changes this model."""
    ours, plain = bench.files(name, "ours"), bench.files(name, "plain")
    if "problem" in ours or "problem" in plain:
        return [{"model": name, "problem": ours.get("problem") or plain.get("problem")}]
    made = ablation_files(bench, name)
    rows: list[dict[str, Any]] = [
        {"model": name, "pass": p, "problem": f["problem"]}
        for p, f in made.items()
        if "problem" in f
    ]
    good = {p: f for p, f in made.items() if "problem" not in f}
    for engine, form in zip(ENGINES, ("onnx", "openvino"), strict=True):
        group = [bench.candidate(name, "all", ours[form]["path"], engine, check=False)]
        group += [
            bench.candidate(name, p, f[form]["path"], engine, check=False) for p, f in good.items()
        ]
        full, *others = measure(group, bench.schedule)
        for other in others:
            changed = ours[form]["passes"][other.candidate.label]
            rows.append(
                {
                    "model": name,
                    "engine": engine,
                    "pass": other.candidate.label,
                    "changed": changed,
                    "all_ms": full.summary.median,
                    "without_ms": other.summary.median,
                    **asdict(compare(full, other)),
                }
            )
    return rows
