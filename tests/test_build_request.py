"""Python's own types as sizes and ranges: every form means one thing, and the rest is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vitpe_deploy.build_request import make_request
from vitpe_deploy.errors import UsageError
from vitpe_deploy.request import Resolution, SizeRange

SQUARES = (Resolution(224, 224), Resolution(384, 384))
WIDE = Resolution(224, 384)


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        (None, ()),
        (224, SQUARES[:1]),
        (np.int64(224), SQUARES[:1]),
        ("224x384", (WIDE,)),
        ((224, 384), (WIDE,)),
        ((np.int32(224), np.int64(384)), (WIDE,)),
        (WIDE, (WIDE,)),
        ([224, 384], SQUARES),
        (["224", (224, 384)], (SQUARES[0], WIDE)),
        (((224, 224), (384, 384)), SQUARES),
        (((224, 384), 384), (WIDE, SQUARES[1])),
        (("224", "384"), SQUARES),
        ([], ()),
        ((), ()),
    ],
)
def test_resolution(given: Any, sizes: tuple[Resolution, ...]) -> None:
    assert make_request(resolution=given).resolutions == sizes


@pytest.mark.parametrize("name", ["buckets", "verify_resolutions"])
@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ((), ()),
        (224, SQUARES[:1]),
        ("224x384", (WIDE,)),
        ((224, 384), SQUARES),
        ([224, np.int64(384)], SQUARES),
        (((224, 224), (384, 384)), SQUARES),
        ([(224, 384), "384"], (WIDE, SQUARES[1])),
        ((224, 384, 512), (*SQUARES, Resolution(512, 512))),
    ],
)
def test_every_item_of_a_list_is_a_size(
    name: str, given: Any, sizes: tuple[Resolution, ...]
) -> None:
    request = make_request(**{name: given})
    assert (request.buckets if name == "buckets" else request.verify.resolutions) == sizes


@pytest.mark.parametrize(
    "given", [(224, 384, 512), (224,), 224.0, [224.5], True, [(224, 384, 3)], [None], {224}, b"22"]
)
def test_what_is_no_size_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="cannot read the size") as caught:
        make_request(resolution=given)
    assert "384" in caught.value.hint


@pytest.mark.parametrize(
    "given", ["64:640:32", (64, 640, 32), [np.int64(64), 640, 32], SizeRange(64, 640, 32)]
)
def test_range(given: Any) -> None:
    assert make_request(size_range=given).size_range == SizeRange(64, 640, 32)
    assert make_request(size_range=(64, 640)).size_range == SizeRange(64, 640, 1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((640, 64, 0), "the range '640:64:0' is empty"),
        ((64, 640, 0), "the range '64:640:0' is empty"),
        ((0, 640), "the range '0:640' is empty"),
        ("640:64", "the range '640:64' is empty"),
        ((64,), "cannot read the range"),
        ((64, 640.0), "cannot read the range"),
        (64, "cannot read the range"),
        ((1, 2, 3, 4), "cannot read the range"),
    ],
)
def test_what_is_no_range_is_refused(given: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_request(size_range=given)
