"""The ``bench`` command: artifacts timed in engines, with their agreement beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from vitpe_deploy import cli_options as o
from vitpe_deploy.cli_boundary import Outcome, stdout_for_results
from vitpe_deploy.console import Console
from vitpe_deploy.errors import ParityError, RegressionError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vitpe_deploy.bench.documents import BenchReport
    from vitpe_deploy.bench.plan import BenchOptions, Group

WHAT = "What is timed"
HOW_LONG = "How long"
JUDGE = "Compared with what"


def _flag(panel: str, metavar: str, *names: str, text: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel)


Artifacts: TypeAlias = Annotated[
    list[Path] | None,
    typer.Argument(metavar="ARTIFACT...", help="Exported .onnx or .xml files, or folders of them."),
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
    _flag(WHAT, "SIZES", "--res", text="Sizes of a dynamic file, height first: 224,384,224x384."),
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
        text="What OpenVINO is asked for: f32, f16, bf16; the report says what it executes.",
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
Warmup: TypeAlias = Annotated[
    int, _flag(HOW_LONG, "N", "--warmup", text="Runs at least; more until latency is stable.")
]
Iters: TypeAlias = Annotated[
    int | None, _flag(HOW_LONG, "N", "--iters", text="Samples per row, in place of --min-time.")
]
MinTime: TypeAlias = Annotated[
    str, _flag(HOW_LONG, "TIME", "--min-time", text="Timed inference per row: 3s, 500ms.")
]
Rounds: TypeAlias = Annotated[
    int,
    _flag(HOW_LONG, "N", "--rounds", text="Rounds at least; up to three times while unsure."),
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
        help="Measure again what --output has.",
        rich_help_panel=o.GENERAL,
    ),
]


def bench_command(
    artifacts: Artifacts = None,
    runtime: Engines = None,
    device: BenchDevice = "CPU",
    res: Sizes = None,
    batch: Batches = None,
    threads: ThreadCounts = None,
    precision: Precisions = None,
    mode: Modes = None,
    images: BenchImages = None,
    warmup: Warmup = 5,
    iters: Iters = None,
    min_time: MinTime = "3s",
    rounds: Rounds = 20,
    baseline: Baseline = None,
    max_regression: MaxRegression = "5%",
    cross_host: CrossHost = False,
    doctor: Doctor = False,
    output: BenchOutput = None,
    force: BenchForce = False,
    as_json: o.Json = False,
    dry_run: BenchDryRun = False,
    verbose: o.RunVerbose = 0,
    quiet: o.Quiet = False,
    version: o.Version = False,
) -> Outcome:
    """Time exported files in engines on this machine, accuracy beside speed.

    Every row runs in a process of its own; rows that are compared take turns in shuffled rounds.

    Example: vitpe-bench out/vit_small_patch16_224-384x384-fp32.onnx --runtime ort,openvino
    """
    del version
    level = o.verbosity(verbose, quiet)
    if doctor:
        return _doctor(as_json)
    from vitpe_deploy.bench.entry import make_options, parse_seconds, parse_share, run_planned
    from vitpe_deploy.bench.plan import make_plan

    if force and output is None:
        raise UsageError("--force is for --output", hint="Leave it out.")
    options = make_options(
        artifacts or (),
        runtimes=o.words(runtime, "--runtime"),
        device=device,
        resolutions=o.words(res, "--res"),
        batches=_numbers(batch, "--batch"),
        threads=_numbers(threads, "--threads") or None,
        precisions=o.words(precision, "--precision") or ("f32",),
        modes=o.words(mode, "--mode") or ("latency",),
        images=images,
        warmup=warmup,
        iters=iters,
        min_time_s=parse_seconds(min_time),
        rounds=rounds,
    )
    limit = parse_share(max_regression)
    plan = make_plan(options)
    if dry_run:
        return _planned(options, plan, as_json)
    with Console(level) as console, stdout_for_results():
        console.note(f"vitpe-bench  {sum(map(len, plan))} rows in {len(plan)} groups")
        report = run_planned(
            options,
            plan,
            baseline=baseline,
            max_regression=limit,
            cross_host=cross_host,
            output_dir=output,
            force=force,
            progress=console,
        )
    return _told(report, output, as_json)


def _told(report: BenchReport, output: Path | None, as_json: bool) -> Outcome:
    from vitpe_deploy.bench.markdown import markdown

    document = report.model_dump_json(by_alias=True, indent=2)
    text = markdown(report)
    if output is not None:
        from vitpe_deploy.files import StagedFiles

        with StagedFiles(output) as staging:
            staging.path("bench.json").write_text(document + "\n", encoding="utf-8")
            staging.path("bench.md").write_text(text + "\n", encoding="utf-8")
            staging.commit()
    return Outcome(document if as_json else text, _exit_code(report))


def _exit_code(report: BenchReport) -> int:
    """4 for a regression, 3 for a row that disagrees, 1 for a row that did not run."""
    if any(row.regressed for row in report.baseline):
        return RegressionError.exit_code
    if any(row.agreement is not None and not row.agreement.passed for row in report.results):
        return ParityError.exit_code
    return 1 if report.failed else 0


def _planned(options: BenchOptions, plan: Sequence[Group], as_json: bool) -> Outcome:
    from vitpe_deploy.bench.estimate import estimate

    with stdout_for_results():
        found = estimate(options, plan)
    if as_json:
        return Outcome(json.dumps(found, indent=2))
    lines = [row for group in found["groups"] for row in group["rows"]]
    lines.append(f"{len(lines)} rows, about {_duration(found['estimate_s'])}")
    return Outcome("\n".join(lines))


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _doctor(as_json: bool) -> Outcome:
    from vitpe_deploy.bench.doctor import as_text, examine

    with stdout_for_results():
        found = examine()
    return Outcome(json.dumps(found, indent=2) if as_json else as_text(found))


def _numbers(values: list[str] | None, flag: str) -> tuple[int, ...]:
    """``["1,2"]`` -> ``(1, 2)``.

    Raises:
        UsageError: a word that is not a whole number.
    """
    found = []
    for word in o.words(values, flag):
        if not word.isdigit():
            raise UsageError(f"{flag} {word!r} is not a number", hint=f"For example {flag} 1,4.")
        found.append(int(word))
    return tuple(found)
