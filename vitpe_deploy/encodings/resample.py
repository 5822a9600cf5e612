"""Position tables at another size, exactly as ``torch.nn.functional.interpolate`` reads them.

Resampling is linear and separable: for each axis a matrix of weights W [n_out, n_in] (rows sum to
one), and for a grid ``W_h . P . W_w^T`` per channel. Three forms of it live here and are tested
against each other:

* :func:`axis_matrix` - float64 weights, for constants at export time;
* :func:`axis_matrix_in_graph` - the same from a symbolic size, as Range, Mul, Sub, Div, Abs, Relu;
* :func:`interpolate_grid` - torch's own interpolation, the referee of the other two.

One expression covers every rule. Output sample i meets input sample j at the distance

    x_ij = ((j + o) N - (i + o) M) / d

in steps of the kernel, where M/N is the input step of one output sample and o = 1/2 when samples
are cell centres. N and M are whole numbers (but for the offset), so the numerator is exact even in
float32 and only the division rounds.

    ====================  =====  ==============  ===========  ===========
    rule                  o      N               M            d
    ====================  =====  ==============  ===========  ===========
    plain                 1/2    n_out + offset  n_in         N
    antialias             1/2    n_out + offset  n_in         max(N, M)
    align_corners         0      n_out - 1       n_in - 1     N
    both                  1/2    n_out - 1       n_in - 1     max(N, M)
    ====================  =====  ==============  ===========  ===========

The kernels are the triangle and the cubic of Keys, "Cubic Convolution Interpolation for Digital
Image Processing" (1981), with a = -3/4 plain and a = -1/2 under antialias. Plain rules read
beyond the border by repeating the edge; antialias drops what is outside and divides by the row sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from vitpe_deploy.errors import SizeError, UsageError
from vitpe_deploy.request import ResampleOverride, closest

Interpolation: TypeAlias = Literal["bicubic", "bilinear"]

_REACH = 2
"""Samples beyond the border that a plain cubic can touch."""

_Array = TypeVar("_Array", npt.NDArray[np.float64], Tensor)


@dataclass(frozen=True, slots=True)
class ResampleRule:
    """How a family of models reads its position table at another size.

    Attributes:
        interpolation: kernel.
        antialias: widen the kernel when the grid shrinks. Changes the cubic when it grows too.
        align_corners: corner samples stay corners. As in torch, the offset has no effect then.
        offset: of the output size in the scale, 0.1 in Meta's DINO and DINOv2 code, where
            ``scale_factor = (n_out + 0.1) / n_in``: every sample moves, the size does not.
    """

    interpolation: Interpolation = "bicubic"
    antialias: bool = True
    align_corners: bool = False
    offset: float = 0.0

    def __post_init__(self) -> None:
        known = get_args(Interpolation)
        if self.interpolation not in known:
            raise UsageError(
                f"interpolation {self.interpolation!r} is not known",
                hint=f"{closest(str(self.interpolation), known)}Choose from: {', '.join(known)}.",
            )
        if not 0 <= self.offset < 1:
            raise UsageError(
                f"a resample offset must be in [0, 1), got {self.offset}",
                hint="Use 0.1 for Meta's DINO and DINOv2, 0 for everything else.",
            )

    def __str__(self) -> str:
        words: list[str] = [self.interpolation]
        words += ["antialias"] if self.antialias else []
        words += ["align_corners"] if self.align_corners else []
        words += [f"offset {self.offset:g}"] if self.offset else []
        return " ".join(words)

    def overridden(self, override: ResampleOverride) -> ResampleRule:
        """This rule with the user's word where there is one.

        Raises:
            UsageError: the override names an interpolation that does not exist.
        """
        said = {
            name: value
            for name in ("interpolation", "antialias", "align_corners")
            if (value := getattr(override, name)) is not None
        }
        return replace(self, **said)


def _cubic(p: _Array, q: _Array, a: float) -> _Array:
    """Keys' cubic from the truncated powers p = max(2-|x|, 0) and q = max(1-|x|, 0).

    Both published branches in one: ``a p^2 (1-p)`` is the outer one and continues inwards, the
    second term is what the inner one has on top. No branch, so no Where in a graph.
    """
    return a * (p * p) * (1 - p) + (q * q) * ((4 * a + 3) - 2 * q)


def _cubic_a(rule: ResampleRule) -> float:
    return -0.5 if rule.antialias else -0.75


def _copies_equal_axes(rule: ResampleRule) -> bool:
    """Whether torch copies an axis whose size stays, whatever the scale factor says.

    It does in every pass but the plain cubic, which is Meta's.
    """
    return rule.offset > 0 and (rule.antialias or rule.interpolation == "bilinear")


def _half(rule: ResampleRule) -> float:
    """The shift o of the module docstring."""
    return 0.5 if rule.antialias or not rule.align_corners else 0.0


def axis_matrix(n_in: int, n_out: int, rule: ResampleRule) -> npt.NDArray[np.float64]:
    """Exact weights of one axis, float64 [n_out, n_in]; every row sums to one.

    Raises:
        SizeError: a size below one.
    """
    if n_in < 1 or n_out < 1:
        raise SizeError(
            f"cannot resample {n_in} positions to {n_out}", hint="Both sizes must be at least 1."
        )
    if rule.align_corners:
        n, m = max(n_out - 1.0, 1.0), (n_in - 1.0 if n_out > 1 else 0.0)
    else:
        copied = _copies_equal_axes(rule) and n_in == n_out
        n, m = n_out + (0.0 if copied else rule.offset), float(n_in)
    reach = 0 if rule.antialias else _REACH
    o = _half(rule)
    rows = np.arange(n_out)[:, None]
    columns = np.arange(-reach, n_in + reach)[None, :]
    x = np.abs((columns + o) * n - (rows + o) * m) / (max(n, m) if rule.antialias else n)
    q = np.maximum(1 - x, 0)
    if rule.interpolation == "bilinear":
        weights = q
    else:
        weights = _cubic(np.maximum(2 - x, 0), q, _cubic_a(rule))
    if rule.antialias:
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))
    return np.asarray(weights @ edge_matrix(n_in))


def edge_matrix(n_in: int) -> npt.NDArray[np.float64]:
    """0/1 matrix [n_in + 4, n_in] that repeats the edge: padded = E @ table."""
    edge = np.clip(np.arange(-_REACH, n_in + _REACH), 0, n_in - 1)
    return np.eye(n_in)[edge]


def axis_matrix_in_graph(n_in: int, n_out: int, rule: ResampleRule) -> Tensor:
    """The weights of :func:`axis_matrix` from a size that may be a ``torch.SymInt``.

    Returns:
        float32 [n_out, n_in]. Exactly the identity at ``n_out == n_in`` without an offset.
    """
    size = torch.scalar_tensor(n_out, dtype=torch.float32)
    offset: float | Tensor = rule.offset
    if _copies_equal_axes(rule):
        offset = _away(size, n_in) * rule.offset
    return _axis_matrix_in_graph(n_in, n_out, size, rule, offset)


def _away(size: Tensor, n_in: int) -> Tensor:
    """0 at the table's own size, 1 elsewhere; a float32 scalar."""
    return (size - n_in).abs().clamp(max=1)


def _axis_matrix_in_graph(
    n_in: int, n_out: int, size: Tensor, rule: ResampleRule, offset: float | Tensor
) -> Tensor:
    """``size`` is ``n_out`` as a float32 scalar tensor, so that no SymInt arithmetic is traced."""
    m: float | Tensor = float(n_in)
    n = shifted = size
    if rule.align_corners:
        last = size - 1
        n = shifted = last.clamp(min=1)
        # A single row has step 0, not n_in - 1; without antialias its step is never read.
        m = last.clamp(max=1) * (n_in - 1) if rule.antialias else float(n_in - 1)
    elif rule.offset:
        shifted = size + offset
    o = _half(rule)
    reach = 0 if rule.antialias else _REACH
    columns = torch.arange(-reach, n_in + reach, dtype=torch.float32) + o
    rows = torch.arange(n_out, dtype=torch.float32).unsqueeze(1)
    rows = rows + o if o else rows
    x = columns * n - rows * m  # [n_out, n_in (+ 4)]
    if shifted is not n:
        x = x + columns * offset  # apart, so that the large part stays exact
    divisor = torch.maximum(shifted, torch.as_tensor(m)) if rule.antialias else shifted
    x = (x / divisor).abs()
    q = F.relu(1 - x)
    weights = q if rule.interpolation == "bilinear" else _cubic(F.relu(2 - x), q, _cubic_a(rule))
    if rule.antialias:
        return weights / weights.sum(dim=1, keepdim=True)
    return weights @ torch.from_numpy(edge_matrix(n_in)).float()


def resample_grid(table: Tensor, size: tuple[int, int], rule: ResampleRule) -> Tensor:
    """A table on another grid, for constants.

    Args:
        table: [h, w, D], always the original one: resampling does not come back.
        size: rows and columns of the new grid.
        rule: how the model's family does it.

    Returns:
        [h', w', D] in the dtype of ``table``, computed in float64. ``table`` itself, bit for bit,
        when ``size`` is its own.
    """
    if tuple(size) == tuple(table.shape[:2]):
        return table
    w_h, w_w = (
        torch.from_numpy(axis_matrix(n_in, n_out, rule)).to(table.device)
        for n_in, n_out in zip(table.shape[:2], size, strict=True)
    )
    return torch.einsum("ij,jkd,lk->ild", w_h, table.double(), w_w).to(table.dtype)


def resample_grid_in_graph(table: Tensor, h: int, w: int, rule: ResampleRule) -> Tensor:
    """A table on another grid, with two MatMuls and no Resize (plain rules: two tiny ones more).

    Args:
        table: [h0, w0, D].
        h: rows, may be a ``torch.SymInt``.
        w: columns, may be a ``torch.SymInt``.
        rule: how the model's family does it.

    Returns:
        [h, w, D]; exactly ``table`` at its own size.
    """
    h0, w0, dim = table.shape
    size_h, size_w = (torch.scalar_tensor(n, dtype=torch.float32) for n in (h, w))
    offset_h: float | Tensor = 0.0
    offset_w: float | Tensor = 0.0
    if _copies_equal_axes(rule):
        offset_h, offset_w = _away(size_h, h0) * rule.offset, _away(size_w, w0) * rule.offset
    elif rule.offset:
        # Meta's code returns the table untouched at the native grid. Both matrices are the
        # identity there without the offset, so the offset is switched instead of the result.
        offset_h = offset_w = torch.maximum(_away(size_h, h0), _away(size_w, w0)) * rule.offset
    w_h = _axis_matrix_in_graph(h0, h, size_h, rule, offset_h).to(table.dtype)
    w_w = _axis_matrix_in_graph(w0, w, size_w, rule, offset_w).to(table.dtype)
    rows = (w_h @ table.reshape(h0, w0 * dim)).reshape(-1, w0, dim)  # [h, w0, D]
    return torch.matmul(w_w, rows)  # [h, w, D]


def resample_rows(table: Tensor, n_out: int, rule: ResampleRule) -> Tensor:
    """One axis of :func:`resample_grid`: [n, D] -> [n_out, D]."""
    if n_out == table.shape[0]:
        return table
    weights = torch.from_numpy(axis_matrix(table.shape[0], n_out, rule)).to(table.device)
    return (weights @ table.double()).to(table.dtype)


def resample_rows_in_graph(table: Tensor, n_out: int, rule: ResampleRule) -> Tensor:
    """One axis of :func:`resample_grid_in_graph`: [n, D] -> [n_out, D], one MatMul."""
    n_in = table.shape[0]
    size = torch.scalar_tensor(n_out, dtype=torch.float32)
    offset = _away(size, n_in) * rule.offset if rule.offset else 0.0
    return _axis_matrix_in_graph(n_in, n_out, size, rule, offset).to(table.dtype) @ table


def interpolate_grid(table: Tensor, size: tuple[int, int], rule: ResampleRule) -> Tensor:
    """What ``torch.nn.functional.interpolate`` makes of a table; independent of the matrices.

    Args:
        table: [h, w, D].
        size: rows and columns of the new grid.
        rule: how the model's family does it.

    Returns:
        [h', w', D], computed in the dtype of ``table``; ``table`` itself at its own size.
    """
    h_out, w_out = int(size[0]), int(size[1])
    h, w, _ = table.shape
    if (h_out, w_out) == (h, w):
        return table
    if rule.antialias and w_out == 1:
        # torch 2.13 and 2.14 misread antialiased tensors whose last dimension is 1 before and
        # after a pass (rows are the second pass). The transposed problem is the same and right;
        # down to one cell, rows go first and alone.
        if h_out == 1:
            table = _interpolate(table, (1, w), rule, keep_columns=True)
        return _interpolate(table.transpose(0, 1), (1, h_out), rule).transpose(0, 1)
    return _interpolate(table, (h_out, w_out), rule)


def _interpolate(
    table: Tensor, size: tuple[int, int], rule: ResampleRule, *, keep_columns: bool = False
) -> Tensor:
    """``F.interpolate`` on [h, w, D], by size or, under an offset, by scale factors."""
    (h, w), picture = table.shape[:2], table.permute(2, 0, 1).unsqueeze(0).contiguous()
    scale: tuple[float, float] | None = None
    if rule.offset:
        scale = (
            (size[0] + rule.offset) / h,
            1.0 if keep_columns else (size[1] + rule.offset) / w,
        )
    resized = F.interpolate(
        picture,
        size=None if scale else size,
        scale_factor=scale,
        mode=rule.interpolation,
        align_corners=rule.align_corners,
        antialias=rule.antialias,
    )
    if resized.shape[-2:] != size:
        raise SizeError(
            f"scale factors {scale} made a grid of {tuple(resized.shape[-2:])}, not {size}",
            hint="Use a rule without an offset at this size.",
        )
    return resized[0].permute(1, 2, 0)


def interpolate_rows(table: Tensor, n_out: int, rule: ResampleRule) -> Tensor:
    """One axis of :func:`interpolate_grid`: [n, D] -> [n_out, D]."""
    return interpolate_grid(table.unsqueeze(1), (n_out, 1), rule).squeeze(1)
