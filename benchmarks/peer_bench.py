"""Files and candidates of one network of the suite, and which of its peers are worth measuring."""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from peer_floors import ENGINES

from vitpe_deploy.bench.protocol import ChildSpec, Judge
from vitpe_deploy.bench.rounds import Candidate, Measured, Schedule, measure, ratio_of_rounds
from vitpe_deploy.bench.statistics import round_medians
from vitpe_deploy.errors import VitpeError

FILES = Path(__file__).with_name("peer_files.py")
SHORT = Schedule(rounds=3, iters=6, warmup=3, warmup_limit_s=4.0)
STARTS = 2
WARMUP_S = 3.0
KEEP = 2
NEAR = 1.15
PEER_TOLERANCE = 1e-3


class Bench:
    """One run: options, and a log on stderr."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.effort = "quick" if options.quick else "full"
        self._remade: set[tuple[str, str]] = set()
        rounds = options.rounds or (20 if options.quick else 50)
        self.schedule = Schedule(
            rounds=rounds, starts=STARTS, min_time_s=rounds * 0.1, warmup_limit_s=WARMUP_S
        )

    def say(self, text: str) -> None:
        """A line of progress."""
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def folder(self, name: str) -> Path:
        """Where the files of a model are."""
        return Path(self.options.work).resolve() / self.effort / name

    def files(self, name: str, kind: str) -> dict[str, Any]:
        """What peer_files.py says of one kind of files, made when they are not there."""
        record = self.folder(name) / f"{kind.replace(':', '-')}.json"
        ours = kind in ("ours", "dynamic") or kind.startswith("skip:")
        stale = self.options.remake and ours and (name, kind) not in self._remade
        if stale or not record.is_file():
            self._remade.add((name, kind))
            self.say(f"{name}: make {kind}")
            command = [sys.executable, str(FILES), name, kind, "--effort", self.effort]
            done = subprocess.run(
                [*command, "--folder", str(self.folder(name))],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["no message"])[-1]
                return {"problem": f"ended with code {done.returncode}: {last[:200]}"}
        found: dict[str, Any] = json.loads(record.read_text())
        return found

    def candidate(
        self, name: str, label: str, path: str, engine: str, *, torch: str = "", check: bool = True
    ) -> Candidate:
        """A file in an engine, or torch itself."""
        folder = self.folder(name)
        spec = ChildSpec(
            path=path,
            runtime=engine,
            device="CPU",
            threads=self.options.threads,
            inputs=str(folder / "inputs.npz"),
            expected=str(folder / "expected.npz") if check else "",
        )
        command = (sys.executable, str(FILES), name, torch) if torch else None
        return Candidate(label, spec, command, judge=Judge(rtol=PEER_TOLERANCE))

    def peers(self, name: str) -> tuple[list[Candidate], list[dict[str, str]]]:
        """All peers that there are, and those that cannot be, with the reason."""
        folder, left_out = self.folder(name), []
        if self.options.plain:
            plain = [
                self.candidate(name, f"{path.stem} in {engine}", str(path), engine)
                for path in sorted(folder.glob("opset[0-9][0-9].onnx"))
                for engine in ENGINES
            ]
            return plain, [{"peer": "all others", "reason": "left out by --plain"}]
        kinds = {kind: self.files(name, kind) for kind in ("derived", "convert")}
        for found in kinds.values():
            for label, entry in found.items():
                problem = entry if isinstance(entry, str) else entry.get("problem")
                if problem:
                    left_out.append({"peer": label, "reason": str(problem)})
        candidates = [
            self.candidate(name, f"{path.stem} in {engine}", str(path), engine)
            for path in sorted(folder.glob("opset*.onnx"))
            for engine in ENGINES
        ]
        if (folder / "convert.xml").is_file():
            path = str(folder / "convert.xml")
            candidates.append(self.candidate(name, "convert_model in openvino", path, "openvino"))
        candidates.append(self.candidate(name, "torch eager", "", "torch", torch="eager"))
        if self.options.quick:
            left_out.append({"peer": "torch.compile", "reason": "left out by --quick"})
        else:
            candidates.append(self.candidate(name, "torch.compile", "", "torch", torch="compile"))
        return candidates, left_out


def rank_peers(bench: Bench, name: str) -> dict[str, Any]:
    """A few rounds of every peer, once: who is worth measuring well, who is wrong or missing."""
    if bench.options.plain:  # few enough to measure all well
        peers, left_out = bench.peers(name)
        return {"rows": [], "chosen": [p.label for p in peers], "left_out": left_out}
    kept = bench.folder(name) / "ranked.json"
    if kept.is_file():
        found: dict[str, Any] = json.loads(kept.read_text())
        return found | {"chosen": best_peers(found["rows"])}
    peers, left_out = bench.peers(name)

    def lost(candidate: Candidate, error: VitpeError) -> None:
        left_out.append({"peer": candidate.label, "reason": error.message})

    bench.say(f"{name}: {len(peers)} peers, a few rounds")
    tried = measure(peers, SHORT, on_error=lost)
    for one in [m for m in tried if m.agreement is not None and not m.agreement.passed]:
        tried.remove(one)
        left_out.append({"peer": one.candidate.label, "reason": f"wrong: {one.agreement}"})
    ranked = {"rows": [row(m) for m in tried], "left_out": left_out}
    kept.write_text(json.dumps(ranked, indent=1))
    return ranked | {"chosen": best_peers(ranked["rows"])}


def best_peers(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Labels of the fastest of each engine, plain exports and all others, and torch if it is near.

    Args:
        rows: what a few rounds gave, see :func:`row`.
    """
    ranked = sorted(rows, key=lambda r: float(r["latency_ms"]["min"]))
    kept = []
    for engine in ENGINES:
        own = [r["label"] for r in ranked if r["runtime"] == engine]
        kept += [label for label in own if is_plain(label)][:KEEP]
        kept += [label for label in own if not is_plain(label)][:KEEP]
    near = NEAR * ranked[0]["latency_ms"]["min"]
    return kept + [
        r["label"] for r in ranked if r["runtime"] == "torch" and r["latency_ms"]["min"] < near
    ]


def is_plain(label: str) -> bool:
    """Whether a peer is what torch.onnx.export wrote, and nothing worked on it afterwards."""
    return re.fullmatch(r"opset\d+ in \w+", label) is not None


def against(mine: Measured, rivals: Sequence[Measured]) -> dict[str, Any]:
    """The fastest rival over ours, latencies paired by round.

    Of several that are equally fast one is the fastest by chance, and just in the rounds that say
    so. Every second round is compared with the rival that is the fastest in the other ones.
    """

    def level(rival: Measured, half: int) -> float:
        of, to = (m.rounds[half::2] or m.rounds for m in (rival, mine))
        ratios = round_medians(of) / round_medians(to)
        return float(np.median(ratios))

    chosen = [min(rivals, key=lambda m, half=half: level(m, half)) for half in (0, 1)]
    rounds = [chosen[1 - k % 2].rounds[k] for k in range(len(mine.rounds))]
    found = ratio_of_rounds((mine.rounds, mine.starts), (rounds, mine.starts))
    return {
        "ours": mine.candidate.label,
        "peer": " or ".join(dict.fromkeys(m.candidate.label for m in chosen)),
        "ours_ms": mine.summary.median,
        "peer_ms": statistics.median([sample for samples in rounds for sample in samples]),
        **asdict(found),
    }


def row(one: Measured) -> dict[str, Any]:
    """Latency of one candidate, all samples kept."""
    return {
        "label": one.candidate.label,
        "runtime": one.candidate.spec.runtime,
        "latency_ms": asdict(one.summary),
        "first_peak_bytes": one.loaded.first_peak_bytes,
        "samples_ms": one.samples_ms,
    }
