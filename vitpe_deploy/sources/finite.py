"""Whether weights are numbers, in one pass over them and without a copy.

The smallest and the largest value say it: NaN is both where there is one. ``torch.isfinite`` would
write a mask as long as the tensor.
"""

from __future__ import annotations

import torch
from torch import Tensor


def is_finite(tensor: Tensor) -> bool:
    """Whether no element is NaN or infinite."""
    ends = _ends(tensor)
    return bool(tensor.isfinite().all()) if ends is None else bool(ends.isfinite().all())


def has_nan(tensor: Tensor) -> bool:
    """Whether an element is NaN; infinities are none."""
    ends = _ends(tensor)
    return bool(tensor.isnan().any()) if ends is None else bool(ends.isnan().any())


def _ends(tensor: Tensor) -> Tensor | None:
    """Smallest and largest value ``[2]``; None where there is no order, or nothing to order."""
    if tensor.numel() == 0 or not tensor.is_floating_point() or tensor.itemsize < 2:
        return None
    return torch.stack(torch.aminmax(tensor))
