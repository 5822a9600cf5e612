"""Windows of a token map: who attends to whom, as two gathers and a few masks.

Shifted-window attention is usually written as pad, roll, reshape, transpose and their inverses.
All of them only move whole tokens, so they are one gather in and one gather out, by indices that
follow from the size of the map with integer arithmetic. That is exact, works for sizes that are
not known yet, and needs no branch: a map of a single window turns the shift into zero by itself.

Along one axis of ``size`` tokens, with windows of ``window`` and a shift of ``shift``:

    size 5, window 4, shift 2     tokens  0 1 2 3 4 . . .     (. is padding: a zero token)
                                  rolled  2 3 4 . . . 0 1     windows [2 3 4 .] [. . 0 1]

Only the last window holds tokens from both ends of the map (here tokens 0 and 1 came round), and
they must not see the others. So there are just two masks per axis, and ``kind`` says which one a
window takes.

The axes may be (h, w) or (t, h, w). Letters used in shapes: B batch, N tokens of the map, D
embed_dim, W windows, n tokens of one window, A axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import Literal, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Sizes: TypeAlias = tuple[int, ...]
"""One number per axis; any may be a ``torch.SymInt``."""

SmallMap: TypeAlias = Literal["pad", "clamp"]
"""What a map smaller than the window does.

``pad``: it is padded to one window (torchvision's Swin). ``clamp``: the window shrinks to the map,
and a pair of tokens keeps the bias of its offset (torchvision's video Swin along time). Either way
a single window is not shifted. timm and transformers shrink the window when the model is *built*,
which gives it another, smaller table: that is another model.
"""

MASKED = -100.0
"""Added to logits across a seam; Swin's own value, which is not quite minus infinity."""


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """Where every token of a map goes, and what it may see there.

    Attributes:
        window: tokens of a window along each axis.
        into: [W*n] token of the map for each place in a window; N where there is padding.
        back: [N] place in the windows for each token of the map.
        masks: [2**A, n, n] mask of each kind of window; None without a shift.
        kind: [W] the kind of each window; None without a shift.
        crop: [n] tokens of the full window that are left of it; None when it is not cut.
        padded: whether ``into`` can point at padding.
    """

    window: Sizes
    into: Tensor
    back: Tensor
    masks: Tensor | None
    kind: Tensor | None
    crop: Tensor | None
    padded: bool

    def partition(self, x: Tensor) -> Tensor:
        """[B, N, D] -> [B*W, n, D]."""
        x = gather_tokens(x, self.into, padded=self.padded)
        return x.reshape(-1, prod(self.window), x.shape[-1])

    def merge(self, x: Tensor, batch: int) -> Tensor:
        """[B*W, n, D] -> [B, N, D]; padding falls away."""
        return x.reshape(batch, -1, x.shape[-1]).index_select(1, self.back)

    def bias(self, bias: Tensor | None, batch: int) -> Tensor | None:
        """Bias of a window [1, M, n, n] and the masks -> None or [1|B*W, 1|M, n, n]."""
        if bias is not None and self.crop is not None:
            bias = bias.index_select(2, self.crop).index_select(3, self.crop)
        if self.masks is None or self.kind is None:
            return bias
        masks = self.masks.unsqueeze(1)  # [2**A, 1, n, n]
        return (masks if bias is None else bias + masks).index_select(0, self.kind.repeat(batch))


class BakedPlan(nn.Module):
    """A plan for one size, held as constants of the exported file."""

    def __init__(self, plan: WindowPlan) -> None:
        super().__init__()
        self._plan = plan
        for name in _TENSORS:
            self.register_buffer(name, getattr(plan, name), persistent=False)

    def forward(self) -> WindowPlan:
        """The plan, on whatever device this module was moved to."""
        tensors = {name: getattr(self, name) for name in _TENSORS}
        return WindowPlan(window=self._plan.window, padded=self._plan.padded, **tensors)


_TENSORS = tuple(f.name for f in fields(WindowPlan) if f.name not in ("window", "padded"))


def plan_windows(
    sizes: Sizes,
    window: Sizes,
    shift: Sizes | None = None,
    *,
    small_map: SmallMap = "pad",
    device: torch.device | None = None,
) -> WindowPlan:
    """The plan of one map.

    Args:
        sizes: tokens of the map along each axis; any may be symbolic.
        window: tokens of a window along each axis.
        shift: how far the windows move along each axis, below ``window``; None leaves them.
        small_map: see :data:`SmallMap`.
        device: where the indices live.
    """
    full = window
    if small_map == "clamp":
        window = tuple(_smaller(n, k) for n, k in zip(sizes, full, strict=True))
    counts = tuple((n + k - 1) // k for n, k in zip(sizes, window, strict=True))
    shifts = shift or (0,) * len(sizes)
    axes = [
        _Axis(size, width, count, s, device)
        for size, width, count, s in zip(sizes, window, counts, shifts, strict=True)
    ]
    sources = [axis.sources() for axis in axes]  # A x [W, n] of the axis
    into = grid_sum([at * step for at, step in zip(sources, strides(sizes), strict=True)])
    padded = any(not isinstance(a.size, int) or a.size != a.count * a.width for a in axes)
    if padded:
        outside = grid_sum([at >= axis.size for at, axis in zip(sources, axes, strict=True)])
        into = torch.where(outside, prod(sizes), into)
    back = [
        axis.destinations(per_window * prod(window), per_token)
        for axis, per_window, per_token in zip(axes, strides(counts), strides(window), strict=True)
    ]
    order = (*range(0, 2 * len(axes), 2), *range(1, 2 * len(axes), 2))  # windows, then places
    kinds = grid_sum([axis.kinds(2**i) for i, axis in enumerate(axes)]).flatten()
    return WindowPlan(
        window=window,
        into=into.permute(order).flatten(),
        back=grid_sum(back).flatten(),
        masks=_masks(axes) if any(shifts) else None,
        kind=kinds if any(shifts) else None,
        crop=_crop(axes, full) if small_map == "clamp" else None,
        padded=padded,
    )


def merge_index(sizes: Sizes, device: torch.device | None = None) -> tuple[Tensor, bool]:
    """Tokens that patch merging joins: 2x2 of them, columns outermost, as Swin stores its weights.

    Args:
        sizes: rows and columns of the map; odd ones are padded.
        device: where the index lives.

    Returns:
        index: [ceil(h/2) * ceil(w/2) * 4]; h*w where there is padding. A 2x2 map gives 0 2 1 3.
        padded: whether it can point at padding.
    """
    h, w = sizes
    rows, columns = (torch.arange((n + 1) // 2 * 2, device=device).reshape(-1, 2) for n in sizes)
    index = grid_sum([rows * w, columns])  # [h/2, 2, w/2, 2]
    padded = not isinstance(h, int) or not isinstance(w, int) or bool(h % 2 or w % 2)
    if padded:
        index = torch.where(grid_sum([rows >= h, columns >= w]), h * w, index)
    return index.permute(0, 2, 3, 1).flatten(), padded


def gather_tokens(x: Tensor, index: Tensor, *, padded: bool) -> Tensor:
    """Tokens by number, [B, N, D] -> [B, len(index), D]; number N is a zero token."""
    return (F.pad(x, (0, 0, 0, 1)) if padded else x).index_select(1, index)


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis of a plan: tensors of its own size only, and no integer division."""

    size: int
    width: int
    count: int
    shift: int
    device: torch.device | None

    def _whole(self) -> Tensor:
        return torch.scalar_tensor(self.count * self.width, dtype=torch.int64, device=self.device)

    def _roll(self, at: Tensor, sign: int) -> Tensor:
        """Turn by the shift, or not at all when there is a single window."""
        if not self.shift:
            return at
        whole = self._whole()
        shift = (whole - self.width).clamp(max=1) * self.shift
        return torch.remainder(at + shift if sign > 0 else at + (whole - shift), whole)

    def sources(self) -> Tensor:
        """[count, width]: coordinate in the map of each place; ``size`` and more is padding."""
        places = torch.arange(self.count * self.width, device=self.device)
        return self._roll(places, +1).reshape(-1, self.width)

    def destinations(self, per_window: int, per_token: int) -> Tensor:
        """[size]: what each coordinate adds to the flat number of its place.

        That is ``p // width * per_window + p % width * per_token`` at the rolled coordinate p. It
        is written without the division, since ``per_window`` is a multiple of ``width``.
        """
        at = self._roll(torch.arange(self.size, device=self.device), -1)
        step = per_window // self.width
        width = torch.scalar_tensor(self.width, dtype=torch.int64, device=self.device)
        inside = torch.remainder(at, width)
        return at * step + inside * (per_token - step)

    def seam(self) -> Tensor:
        """[width]: whether a place of a shifted last window came round from the other end."""
        return torch.arange(self.width, device=self.device) >= self.width - self.shift

    def kinds(self, bit: int) -> Tensor:
        """[count]: ``bit`` for the last window of a shifted axis that has more than one."""
        at = torch.arange(self.count, device=self.device)
        if not self.shift:
            return at * 0
        return ((at == self.count - 1) & (at > 0)) * bit


def _smaller(size: int, window: int) -> int:
    """The minimum, which is a node of the graph where ``size`` is symbolic."""
    return cast("int", torch.sym_min(size, window))


def _masks(axes: Sequence[_Axis]) -> Tensor:
    """[2**A, n, n]: kind k has a seam along each axis whose bit is set in k."""
    seams = [axis.seam() * 2**i for i, axis in enumerate(axes)]
    sides = torch.stack(
        [
            grid_sum([seam * (kind >> i & 1) for i, seam in enumerate(seams)]).flatten()
            for kind in range(2 ** len(axes))
        ]
    )  # [2**A, n]: places on the same side of every seam have the same number
    return (sides.unsqueeze(1) != sides.unsqueeze(2)) * MASKED


def _crop(axes: Sequence[_Axis], full: Sizes) -> Tensor:
    """[n]: tokens of the full window in the corner that is left of it."""
    corner = [torch.arange(axis.width, device=axis.device) for axis in axes]
    return grid_sum([at * step for at, step in zip(corner, strides(full), strict=True)]).flatten()


def strides(sizes: Sizes) -> list[int]:
    """Steps of a raster number along each axis: (2, 3, 4) -> [12, 4, 1]."""
    return [prod(sizes[i + 1 :]) for i in range(len(sizes))]


def grid_sum(axes: Sequence[Tensor]) -> Tensor:
    """Outer sum, [a...] and [b...] -> [a..., b...]; an outer "or" for booleans."""
    total = axes[0]
    for axis in axes[1:]:
        wide = total.reshape(*total.shape, *(1,) * axis.ndim)
        total = wide | axis if axis.dtype == torch.bool else wide + axis
    return total
