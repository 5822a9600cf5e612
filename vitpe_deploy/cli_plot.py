"""The ``plot`` command: positions of a model or a file as pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from vitpe_deploy import cli_options as o
from vitpe_deploy.cli_boundary import Outcome, stdout_for_results
from vitpe_deploy.console import Console
from vitpe_deploy.errors import UsageError

PICTURE = "Picture"

Subject: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="MODEL_OR_FILE", help="A MODEL as in vitpe-export, or the path of an .onnx file."
    ),
]
Kind: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--kind",
        metavar="NAME",
        help="similarity (a map per position), matrix (all against all), bias, frequencies "
        "(default: what the encoding has).",
        rich_help_panel=PICTURE,
    ),
]
Query: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--query",
        metavar="ROW,COL",
        help="Patch whose bias is drawn, counted from 0 at the native size (default: the middle).",
        rich_help_panel=PICTURE,
    ),
]
Layer: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--layer",
        metavar="N",
        help="Layer of a bias or rotation (default: 0).",
        rich_help_panel=PICTURE,
    ),
]
Head: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--head",
        metavar="N",
        help="Head of a bias or rotation (default: all that differ).",
        rich_help_panel=PICTURE,
    ),
]
Formats: TypeAlias = Annotated[
    list[str],
    typer.Option(
        "--format",
        metavar="NAMES",
        help="svg, png. Example: --format svg,png",
        rich_help_panel=PICTURE,
    ),
]
Verbose: TypeAlias = Annotated[
    int,
    typer.Option(
        "-v",
        "--verbose",
        metavar="",
        help="-vv shows tracebacks.",
        count=True,
        show_default=False,
        rich_help_panel=o.GENERAL,
    ),
]
Sizes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--res",
        metavar="N|HxW",
        help="Pixels, height first: also draw the positions after resampling to this size; "
        "repeatable. Example: --res 384x512",
        rich_help_panel=o.SIZE,
    ),
]


def plot_command(
    model: Subject = "vit_small_patch16_224",
    kind: Kind = None,
    query: Query = None,
    layer: Layer = None,
    head: Head = None,
    formats: Formats = ["svg"],  # noqa: B006  typer reads the default, nothing changes it
    res: Sizes = None,
    pe: o.Pe = None,
    weights: o.Weights = None,
    model_kwarg: o.ModelKwarg = None,
    output: o.OutputDir = Path("out"),
    force: o.Force = False,
    seed: o.Seed = 0,
    as_json: o.Json = False,
    verbose: Verbose = 0,
    quiet: o.Quiet = False,
    version: o.Version = False,
) -> Outcome:
    """Draw positions: how alike they are, what they add to attention, how fast they turn.

    Example: vitpe-plot vit_small_patch16_224 --pe sincos-2d --res 384
    """
    del version
    level = o.verbosity(verbose, quiet)
    from vitpe_deploy.plot.drawing import check_format, draw, require_matplotlib

    wanted = [check_format(word) for word in o.words(formats, "--format")]
    patch = None if query is None else _patch(query)
    require_matplotlib()
    from vitpe_deploy.files import refuse_existing
    from vitpe_deploy.plot.prepare import positions

    with Console(level) as console, stdout_for_results():
        seen = positions(
            model,
            kind=kind,
            resolutions=o.words(res, "--res"),
            encoding=pe,
            weights=weights,
            model_kwargs=o.pairs(model_kwarg, "--model-kwarg"),
            seed=seed,
            query=patch,
            layer=layer,
            head=head,
        )
        console.note(
            f"vitpe-plot  {seen.model}  {seen.encoding or 'encoding not named'}  {seen.kind}"
        )
        for panel in seen.panels:
            console.note(f"  {panel.label}")
        paths = [output / f"{seen.stem}.{ending}" for ending in dict.fromkeys(wanted)]
        refuse_existing(paths, force=force)
        for path in paths:
            draw(seen, path, force=force)
    if as_json:
        return Outcome(_json(seen.as_document(paths)))
    return Outcome("\n".join(f"{path}  {path.stat().st_size / 1e3:.0f} kB" for path in paths))


def _json(document: dict[str, Any]) -> str:
    """One panel's numbers per line: indented, a matrix would be one number per line."""
    panels = document["panels"]
    text = json.dumps({**document, "panels": ["@"] * len(panels)}, indent=2)
    for panel in panels:
        text = text.replace('"@"', json.dumps(panel), 1)
    return text


def _patch(text: str) -> tuple[int, int]:
    """``"3,4"`` -> (3, 4).

    Raises:
        UsageError: anything else.
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(part.isdigit() and len(part) < 7 for part in parts):
        raise UsageError(
            f"cannot read --query {text!r}",
            hint="Give ROW,COL counted from 0, for example --query 3,4.",
        )
    return int(parts[0]), int(parts[1])
