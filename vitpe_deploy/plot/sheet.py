"""A sheet laid out in pixels, and the marks that every picture is made of.

Every cell of a map is a whole number of pixels, so that no cell is wider than its neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vitpe_deploy.plot.similarity import Array
from vitpe_deploy.plot.values import PositionPlot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

DPI = 200
INK = "#777777"
"""4.5:1 on white and 4.2:1 on a near-black page."""

_BAR = 24


class Sheet:
    """A figure laid out in pixels from the top left corner."""

    def __init__(self, width: int, height: int) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.width, self.height = width, height
        self.figure: Figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
        FigureCanvasAgg(self.figure)

    def axes(self, x: int, y: int, width: int, height: int) -> Axes:
        """Axes whose corner is (x, y)."""
        box = (
            x / self.width,
            1 - (y + height) / self.height,
            width / self.width,
            height / self.height,
        )
        return self.figure.add_axes(box)

    def title(self, plot: PositionPlot, what: str) -> None:
        """Model and encoding, and what is shown."""
        lines = ((title_of(plot), 26, 10.0, "bold"), (what, 66, 8.0, "normal"))
        for text, y, size, weight in lines:
            self.figure.text(
                24 / self.width, 1 - y / self.height, text, va="center", ha="left",
                fontsize=size, fontweight=weight,
            )  # fmt: skip

    def bar(self, x: int, y: int, height: int, image: AxesImage, label: str) -> None:
        """A colour bar."""
        bar = self.figure.colorbar(image, cax=self.axes(x, y, _BAR, height))
        bar.set_label(label)
        bar.outline.set_linewidth(0.5)


def show(axes: Axes, picture: Array, colours: str, low: float, high: float) -> AxesImage:
    """Cells as they are: not smoothed, and empty where there is no number."""
    image = axes.imshow(
        np.ma.masked_invalid(picture), cmap=colours, vmin=low, vmax=high,
        interpolation="none", aspect="auto",
    )  # fmt: skip
    for spine in axes.spines.values():
        spine.set_visible(False)
    return image


def pixels(picture: Array, wanted: int) -> tuple[int, int]:
    """Width and height with a whole number of pixels per cell, the longer side about ``wanted``."""
    rows, columns = picture.shape
    scale = math.ceil(0.8 * wanted / max(rows, columns))
    return columns * scale, rows * scale


def mark(axes: Axes, row: int, column: int, cell: float) -> None:
    """A ring around one cell, white on black so that it shows on every colour."""
    for colour, width in (("black", 1.6), ("white", 0.8)):
        axes.plot(
            column, row, "o", markersize=max(3.0, 0.6 * cell * 72 / DPI),
            markerfacecolor="none", markeredgecolor=colour, markeredgewidth=width,
        )  # fmt: skip


def thinned(count: int, most: int) -> Sequence[int]:
    """At most ``most`` of the numbers 0 .. count - 1, a round step apart."""
    least = count / most
    step = next(d * 10**e for e in range(9) for d in (1, 2, 5) if d * 10**e >= least)
    return range(0, count, step)


def title_of(plot: PositionPlot) -> str:
    """``vit_tiny_patch16_224: sincos-2d positions``."""
    if plot.encoding is None:
        return f"{plot.model}: positions"
    return f"{plot.model.removesuffix(f'+{plot.encoding}')}: {plot.encoding} positions"


def least_width(plot: PositionPlot, what: str) -> int:
    """Wide enough for the title lines."""
    return 48 + max(17 * len(title_of(plot)), 12 * len(what))
