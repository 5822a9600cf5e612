"""The flags of ``vitpe-bench``; imported by ``--help``, so nothing heavy may be imported here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from vitpe_deploy import cli_options as o

WHAT = "What is timed"
HOW_LONG = "How long"
JUDGE = "Compared with what"


def _flag(panel: str, metavar: str, *names: str, text: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel)


Artifacts: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="WHAT...",
        help="Exported .onnx or .xml files or folders of them, models to export first, or one "
        "jobs file (.toml).",
    ),
]
Engines: TypeAlias = Annotated[
    list[str] | None,
    _flag(WHAT, "NAMES", "--runtime", text="ort, openvino, torch (default: all that can run it)."),
]
BenchDevice: TypeAlias = Annotated[
    str,
    _flag(WHAT, "NAME", "--device", text="In the engine's own words: CPU, GPU, GPU.1, NPU, AUTO."),
]
Sizes: TypeAlias = Annotated[
    list[str] | None,
    _flag(
        WHAT,
        "SIZES",
        "--res",
        text="Of dynamic files and models, height first: 224,224x384.",
    ),
]
Batches: TypeAlias = Annotated[
    list[str] | None, _flag(WHAT, "N,N", "--batch", text="Images of one request: 1,4.")
]
ThreadCounts: TypeAlias = Annotated[
    list[str] | None,
    _flag(WHAT, "N,N", "--threads", text="Of the engine (default: CPUs this process may use)."),
]
Precisions: TypeAlias = Annotated[
    list[str] | None,
    _flag(
        WHAT,
        "NAMES",
        "--precision",
        text="OpenVINO is asked for f32, f16, bf16, and the report says what it executes; models "
        "are exported as fp32, fp16, int8, int8-weights.",
    ),
]
Modes: TypeAlias = Annotated[
    list[str] | None,
    _flag(WHAT, "NAMES", "--mode", text="latency, throughput (default: latency)."),
]
BenchImages: TypeAlias = Annotated[
    Path | None,
    _flag(WHAT, "DIR", "--images", text="Pictures to compare on, besides noise and a test card."),
]
BenchLabels: TypeAlias = Annotated[
    Path | None,
    _flag(WHAT, "FILE", "--labels", text="Right classes of --images, lines FILE,LABEL: top-1."),
]
BenchLayers: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--layers",
        metavar="",
        help="Also compare with PyTorch after each block.",
        rich_help_panel=WHAT,
    ),
]
BenchPe: TypeAlias = Annotated[
    list[str] | None,
    _flag(WHAT, "NAMES", "--pe", text="Encodings of reference models: learned-1d,rope-2d."),
]
BenchModelKwarg: TypeAlias = Annotated[
    list[str] | None,
    _flag(WHAT, "KEY=VALUE", "--model-kwarg", text="Option of a model's constructor; repeatable."),
]
BenchCalibration: TypeAlias = Annotated[
    str | None,
    _flag(WHAT, "DATA", "--calibration", text="For int8 of models: a folder, an .npz, or random."),
]
Warmup: TypeAlias = Annotated[
    int, _flag(HOW_LONG, "N", "--warmup", text="Runs at least; more until latency is stable.")
]
Iters: TypeAlias = Annotated[
    int | None,
    _flag(HOW_LONG, "N", "--iters", text="Samples per row of latency, in place of --min-time."),
]
MinTime: TypeAlias = Annotated[
    str, _flag(HOW_LONG, "TIME", "--min-time", text="Timed inference per row: 3s, 500ms.")
]
Rounds: TypeAlias = Annotated[
    int,
    _flag(HOW_LONG, "N", "--rounds", text="Rounds at least; up to six times while unsure."),
]
Starts: TypeAlias = Annotated[
    int, _flag(HOW_LONG, "N", "--starts", text="Processes of each row, started one after another.")
]
Baseline: TypeAlias = Annotated[
    Path | None, _flag(JUDGE, "FILE", "--baseline", text="An earlier --json to judge rows by.")
]
MaxRegression: TypeAlias = Annotated[
    str, _flag(JUDGE, "SHARE", "--max-regression", text="Slower by more is exit 4.")
]
CrossHost: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--cross-host",
        metavar="",
        help="Accept a baseline of another machine.",
        rich_help_panel=JUDGE,
    ),
]
FewerRows: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--fewer-rows",
        metavar="",
        help="Accept a baseline with rows that are not measured now.",
        rich_help_panel=JUDGE,
    ),
]
Doctor: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--doctor",
        metavar="",
        help="Print what this machine has and what is missing; time nothing.",
        rich_help_panel=o.GENERAL,
    ),
]
BenchOutput: TypeAlias = Annotated[
    Path | None,
    _flag(
        o.GENERAL,
        "DIR",
        "-o",
        "--output",
        text="Keep finished rows, to go on after an interruption; also bench.json and bench.md.",
    ),
]
Html: TypeAlias = Annotated[
    Path | None,
    _flag(o.GENERAL, "FILE", "--html", text="Also write the report as one HTML file."),
]
From: TypeAlias = Annotated[
    Path | None,
    _flag(o.GENERAL, "FILE", "--from", text="Show an earlier --json; time nothing."),
]
BenchDryRun: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        metavar="",
        help="Print the rows and about how long they take; time nothing.",
        rich_help_panel=o.GENERAL,
    ),
]
BenchForce: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--force",
        metavar="",
        help="Measure again what --output has, and replace --html.",
        rich_help_panel=o.GENERAL,
    ),
]
