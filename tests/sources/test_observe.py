"""The watcher: which interpolations are position tables, and what rule they ask for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack

from vitpe_deploy.encodings.resample import ResampleRule, interpolate_grid, resample_grid
from vitpe_deploy.errors import UnsupportedError
from vitpe_deploy.request import ResampleOverride
from vitpe_deploy.sources.observe import (
    TableResample,
    TableWatcher,
    torch_override,
    torch_unchanged,
)

TABLE = torch.randn(1, 4, 6, 6, generator=torch.Generator().manual_seed(0))
PIXELS = torch.randn(1, 3, 96, 96, generator=torch.Generator().manual_seed(1))


def _watch(run: Callable[[Tensor], Any], pixels: Tensor = PIXELS) -> list[TableResample]:
    """The table interpolations of ``run``."""
    calls: list[TableResample] = []

    def note(call: TableResample) -> Tensor:
        calls.append(call)
        return torch_unchanged(call)

    with TableWatcher(pixels, note):
        run(pixels)
    return calls


def _one(**asked: Any) -> TableResample:
    (call,) = _watch(lambda _: F.interpolate(TABLE, **asked))
    return call


def test_sizes_as_int_and_tuple() -> None:
    assert _one(size=9, mode="bicubic").size == (9, 9)
    call = _one(size=(4, 9), mode="bilinear", antialias=True)
    assert call.size == (4, 9)
    assert call.old_grid == (6, 6)
    assert call.rule == ResampleRule("bilinear", antialias=True)
    assert _one(size=[4, 9], mode="bicubic", align_corners=True).rule == ResampleRule(
        "bicubic", antialias=False, align_corners=True
    )


def test_arguments_by_keyword_and_by_place() -> None:
    (by_keyword,) = _watch(lambda _: F.interpolate(mode="bicubic", size=(4, 9), input=TABLE))
    (by_place,) = _watch(lambda _: F.interpolate(TABLE, (4, 9), None, "bicubic"))
    assert by_keyword.size == by_place.size == (4, 9)
    assert by_keyword.rule == by_place.rule == ResampleRule("bicubic", antialias=False)
    # A feature map handed over by keyword is a feature map all the same.
    assert _watch(lambda x: F.interpolate(input=x * 2, size=9, mode="bicubic")) == []


def test_dino_offset_is_read_off_the_scale_factor() -> None:
    """Meta's code asks for (n + 0.1) / sqrt(N): the size is n, the samples are moved."""
    grid = (9, 5)
    scale = tuple((n + 0.1) / math.sqrt(36) for n in grid)
    call = _one(scale_factor=scale, mode="bicubic")
    assert call.size == grid
    assert call.rule == ResampleRule("bicubic", antialias=False, offset=0.1)
    ours = resample_grid(call.table[0].permute(1, 2, 0), call.size, call.rule)
    theirs = F.interpolate(TABLE, scale_factor=scale, mode="bicubic")[0].permute(1, 2, 0)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    by_size = F.interpolate(TABLE, size=grid, mode="bicubic")[0].permute(1, 2, 0)
    assert (by_size - theirs).abs().max() > 1e-2


def test_scale_factor_recomputed_or_whole_has_no_offset() -> None:
    asked = {"scale_factor": (9 + 0.1) / 6, "mode": "bicubic"}
    assert _one(**asked, recompute_scale_factor=True).rule.offset == 0
    assert _one(**asked, recompute_scale_factor=True).size == (9, 9)
    assert _one(scale_factor=1.5, mode="bicubic").rule.offset == 0


@pytest.mark.parametrize(("base", "rows"), [(14, 61), (14, 115), (14, 122), (37, 39), (37, 43),
                                            (37, 78), (37, 86)])  # fmt: skip
def test_sizes_are_floored_as_torch_floors_them(base: int, rows: int) -> None:
    """C03: n / N * N may be one row less than n, in torch itself."""
    table = torch.randn(1, 1, base, base, generator=torch.Generator().manual_seed(0))
    factor = rows / base
    (call,) = _watch(lambda _: F.interpolate(table, scale_factor=factor, mode="bicubic"))
    made = F.interpolate(table, scale_factor=factor, mode="bicubic")[0].permute(1, 2, 0)
    assert call.size == tuple(made.shape[:2])
    ours = resample_grid(table[0].permute(1, 2, 0), call.size, call.rule)
    torch.testing.assert_close(ours, made, rtol=0, atol=1e-4)
    (exact,) = _watch(lambda _: F.interpolate(table, size=rows, mode="bicubic"))
    assert exact.size == (rows, rows)


def test_factors_that_miss_differently_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"9\.1x8 rows and columns"):
        _one(scale_factor=(9.1 / 6, 8 / 6), mode="bicubic")


@pytest.mark.parametrize(
    "run",
    [
        lambda x: F.interpolate(x, size=9, mode="bicubic"),
        lambda x: F.interpolate(TABLE + x.mean(), size=9, mode="bicubic"),
        lambda x: F.interpolate(torch.cat([TABLE, x[:, :1, :6, :6]], 1), size=9, mode="bicubic"),
        lambda x: F.interpolate(torch.stack((TABLE[0], TABLE[0] * x.sum())), size=9,
                                mode="bicubic"),
        lambda x: F.interpolate(x.split(1, dim=1)[2], size=9, mode="bilinear"),
        lambda x: F.interpolate(x.mT, size=9, mode="bilinear"),
        lambda x: F.interpolate(F.conv2d(x, torch.ones(2, 3, 16, 16), stride=16), size=9,
                                mode="bilinear"),
    ],
)  # fmt: skip
def test_what_depends_on_the_picture_is_no_table(run: Callable[[Tensor], Any]) -> None:
    assert _watch(run) == []


def test_writing_the_picture_into_a_tensor_marks_it() -> None:
    def assigned(x: Tensor) -> None:
        canvas = torch.zeros(1, 3, 6, 6)
        canvas[:, :, :3] = x[:, :, :3, :6]
        F.interpolate(canvas, size=9, mode="bicubic")

    def added(x: Tensor) -> None:
        canvas = torch.zeros(1, 3, 6, 6)
        canvas.add_(x[:, :, :6, :6])
        F.interpolate(canvas, size=9, mode="bicubic")

    assert _watch(assigned) == []
    assert _watch(added) == []


def test_tables_and_feature_maps_of_one_model_are_told_apart() -> None:
    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions = torch.nn.Parameter(torch.randn(1, 37, 4))
            self.patch = torch.nn.Conv2d(3, 4, 16, 16)

        def forward(self, x: Tensor) -> Tensor:
            x = self.patch(x)
            table = self.positions[:, 1:].reshape(1, 6, 6, 4).permute(0, 3, 1, 2)
            x = x + F.interpolate(table, size=x.shape[-2:], mode="bicubic", antialias=True)
            return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)

    model = Both()
    calls = _watch(model, torch.randn(1, 3, 64, 144))
    assert [(c.size, str(c.rule)) for c in calls] == [((4, 9), "bicubic antialias")]
    right = model(PIXELS[..., :64, :])
    with TableWatcher(PIXELS[..., :64, :].clone(), torch_unchanged):
        assert torch.equal(model(PIXELS[..., :64, :]), right)


@pytest.mark.parametrize(
    "run",
    [
        lambda x: F.interpolate(TABLE, size=9, mode="nearest"),
        lambda x: F.interpolate(TABLE, size=9, mode="area"),
        lambda x: F.interpolate(TABLE[0], size=9, mode="linear"),
        lambda x: F.interpolate(TABLE[None], size=(9, 9, 9), mode="trilinear"),
        lambda x: F.interpolate(TABLE.expand(2, 4, 6, 6), size=9, mode="bicubic"),
    ],
)
def test_other_interpolations_run_as_they_are(run: Callable[[Tensor], Any]) -> None:
    assert _watch(run) == []
    with TableWatcher(PIXELS, lambda _: pytest.fail("not a table")):
        assert torch.equal(run(PIXELS), run(PIXELS))


@pytest.mark.parametrize("channels_last", [True, False])
def test_the_answer_is_laid_out_like_torchs_own(channels_last: bool) -> None:
    """Libraries view the result; on another layout of the same values that raises."""
    table = torch.randn(1, 6, 6, 4).permute(0, 3, 1, 2) if channels_last else TABLE.clone()
    right = F.interpolate(table, size=(4, 9), mode="bicubic")

    def shuffled(call: TableResample) -> Tensor:
        grid = resample_grid(call.table[0].permute(1, 2, 0), call.size, call.rule)
        return grid.transpose(0, 1).contiguous().permute(2, 1, 0).unsqueeze(0)

    with TableWatcher(PIXELS, shuffled):
        found = F.interpolate(table, size=(4, 9), mode="bicubic")
    assert found.stride() == right.stride()
    torch.testing.assert_close(found, right, rtol=0, atol=1e-5)


def test_single_row_tables_view_like_torchs_own() -> None:
    for table in (torch.randn(1, 1, 1, 4).permute(0, 3, 1, 2), torch.randn(1, 4, 1, 1)):
        right = F.interpolate(table, size=(2, 3), mode="bicubic")
        with TableWatcher(PIXELS, lambda c: torch_unchanged(c).clone().contiguous()):
            assert F.interpolate(table, size=(2, 3), mode="bicubic").stride() == right.stride()


def test_nothing_stays_on_after_an_exception() -> None:
    before = len(_get_current_function_mode_stack())

    def fail(call: TableResample) -> Tensor:
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"), TableWatcher(PIXELS, fail):
        F.interpolate(TABLE, size=9, mode="bicubic")
    assert len(_get_current_function_mode_stack()) == before
    assert F.interpolate(TABLE, size=9, mode="bicubic").shape == (1, 4, 9, 9)


@settings(max_examples=40, deadline=None)
@given(
    grid=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    own=st.sampled_from(["bicubic", "bilinear"]),
    interpolation=st.sampled_from([None, "bicubic", "bilinear"]),
    antialias=st.sampled_from([None, True, False]),
    align_corners=st.sampled_from([None, True, False]),
)
def test_override_is_torchs_interpolation_with_the_users_word(
    grid: tuple[int, int],
    own: Any,
    interpolation: str | None,
    antialias: bool | None,
    align_corners: bool | None,
) -> None:
    override = ResampleOverride(interpolation, antialias, align_corners)
    rule = ResampleRule(
        interpolation or own,
        antialias=bool(antialias),
        align_corners=bool(align_corners),
    )  # type: ignore[arg-type]
    with TableWatcher(PIXELS, lambda call: torch_override(call, override)):
        found = F.interpolate(TABLE, size=grid, mode=own)
    right = interpolate_grid(TABLE[0].permute(1, 2, 0), grid, rule).permute(2, 0, 1)[None]
    torch.testing.assert_close(found, right, rtol=0, atol=1e-6)
    if grid[1] > 1:
        asked = {"mode": rule.interpolation, "antialias": rule.antialias}
        direct = F.interpolate(TABLE, size=grid, align_corners=rule.align_corners, **asked)
        if grid != (6, 6):
            torch.testing.assert_close(found, direct, rtol=0, atol=1e-6)


def test_override_keeps_the_offset() -> None:
    """The user's word is on the kernel; where the samples lie is the model's."""
    scale = (9 + 0.1) / 6
    with TableWatcher(PIXELS, lambda call: torch_override(call, ResampleOverride(antialias=True))):
        found = F.interpolate(TABLE, scale_factor=scale, mode="bicubic")
    right = F.interpolate(TABLE, scale_factor=scale, mode="bicubic", antialias=True)
    torch.testing.assert_close(found, right, rtol=0, atol=1e-6)
