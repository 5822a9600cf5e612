"""Inline SVG as text. Colours are classes of the page's style sheet, so that dark mode is its work.

Figures are 360 units wide, the width of a phone: there a unit is a pixel, and on larger screens
text grows with the figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from vitpe_deploy.report.scale import Scale, short

WIDTH = 360.0
SERIES = 8
"""Colours of the style sheet, ``s0`` to ``s7``; figures with more series use them again."""

Point = tuple[float, float]


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    """A line of text; long ones are cut so that they stay in the figure."""
    room = WIDTH - x if anchor == "start" else x if anchor == "end" else 2 * min(x, WIDTH - x)
    letters = int(room / 5.6)
    shown = content if len(content) <= letters else f"{content[: max(1, letters - 1)]}…"
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">'
        f"{escape(shown)}</text>"
    )


def line(a: Point, b: Point, kind: str) -> str:
    """From a to b."""
    return f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" class="{kind}"/>'


def rectangle(x: float, y: float, width: float, height: float, kind: str) -> str:
    """Filled, from its upper left corner."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" '
        f'class="{kind}"/>'
    )


def polyline(points: Sequence[Point], kind: str) -> str:
    """An open line through points."""
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{places}" class="{kind}"/>'


def area(points: Sequence[Point], floor: float, kind: str) -> str:
    """What lies between a line and a floor."""
    closed = [(points[0][0], floor), *points, (points[-1][0], floor)]
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in closed)
    return f'<polygon points="{places}" class="{kind}"/>'


def mark(shape: int, at: Point, kind: str, title: str = "", size: float = 4.0) -> str:
    """A point: circle, square, triangle or diamond by number, so that colour is not alone."""
    x, y = at
    inner = "" if not title else f"<title>{escape(title)}</title>"
    if shape % 4 == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}" class="{kind}">{inner}</circle>'
    corners = {
        1: ((-1, -1), (1, -1), (1, 1), (-1, 1)),
        2: ((0, -1.2), (1.2, 1), (-1.2, 1)),
        3: ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    }[shape % 4]
    places = " ".join(f"{x + size * a:.1f},{y + size * b:.1f}" for a, b in corners)
    return f'<polygon points="{places}" class="{kind}">{inner}</polygon>'


def cross(at: Point, kind: str = "wrong", size: float = 5.0) -> str:
    """What a wrong result is struck out with."""
    x, y = at
    return line((x - size, y - size), (x + size, y + size), kind) + line(
        (x - size, y + size), (x + size, y - size), kind
    )


def figure(height: float, title: str, parts: Sequence[str]) -> str:
    """The whole drawing; ``title`` is what a screen reader says."""
    return (
        f'<svg viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )


@dataclass(frozen=True, slots=True)
class Axes:
    """A frame with its scales: ``y`` grows upwards. ``x_ticks`` stand in for round numbers."""

    x: Scale
    y: Scale
    x_title: str
    y_title: str
    x_ticks: tuple[float, ...] = ()

    def drawn(self) -> list[str]:
        """Grid lines, numbers and titles."""
        left, right = self.x.start, self.x.end
        bottom, top = self.y.start, self.y.end
        parts = []
        for value in self.x_ticks or self.x.ticks():
            at = self.x(value)
            parts.append(line((at, bottom), (at, top), "grid"))
            parts.append(text(at, bottom + 13, short(value), "tick", "middle"))
        for value in self.y.ticks():
            at = self.y(value)
            parts.append(line((left, at), (right, at), "grid"))
            parts.append(text(left - 4, at + 3.5, short(value), "tick", "end"))
        parts.append(text((left + right) / 2, bottom + 28, self.x_title, "title", "middle"))
        parts.append(text(4, top - 8, self.y_title, "title"))
        return parts

    def at(self, x: float, y: float) -> Point:
        """The place of a pair of values."""
        return self.x(x), self.y(y)


def legend(labels: Sequence[str], top: float) -> tuple[list[str], float]:
    """One line per series with its mark. Gives the parts and the height that they take."""
    parts = []
    for number, label in enumerate(labels):
        y = top + 16 * number
        kind = f"s{number % SERIES}"
        parts.append(line((8, y), (28, y), f"stroke {kind}"))
        parts.append(mark(number, (18, y), f"dot {kind}"))
        parts.append(text(34, y + 3.5, label, "label"))
    return parts, 16.0 * len(labels)
