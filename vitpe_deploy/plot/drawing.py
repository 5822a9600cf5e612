"""Pictures of positions, as SVG or PNG.

Backgrounds are transparent and text is mid-grey, which reads on light and on dark pages alike; the
colours are those of viridis and cividis, which colour-blind people tell apart. Nothing of a user's
matplotlib settings, no date and no random name gets into a file: the same numbers give the same
bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitpe_deploy.errors import MissingExtraError, UsageError
from vitpe_deploy.files import StagedFiles, refuse_existing
from vitpe_deploy.plot.figures import figure_of
from vitpe_deploy.plot.sheet import DPI, INK
from vitpe_deploy.plot.values import PositionPlot

FORMATS = ("svg", "png")

_SETTINGS: dict[str, Any] = {
    "svg.hashsalt": "vitpe",
    "svg.fonttype": "none",
    "font.size": 8.0,
    "axes.titlesize": 8.0,
    "axes.labelsize": 8.0,
    "axes.linewidth": 0.5,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    **{f"{k}.color": INK for k in ("text", "xtick", "ytick")},
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
}


def draw(
    plot: PositionPlot, path: str | Path, *, image_format: str | None = None, force: bool = False
) -> Path:
    """Write a picture.

    Args:
        plot: what :func:`vitpe_deploy.plot.positions` gave.
        path: the file; its ending names the format when ``image_format`` does not.
        image_format: svg or png.
        force: replace an existing file.

    Returns:
        The path.

    Raises:
        MissingExtraError: matplotlib is not installed.
        UsageError: another format, or the file exists.
        ArtifactError: the folder cannot be written to.
    """
    path = Path(path)
    kind = image_format or path.suffix.lstrip(".").lower()
    check_format(kind)
    require_matplotlib()
    refuse_existing([path], force=force)
    with _own_settings():
        figure = figure_of(plot)
        with StagedFiles(path.parent) as staged:
            # What matplotlib writes about itself changes with its version and with the clock.
            facts = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
            figure.savefig(staged.path(path.name), format=kind, dpi=DPI, metadata=facts)
            staged.commit(replace=force)
    return path


def check_format(kind: str) -> str:
    """``kind`` if pictures can be written in it.

    Raises:
        UsageError: they cannot.
    """
    if kind not in FORMATS:
        raise UsageError(
            f"--format {kind!r} is not known", hint=f"Choose from: {', '.join(FORMATS)}."
        )
    return kind


def require_matplotlib() -> None:
    """Raise MissingExtraError unless matplotlib is there."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as problem:
        raise MissingExtraError("matplotlib", "report") from problem


@contextmanager
def _own_settings() -> Iterator[None]:
    """Inside, matplotlib's defaults and ours; the user's settings are back afterwards."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings: Any = matplotlib.rcParams
        settings.update(_SETTINGS)
        yield
