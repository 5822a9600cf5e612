"""Sines and cosines of a coordinate, shared by every sinusoidal encoding.

From Vaswani et al. 2017, "Attention Is All You Need", section 3.5: channel pair k of n turns with
``temperature^(-k/n)`` radians per position. Everything here works on float64 for constants and on
float32 with ``torch.SymInt`` sizes inside a trace, by the same code.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from vitpe_deploy.errors import UsageError
from vitpe_deploy.request import closest

CoordinateMode: TypeAlias = Literal["extrapolate", "rescale"]
"""At a new size, count on beyond the trained range, or spread the trained range over it."""

TEMPERATURE = 10000.0


def check_mode(mode: str) -> None:
    """Refuse a coordinate mode that does not exist.

    Raises:
        UsageError: unknown; the hint has the closest one and the list.
    """
    known = get_args(CoordinateMode)
    if mode not in known:
        raise UsageError(
            f"mode {mode!r} is not known",
            hint=f"{closest(mode, known)}Choose from: {', '.join(known)}.",
        )


def check_temperature(temperature: float) -> None:
    """Refuse a temperature whose powers are not frequencies.

    Raises:
        UsageError: not a positive number.
    """
    if not temperature > 0:
        raise UsageError(
            f"temperature must be positive, got {temperature}", hint="Use 10000 as published."
        )


def coordinates(
    n_new: int, n_old: int, mode: CoordinateMode, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Where each of ``n_new`` cells lies on an axis that was trained with ``n_old``.

    ``extrapolate`` counts 0, 1, 2...; ``rescale`` puts centre i at (i + 1/2) n_old / n_new - 1/2,
    so that both ends of the axis stay where they were.

    Returns:
        [n_new]; at ``n_new == n_old`` both modes give 0, 1, 2... exactly.
    """
    cells = torch.arange(n_new, dtype=dtype)
    if mode == "extrapolate":
        return cells
    return (cells + 0.5) * float(n_old) / torch.scalar_tensor(n_new, dtype=dtype) - 0.5


def frequencies(pairs: int, temperature: float = TEMPERATURE) -> Tensor:
    """Radians per position of each channel pair, float64 [pairs]: 1 down to 1/temperature."""
    return torch.from_numpy(np.float64(temperature) ** (-np.arange(pairs) / pairs))


def sinusoid(
    coordinate: Tensor,
    channels: int,
    *,
    temperature: float = TEMPERATURE,
    interleaved: bool = True,
) -> Tensor:
    """Encode coordinates along one axis.

    Args:
        coordinate: [n], in positions.
        channels: of the result, even.
        temperature: the ratio of the fastest to the slowest frequency, nearly.
        interleaved: sin, cos, sin, cos... as published; else all sines, then all cosines.

    Returns:
        [n, channels] in the dtype of ``coordinate``. Width 4 at position 1 is
        sin 1, cos 1, sin 0.01, cos 0.01.

    Raises:
        UsageError: ``channels`` is odd.
    """
    if channels % 2:
        raise UsageError(
            f"a sinusoidal encoding needs an even number of channels, got {channels}",
            hint="Sines and cosines come in pairs.",
        )
    turns = frequencies(channels // 2, temperature).to(coordinate.dtype)
    angle = coordinate.unsqueeze(1) * turns  # [n, channels/2]
    parts = angle.sin(), angle.cos()
    return torch.stack(parts, dim=-1).flatten(1) if interleaved else torch.cat(parts, dim=1)
