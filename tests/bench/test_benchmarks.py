"""The arithmetic of scripts under benchmarks/, on numbers whose answers are known."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def script() -> Iterator[Callable[[str], ModuleType]]:
    """A script as ``python benchmarks/NAME.py`` sees it: its folder first on the path."""
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module
    sys.path.remove(str(FOLDER))


def test_fit_finds_what_made_the_numbers(script: Callable[[str], ModuleType]) -> None:
    scaling = script("resolution_scaling")
    tokens = np.array([65.0, 197, 401, 677, 1025, 1601, 2305])
    found = scaling.fit(tokens, 1.5 + 0.02 * tokens + 2e-5 * tokens**2)
    assert (found.a_ms, found.b_ms, found.c_ms) == pytest.approx((1.5, 0.02, 2e-5), rel=1e-6)
    assert found.even_tokens == pytest.approx(1000)
    assert found.attention_share(1000) == pytest.approx(0.5)
    assert scaling.fit(tokens, 0.3 * tokens).exponent == pytest.approx(1.0)
    assert scaling.fit(tokens, 0.3 * tokens**2).last_exponent == pytest.approx(2.0)
    falling = scaling.fit(tokens, 5 + 0.1 * tokens - 1e-5 * tokens**2)
    assert falling.c_ms == 0.0
    assert falling.even_tokens == np.inf


def test_intervals_hold_the_truth(script: Callable[[str], ModuleType]) -> None:
    scaling = script("resolution_scaling")
    tokens = np.array([65.0, 197, 401, 677, 1025, 1601])
    clean = 1.5 + 0.02 * tokens + 2e-5 * tokens**2
    noise = np.random.default_rng(0).normal(1, 0.01, (len(tokens), 15))
    low, high = scaling.intervals(tokens, clean[:, None] * noise)["even_tokens"]
    assert low < 1000 < high
    assert high / low < 1.5


def test_verdicts_of_trust(script: Callable[[str], ModuleType]) -> None:
    trust = script("bench_trust")
    right = {"verdict": "slower", "ci95": [1.02, 1.06], "ratio": 1.04}
    touching = {**right, "ci95": [1.0, 1.06]}
    assert trust.always("slower")([right] * 20)[0]
    assert not trust.always("slower")([*[right] * 19, touching])[0]
    assert not trust.always("no difference")([right])[0]
    near, far = ({"ours_ms": 10.0 * f, "theirs_ms": 10.0} for f in (1.02, 1.04))
    assert trust.medians_agree([near, near, far])[0]
    assert not trust.medians_agree([near, far, far])[0]
    line = {"overhead_ms": 0.002, "median_ms": 0.25, "parent_rss_bytes": 1, "child_rss_bytes": None}
    assert trust.costs_little([line])[0]
    assert not trust.costs_little([{**line, "median_ms": 0.19}])[0]


def test_tries_are_kept_and_cut_lines_dropped(
    script: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    trust = script("bench_trust")
    journal = tmp_path / "trust.jsonl"
    whole = json.dumps({"check": "same", "number": 0, "ratio": 1.0})
    journal.write_text(f"{whole}\n{whole[:20]}")
    assert [line["number"] for line in trust.read_lines(journal)["same"]] == [0]
    assert trust.read_lines(tmp_path / "none") == {}
