"""BEiT's uneven grid for relative tables (Bao et al. 2022, fine-tuning at another size).

The rows of an old table are not spread evenly over the new offsets: small offsets stay near where
they were and large ones move apart. With n old rows on either side of the middle, old row i lies
at the new offset

    d_i = 1 + q + q^2 + ... + q^(i-1) = (q^i - 1) / (q - 1),   d_-i = -d_i,   d_0 = 0

where the ratio q puts the last row at the last new offset m: d_n = m. That is a polynomial of
degree n - 1 in q, so q has no closed form in the new size; it is found by bisection on
[1.01, 1.5], which also is what happens when the grid shrinks and no q fits: d grows by 1.01.

Between the rows the table is read linearly, on each axis by itself, so the whole rule is a matrix
per axis. timm reads BEiT tables this way.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_SMALLEST, _LARGEST, _TOLERANCE = 1.01, 1.5, 1e-6


def geometric_offsets(rows: int, offsets: int) -> npt.NDArray[np.float64]:
    """Where the rows of an old table lie among the new offsets.

    Args:
        rows: rows of the old table on this axis, odd.
        offsets: rows of the new table, odd; the new offsets are whole numbers around 0.

    Returns:
        Float64 [rows], increasing, 0 in the middle.
    """
    half, last = rows // 2, offsets // 2
    low, high = _SMALLEST, _LARGEST
    while high - low > _TOLERANCE:
        ratio = (low + high) / 2
        if (ratio**half - 1) / (ratio - 1) > last:
            high = ratio
        else:
            low = ratio
    # The last ratio that was tried, not the last bound: published weights were read like that.
    side = np.cumsum(ratio ** np.arange(half))
    return np.concatenate([-side[::-1], [0.0], side])


def geometric_matrix(rows: int, offsets: int) -> npt.NDArray[np.float64]:
    """Weights of one axis, float64 [offsets, rows]; rows sum to one, outside repeats the edge."""
    knots = geometric_offsets(rows, offsets)
    target = np.arange(offsets) - offsets // 2
    return np.stack([np.interp(target, knots, unit) for unit in np.eye(rows)], axis=1)
