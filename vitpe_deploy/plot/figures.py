"""One figure for each kind of picture.

Letters used in shapes: h and w patch grid, M heads, P channel pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vitpe_deploy.plot.sheet import INK, Sheet, least_width, mark, pixels, show, thinned
from vitpe_deploy.plot.similarity import Array, mosaic
from vitpe_deploy.plot.values import Panel, PositionPlot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW, _COLUMN = "#3b8bc2", "#d98b00"

# In pixels.
_LEFT, _RIGHT, _TOP, _BOTTOM = 110, 190, 140, 95
_PANEL = 560
_HEAD = 230
_BETWEEN = 120
_BLOCKS, _BLOCK_HEAD = 100, 60
_WAVES, _CHART = 720, (600, 380)


def figure_of(plot: PositionPlot) -> Figure:
    """The figure of a plot, under whatever settings matplotlib has."""
    one_row = len(plot.panels) == 1 and plot.panels[0].grid[0] == 1
    if one_row and plot.kind in ("bias", "frequencies"):
        return _line_figure(plot)
    if plot.kind == "bias":
        return _bias_figure(plot)
    if plot.kind == "frequencies":
        return _frequency_figure(plot)
    return _similarity_figure(plot)


def _similarity_figure(plot: PositionPlot) -> Figure:
    """Panels side by side, one scale for all."""
    pictures = [mosaic(p.values) if plot.kind == "similarity" else p.values for p in plot.panels]
    sizes = [pixels(picture, _PANEL) for picture in pictures]
    widths, heights = [w for w, _ in sizes], [h for _, h in sizes]
    width = _LEFT + sum(widths) + _BETWEEN * (len(widths) - 1) + _RIGHT
    shown = "one map per position" if plot.kind == "similarity" else "every token with every token"
    what = f"{_capital(plot.meaning)}, {shown}{_of(plot)}"
    sheet = Sheet(max(width, least_width(plot, what)), _TOP + max(heights) + _BOTTOM)
    sheet.title(plot, what)
    low = min(_floor(picture) for picture in pictures)
    x = _LEFT
    for panel, picture, (wide, high) in zip(plot.panels, pictures, sizes, strict=True):
        axes = sheet.axes(x, _TOP, wide, high)
        image = show(axes, picture, "viridis", low, 1.0)
        axes.set_title(panel.label, pad=5)
        if plot.kind == "similarity":
            _patch_ticks(axes, panel)
        else:
            _token_ticks(axes, panel)
        x += wide + _BETWEEN
    sheet.bar(x - _BETWEEN + 30, _TOP, heights[-1], image, plot.meaning)
    return sheet.figure


def _bias_figure(plot: PositionPlot) -> Figure:
    """One map per head, at most six in a line; a block per panel, one scale for all."""
    count = len(plot.panels[0].values)
    columns = min(count, 6)
    lines = math.ceil(count / columns)
    sizes = [pixels(panel.values[0], _HEAD if count > 1 else _PANEL) for panel in plot.panels]
    step_x, step_y = max(w for w, _ in sizes) + 64, max(h for _, h in sizes) + 84
    labels = [
        f"{panel.label}; query row {row}, column {column}"
        for panel in plot.panels
        for row, column in [panel.query or (0, 0)]
    ]
    bar_x = _LEFT + max(columns * step_x - 64, *(12 * len(label) for label in labels)) + 30
    width = bar_x + _RIGHT - 30
    block = _BLOCK_HEAD + lines * step_y
    what = f"{_capital(plot.meaning)}; one query patch (ring){_of(plot)}"
    height = _BLOCKS + len(plot.panels) * block + 30
    sheet = Sheet(max(width, least_width(plot, what)), height)
    sheet.title(plot, what)
    low, high = _range([panel.values for panel in plot.panels])
    for k, (panel, label, size) in enumerate(zip(plot.panels, labels, sizes, strict=True)):
        top = _BLOCKS + k * block
        row, column = panel.query or (0, 0)
        sheet.figure.text(
            _LEFT / sheet.width, 1 - (top + 8) / sheet.height,
            label, va="center", ha="left",
        )  # fmt: skip
        for i, values in enumerate(panel.values):
            line, place = divmod(i, columns)
            y = top + _BLOCK_HEAD + line * step_y
            axes = sheet.axes(_LEFT + place * step_x, y, *size)
            image = show(axes, values, "cividis", low, high)
            if plot.heads:
                axes.set_title(f"head {plot.heads[i]}", pad=3)
            mark(axes, row, column, size[0] / panel.grid[1])
            axes.set_xticks(thinned(panel.grid[1], 4))
            axes.set_yticks(thinned(panel.grid[0], 4))
            axes.tick_params(width=0.5, length=2)
            if place == 0:
                axes.set_ylabel("patch row")
            if i + columns >= count:
                axes.set_xlabel("patch column")
    top = _BLOCKS + _BLOCK_HEAD
    bottom = _BLOCKS + (len(plot.panels) - 1) * block + _BLOCK_HEAD
    bottom += (lines - 1) * step_y + sizes[-1][1]
    sheet.bar(bar_x, top, bottom - top, image, plot.meaning)
    return sheet.figure


def _frequency_figure(plot: PositionPlot) -> Figure:
    """For each panel a wave per channel pair, and how fast it turns along both axes."""
    pairs = plot.panels[0].values.shape[0]
    pictures = [mosaic(_tiled(panel.values)) for panel in plot.panels]
    sizes = [pixels(picture, _WAVES) for picture in pictures]
    left = _LEFT - 60
    chart_x = left + max(w for w, _ in sizes) + _RIGHT + 110
    what = f"{_capital(plot.meaning)} of each channel pair over the grid{_of(plot)}"
    width = max(chart_x + _CHART[0] + 30, least_width(plot, what))
    heights = [max(h, _CHART[1]) + 150 for _, h in sizes]
    sheet = Sheet(width, _TOP + sum(heights) - 45)
    sheet.title(plot, what)
    y = _TOP
    for panel, picture, size, step in zip(plot.panels, pictures, sizes, heights, strict=True):
        axes = sheet.axes(left, y, *size)
        image = show(axes, picture, "viridis", -1.0, 1.0)
        axes.set_title(panel.label, pad=5)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_xlabel(f"channel pairs 0 to {pairs - 1}, line by line")
        sheet.bar(left + size[0] + 30, y, size[1], image, plot.meaning)
        _step_chart(sheet.axes(chart_x, y, *_CHART), panel)
        y += step
    return sheet.figure


def _line_figure(plot: PositionPlot) -> Figure:
    """Words lie on a line: one map with a row per head or channel pair, a column per token."""
    (panel,) = plot.panels
    picture = panel.values[:, 0]
    rows, tokens = picture.shape
    biased = plot.kind == "bias"
    width, height = pixels(picture[:1], 900)[0], rows * (30 if biased else 14)
    what = f"{_capital(plot.meaning)} of each channel pair{_of(plot)}"
    if biased:
        what = f"{_capital(plot.meaning)}; one query token (ring){_of(plot)}"
    full = _LEFT + width + _RIGHT + (0 if biased else 110 + _CHART[0] + 30)
    below = height if biased else max(height, _CHART[1])
    sheet = Sheet(max(full, least_width(plot, what)), _TOP + below + _BOTTOM)
    sheet.title(plot, what)
    axes = sheet.axes(_LEFT, _TOP, width, height)
    low, high = _range([picture]) if biased else (-1.0, 1.0)
    image = show(axes, picture, "cividis" if biased else "viridis", low, high)
    axes.set_title(f"{tokens} tokens, {panel.note}", pad=5)
    axes.set_xticks(thinned(tokens, 10))
    axes.set_xlabel("token")
    axes.tick_params(width=0.5, length=2)
    sheet.bar(_LEFT + width + 30, _TOP, height, image, plot.meaning)
    if not biased:
        axes.set_yticks(thinned(rows, 8))
        axes.set_ylabel("channel pair")
        _step_chart(sheet.axes(_LEFT + width + _RIGHT + 110, _TOP, *_CHART), panel, "token")
        return sheet.figure
    heads = plot.heads or (0,)
    axes.set_yticks(range(rows), [str(head) for head in heads])
    axes.set_ylabel("head" if plot.heads else "all heads")
    for row in range(rows):
        mark(axes, row, (panel.query or (0, 0))[1], width / tokens)
    return sheet.figure


def _step_chart(axes: Axes, panel: Panel, step: str = "patch") -> None:
    """Radians per patch of each pair, on a logarithmic scale; what does not turn is left out."""
    steps = np.abs(panel.steps) if panel.steps is not None else np.zeros((0, 2))
    pairs = np.arange(len(steps))
    along = [(steps[:, 1], "^", _COLUMN, "to the next column")]
    if panel.grid[0] > 1:
        along.insert(0, (steps[:, 0], "o", _ROW, "to the next row"))
    for values, marker, colour, label in along:
        turns = values > 1e-6
        axes.plot(
            pairs[turns], values[turns], marker, color=colour, markersize=3.5, label=label,
            markeredgewidth=0,
        )  # fmt: skip
    axes.set_yscale("log")
    axes.set_xlim(-0.5, len(steps) - 0.5)
    axes.set_title(f"angle from {step} to {step} (at most half a turn)", pad=5)
    axes.set_xlabel("channel pair")
    axes.set_ylabel("radians")
    axes.grid(True, color=INK, alpha=0.25, linewidth=0.4)
    axes.tick_params(which="both", width=0.5, length=2)
    if panel.grid[0] == 1:
        return
    legend = axes.legend(frameon=False, fontsize=7, loc="lower left")
    for text in legend.get_texts():
        text.set_color(INK)


def _tiled(maps: Array) -> Array:
    """[P, h, w] -> [lines, columns, h, w], wider than high, the last line filled up with nothing.

    Full lines where that is possible: the halves of an axial encoding then start at a line.
    """
    count, h, w = maps.shape
    least = math.ceil(math.sqrt(count))
    columns = next((n for n in range(least, 2 * least + 1) if count % n == 0), least)
    lines = math.ceil(count / columns)
    tiles = np.full((lines * columns, h, w), np.nan)
    tiles[:count] = maps
    return tiles.reshape(lines, columns, h, w)


def _range(pictures: Sequence[Array]) -> tuple[float, float]:
    """Ends of a scale that all pictures share."""
    values = np.concatenate([picture.ravel() for picture in pictures])
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    return low, high if high > low else low + 1.0


def _patch_ticks(axes: Axes, panel: Panel) -> None:
    """A tick in the middle of a map, labelled with its row or column."""
    h, w = panel.grid
    for count, size, axis in ((h, h, axes.yaxis), (w, w, axes.xaxis)):
        shown = thinned(count, 8)
        axis.set_ticks([i * (size + 1) + (size - 1) / 2 for i in shown], [str(i) for i in shown])
    axes.tick_params(width=0.5, length=2)
    axes.set_xlabel("patch column")
    axes.set_ylabel("patch row")


def _token_ticks(axes: Axes, panel: Panel) -> None:
    shown = thinned(panel.values.shape[0], 8)
    axes.set_xticks(shown)
    axes.set_yticks(shown)
    axes.tick_params(width=0.5, length=2)
    prefix = panel.prefix_tokens
    more = f" ({prefix} prefix, then patches in raster order)" if prefix else ""
    axes.set_xlabel(f"token{more}")
    axes.set_ylabel("token")


def _floor(picture: Array) -> float:
    """The lower end of the scale: the smallest similarity, rounded down to a tenth."""
    finite = picture[np.isfinite(picture)]
    return min(math.floor(float(finite.min()) * 10) / 10, 0.9) if finite.size else -1.0


def _of(plot: PositionPlot) -> str:
    parts = [] if plot.layer is None else [f"layer {plot.layer}"]
    parts += [f"head {plot.heads[0]}"] if len(plot.heads) == 1 else []
    return f"; {', '.join(parts)}" if parts else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
