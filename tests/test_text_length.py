"""The arithmetic of text lengths, and refusals that name their numbers."""

from __future__ import annotations

import pytest

from vitpe_deploy.errors import SizeError, UsageError
from vitpe_deploy.text_length import check_max_length, stretched_length, too_long


@pytest.mark.parametrize(("length", "stretched"), [(77, 248), (21, 24), (64, 196), (512, 1988)])
def test_stretched_length(length: int, stretched: int) -> None:
    assert stretched_length(length) == stretched


def test_twenty_positions_have_nothing_to_stretch() -> None:
    with pytest.raises(SizeError, match="20 text positions"):
        stretched_length(20)


@pytest.mark.parametrize(
    ("asked", "needs_stretch"), [(2, False), (76, False), (77, False), (248, True)]
)
def test_reachable_lengths(asked: int, needs_stretch: bool) -> None:
    assert check_max_length(asked, 77) is needs_stretch


@pytest.mark.parametrize("asked", [78, 247, 249, 932])
def test_other_lengths_are_refused_with_the_right_one(asked: int) -> None:
    with pytest.raises(SizeError, match=rf"{asked} .* 77") as refusal:
        check_max_length(asked, 77)
    assert "--max-length 248" in refusal.value.hint
    assert "up to 77" in refusal.value.hint


def test_second_stretch_is_refused() -> None:
    with pytest.raises(SizeError, match=r"932 .* 248 .* already"):
        check_max_length(932, 248, stretched=True)
    assert check_max_length(128, 248, stretched=True) is False


@pytest.mark.parametrize("asked", [1, 0, -5])
def test_start_and_end_need_two_tokens(asked: int) -> None:
    with pytest.raises(UsageError, match=f"at least 2, got {asked}"):
        check_max_length(asked, 77)


def test_refusal_offers_the_stretch_only_where_it_exists() -> None:
    assert "--max-length 248" in too_long(78, 77, stretchable=True).hint
    assert "--max-length" not in too_long(78, 77).hint
    assert "--max-length" not in too_long(21, 20, stretchable=True).hint
    assert too_long(78, 77).exit_code == 2
