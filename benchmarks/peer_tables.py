"""The Markdown of peers.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from peer_floors import ENGINES

_KINDS = {"plain_over_ours": "plain export", "peer_over_ours": "any peer"}


def tables(document: Mapping[str, Any]) -> str:
    """Latency against the best peers, then everything else, then what was left out."""
    return "\n\n".join(
        [
            f"Threads {document['threads']}, {document['host']['cpu']}. Best peer over ours, "
            "median and 95 % interval; above 1, ours is faster.",
            _speed(document),
            _costs(document),
            _left_out(document),
        ]
    )


def _speed(document: Mapping[str, Any]) -> str:
    lines = [
        "| model | against | ours ms | peer ms | ratio | 95 % interval | which |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in document["models"]:
        if "problem" in result:
            lines.append(f"| {result['model']} | | | | | | {result['problem']} |")
            continue
        for kind, words in _KINDS.items():
            for where, r in result[kind].items():
                lines.append(
                    f"| {result['model']} | {words}, {where} | {r['ours_ms']:.1f} "
                    f"| {r['peer_ms']:.1f} | **{r['median']:.3f}** "
                    f"| {r['low']:.3f} to {r['high']:.3f} | {r['peer']} |"
                )
    for kind, means in document["geometric_mean"].items():
        for where, mean in means.items():
            lines.append(f"| geometric mean | {_KINDS[kind]}, {where} | | | **{mean:.3f}** | | |")
    return "\n".join(lines)


def _costs(document: Mapping[str, Any]) -> str:
    lines = [
        "| model | dynamic/static ort | openvino | peak MB ours | peer | file/weights | max rel |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in document["models"]:
        if "problem" in result:
            continue
        dynamic = [_ratio(result["dynamic_over_static"].get(engine)) for engine in ENGINES]
        memory = result["memory"]
        worst = max((v for v in result["max_rel"].values() if v is not None), default=float("nan"))
        lines.append(
            f"| {result['model']} | {dynamic[0]} | {dynamic[1]} | {_mb(memory['ours_bytes'])} "
            f"| {_mb(memory['peer_bytes'])} | {result['file']['ratio']:.3f} | {worst:.1e} |"
        )
    return "\n".join(lines)


def _left_out(document: Mapping[str, Any]) -> str:
    lines = [
        f"- {result['model']}: {entry['peer']}: {entry['reason']}"
        for result in document["models"]
        for entry in result.get("left_out", ())
    ]
    return "\n".join(["Left out:", *lines]) if lines else "Nothing was left out."


def ablation_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per model, engine and pass: what latency becomes without it."""
    lines = [
        "| model | engine | pass | places changed | all ms | without ms | without / all "
        "| 95 % interval | without it |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "problem" in row:
            lines.append(
                f"| {row['model']} | | {row.get('pass', '')} | {row['problem']} | | | | | |"
            )
            continue
        lines.append(
            f"| {row['model']} | {row['engine']} | {row['pass']} | {row['changed']} "
            f"| {row['all_ms']:.1f} | {row['without_ms']:.1f} | {row['median']:.3f} "
            f"| {row['low']:.3f} to {row['high']:.3f} | {row['verdict']} |"
        )
    return "\n".join(lines)


def _ratio(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "no dynamic file"
    return f"{found['median']:.3f} ({found['low']:.3f} to {found['high']:.3f})"


def _mb(value: int | None) -> str:
    return "?" if value is None else f"{value / 2**20:.1f}"
