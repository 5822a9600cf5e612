"""What peers.py and export_cost.py require of us. Floors, not targets: more is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ENGINES = ("onnxruntime", "openvino")

GEOMETRIC_MEAN = {
    "plain_over_ours": {"onnxruntime": 1.10, "openvino": 1.05},
    "peer_over_ours": {"across": 1.07},
}
POOLED_BY_CLS = {"onnxruntime": 1.09, "openvino": 1.06}
NEVER_ALL_BELOW = 0.98
DYNAMIC = 1.02
DYNAMIC_WITH_BIAS = 1.10
MEMORY = 0.70
MEMORY_WITH_BIAS = 1.02
MEMORY_SIZE_PX = 518
EXPORT_TIME = 1.25
SIZE = 1.02
SIZE_WITH_BIAS = 1.08
MAX_REL = 1e-5


def misses(
    results: Sequence[Mapping[str, Any]],
    means: Mapping[str, Mapping[str, float]],
    *,
    whole_suite: bool,
) -> list[str]:
    """Every floor that is missed, in words. Means are judged over the whole suite alone.

    In one engine the floors are for the best plain export, across engines for the best peer of
    all; no peer of any kind may be surely faster.
    """
    found = []
    for kind, floors in GEOMETRIC_MEAN.items() if whole_suite else ():
        for where, floor in floors.items():
            mean = means.get(kind, {}).get(where, 0.0)
            if not mean >= floor:
                found.append(f"geometric mean {where}: {mean:.3f}, floor {floor:.2f}")
    for result in results:
        found += [f"{result['model']}: {text}" for text in _of_model(result)]
    return found


def _of_model(result: Mapping[str, Any]) -> list[str]:
    if "problem" in result:
        return [f"no figures: {result['problem']}"]
    found, bias = [], result["bias"]
    for engine in ENGINES:
        plain = result["plain_over_ours"][engine]
        if result["pooled_by_cls"] and not plain["median"] >= POOLED_BY_CLS[engine]:
            floor = POOLED_BY_CLS[engine]
            found.append(f"{plain['median']:.3f} in {engine}, floor {floor:.2f}")
        ratio = result["peer_over_ours"][engine]
        if ratio["high"] < NEVER_ALL_BELOW:
            found.append(f"slower than {ratio['peer']}: {ratio['median']:.3f}, all below 0.98")
    limit = DYNAMIC_WITH_BIAS if bias else DYNAMIC
    for engine, ratio in result["dynamic_over_static"].items():
        if ratio["low"] > limit:
            found.append(
                f"dynamic over static {ratio['median']:.3f} in {engine}, limit {limit:.2f}"
            )
    # without a bias the limit is for 518 px, where attention dominates the memory
    memory = result["memory"]["ratio"]
    limit = MEMORY_WITH_BIAS if bias else MEMORY
    if (bias or result["size"] == MEMORY_SIZE_PX) and (memory is None or memory > limit):
        found.append(f"peak memory {memory} of the best peer, limit {limit:.2f}")
    limit = SIZE_WITH_BIAS if bias else SIZE
    if result["file"]["ratio"] > limit:
        found.append(f"file over weights {result['file']['ratio']:.3f}, limit {limit:.2f}")
    for where, value in result["max_rel"].items():
        if value is None or value > MAX_REL:
            found.append(f"max_rel {value} of {where}, limit {MAX_REL:.0e}")
    return found
