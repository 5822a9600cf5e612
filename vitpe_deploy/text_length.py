"""How long a text a text tower takes, as plain numbers: no torch, so refusals cost nothing.

The stretch is the one of Zhang et al. 2024 ("Long-CLIP", section 3.1): the first 20 positions are
trained well and stay, every later one becomes four. The rows themselves are made in
:mod:`vitpe_deploy.encodings.text_table`.
"""

from __future__ import annotations

from vitpe_deploy.errors import SizeError, UsageError

KEPT_POSITIONS = 20
"""Positions that the stretch leaves alone."""

STRETCH = 4
"""Positions that each later one becomes."""


def stretched_length(length: int) -> int:
    """Positions after the stretch: ``20 + 4 * (length - 20)``, so 77 gives 248.

    Raises:
        SizeError: there is no position after those that are kept.
    """
    if length <= KEPT_POSITIONS:
        raise SizeError(
            f"{length} text positions cannot be stretched: the first {KEPT_POSITIONS} are kept",
            hint=f"Stretching needs more than {KEPT_POSITIONS} positions; leave --max-length out.",
        )
    return KEPT_POSITIONS + STRETCH * (length - KEPT_POSITIONS)


def check_max_length(max_length: int, positions: int, *, stretched: bool = False) -> bool:
    """Whether ``--max-length`` needs the stretch of a table of ``positions`` rows.

    Args:
        max_length: tokens asked for.
        positions: rows of the table.
        stretched: whether the table was stretched before; that is done once.

    Returns:
        False when the first rows are enough, True when the table is to be stretched.

    Raises:
        UsageError: no room for a start and an end token.
        SizeError: longer than the table, and not the one length that the stretch gives.
    """
    if max_length < 2:
        raise UsageError(f"--max-length must be at least 2, got {max_length}")
    if max_length <= positions:
        return False
    if stretched:
        raise SizeError(
            f"--max-length {max_length} is more than the {positions} positions of this table, "
            "which was stretched already",
            hint="Start from the original weights.",
        )
    reachable = stretched_length(positions)
    if max_length != reachable:
        raise SizeError(
            f"--max-length {max_length} is not a length that {positions} positions stretch to",
            hint=f"Use --max-length {reachable} (shorter text fits in it), or up to {positions}.",
        )
    return True


def too_long(length: int, limit: int, *, stretchable: bool = False) -> SizeError:
    """The refusal of a text that is longer than the positions reach, to be raised."""
    hint = f"Shorten the text to {limit} tokens (vitpe_deploy.text_chunks)"
    if stretchable and limit > KEPT_POSITIONS:
        hint += f", or stretch the positions: --max-length {stretched_length(limit)}"
    return SizeError(
        f"text of {length} tokens is longer than the maximum of {limit}", hint=f"{hint}."
    )
