"""The ``bench`` command: artifacts timed in engines, with their agreement beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vitpe_deploy import cli_bench_options as b
from vitpe_deploy import cli_options as o
from vitpe_deploy.cli_boundary import Outcome, stdout_for_results
from vitpe_deploy.cli_given import given_flags, refuse_beside
from vitpe_deploy.cli_jobs import is_jobs_file, run_jobs
from vitpe_deploy.console import Console
from vitpe_deploy.errors import InterruptedRunError, UsageError
from vitpe_deploy.files import refuse_existing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vitpe_deploy.bench.documents import BenchReport

FILE_PRECISIONS = ("fp32", "fp16", "int8", "int8-weights")
"""Number formats of files; the other words of ``--precision`` are what an engine is asked for."""

ALWAYS = ("as_json", "verbose", "quiet", "version")
"""Parameters that say how to answer, whatever is asked."""


def bench_command(
    context: typer.Context,
    artifacts: b.Artifacts = None,
    runtime: b.Engines = None,
    device: b.BenchDevice = "CPU",
    res: b.Sizes = None,
    batch: b.Batches = None,
    threads: b.ThreadCounts = None,
    precision: b.Precisions = None,
    mode: b.Modes = None,
    pe: b.BenchPe = None,
    model_kwarg: b.BenchModelKwarg = None,
    calibration: b.BenchCalibration = None,
    images: b.BenchImages = None,
    labels: b.BenchLabels = None,
    layers: b.BenchLayers = False,
    warmup: b.Warmup = 5,
    iters: b.Iters = None,
    min_time: b.MinTime = "3s",
    rounds: b.Rounds = 20,
    starts: b.Starts = 3,
    baseline: b.Baseline = None,
    max_regression: b.MaxRegression = "5%",
    cross_host: b.CrossHost = False,
    fewer_rows: b.FewerRows = False,
    doctor: b.Doctor = False,
    output: b.BenchOutput = None,
    html: b.Html = None,
    from_: b.From = None,
    force: b.BenchForce = False,
    as_json: o.Json = False,
    dry_run: b.BenchDryRun = False,
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
        refuse_beside(
            context, "--doctor looks at the machine alone", apart_from=("doctor", *ALWAYS),
            hint="Leave one of them out.",
        )  # fmt: skip
        return _doctor(as_json)
    if html is not None:
        refuse_existing([html], force=force)
    if is_jobs_file(artifacts or ()):
        return run_jobs(
            context, Path((artifacts or [""])[0]), "artifacts", output=output or Path("out"),
            force=force, as_json=as_json, dry_run=dry_run, level=level, html=html,
        )  # fmt: skip
    if force and output is None and html is None:
        raise UsageError("--force is for --output and --html", hint="Leave it out.")
    if from_ is not None:
        refuse_beside(
            context, "--from times nothing", apart_from=("from_", "html", "force", *ALWAYS),
            hint="Leave out what says how to measure, or --from.",
        )  # fmt: skip
        return _shown(from_, html, as_json)
    modes = o.words(mode, "--mode") or ("latency",)
    _refuse_idle(given_flags(context), modes)
    from vitpe_deploy.bench.entry import (
        make_options,
        parse_seconds,
        parse_share,
        read_baseline,
        run_planned,
    )
    from vitpe_deploy.bench.plan import EXECUTED, make_plan
    from vitpe_deploy.bench.resume import NAME, REPORTS

    words = o.words(precision, "--precision")
    options = make_options(
        artifacts or (),
        runtimes=o.words(runtime, "--runtime"),
        device=device,
        resolutions=o.words(res, "--res"),
        batches=_numbers(batch, "--batch"),
        threads=_numbers(threads, "--threads") or None,
        precisions=tuple(w for w in words if w not in FILE_PRECISIONS) or (EXECUTED[0],),
        file_precisions=tuple(w for w in words if w in FILE_PRECISIONS),
        modes=modes,
        encodings=o.words(pe, "--pe"),
        model_kwargs=tuple(model_kwarg or ()),
        calibration=calibration,
        images=images,
        labels=labels,
        layers=layers,
        warmup=warmup,
        iters=iters,
        min_time_s=parse_seconds(min_time),
        rounds=rounds,
        starts=starts,
        folder=Path("out") if output is None else output,
    )
    limit = parse_share(max_regression)
    plan = make_plan(options)
    if output is not None and not (output / NAME).exists():
        refuse_existing([output / name for name in REPORTS], force=force)
    read_baseline(baseline, plan, cross_host=cross_host, fewer_rows=fewer_rows)
    with Console(level) as console, stdout_for_results():
        from vitpe_deploy.bench.estimate import estimate, plan_document

        expected = estimate(options, plan)
        if dry_run:
            found = plan_document(plan, expected)
            return Outcome(json.dumps(found, indent=2) if as_json else _plan_text(found))
        console.note(_plan_text(plan_document(plan, expected)))
        try:
            report = run_planned(
                options,
                plan,
                expected=expected,
                baseline=baseline,
                max_regression=limit,
                cross_host=cross_host,
                fewer_rows=fewer_rows,
                output_dir=output,
                force=force,
                progress=console,
            )
        except KeyboardInterrupt as problem:
            kept = "" if output is None else "The same command goes on with what is finished."
            raise InterruptedRunError("interrupted", hint=kept) from problem
    return _told(report, output, html, as_json)


def _refuse_idle(given: Mapping[str, str], modes: Sequence[str]) -> None:
    """Flags that only go with another one, and one that replaces another."""
    for name in ("max_regression", "cross_host", "fewer_rows"):
        if name in given and "baseline" not in given:
            raise UsageError(
                f"{given[name]} is for --baseline", hint="Name an earlier report with --baseline."
            )
    if {"iters", "min_time"} <= set(given) and "throughput" not in modes:
        raise UsageError(
            "--iters contradicts --min-time: both say how long to measure",
            hint="Leave one of them out.",
        )


def _shown(source: Path, html: Path | None, as_json: bool) -> Outcome:
    """An earlier report again, without measuring."""
    from vitpe_deploy.bench.baseline import read_report

    return _told(read_report(source, "--from"), None, html, as_json)


def _told(report: BenchReport, output: Path | None, html: Path | None, as_json: bool) -> Outcome:
    from vitpe_deploy.bench.markdown import markdown
    from vitpe_deploy.bench.outcome import exit_code

    document = report.model_dump_json(by_alias=True, indent=2)
    text = markdown(report)
    if output is not None:
        from vitpe_deploy.bench.resume import REPORTS
        from vitpe_deploy.files import StagedFiles

        with StagedFiles(output) as staging:
            for name, said in zip(REPORTS, (document, text), strict=True):
                staging.path(name).write_text(said + "\n", encoding="utf-8")
            staging.commit()
    if html is not None:
        from vitpe_deploy.files import StagedFiles
        from vitpe_deploy.report.html import render

        page = render(report)
        with StagedFiles(html.parent) as staging:
            staging.path(html.name).write_text(page, encoding="utf-8")
            staging.commit()
    return Outcome(document if as_json else text, exit_code(report))


def _plan_text(document: dict[str, Any]) -> str:
    """What will be done, and about how long it takes."""
    from vitpe_deploy.bench.estimate import duration

    lines = [f"would export  {one['path']}" for one in document["exports"]]
    rows = [row for group in document["groups"] for row in group["rows"]]
    lines += [f"would time    {row}" for row in rows]
    groups = len(document["groups"])
    lines.append(
        f"{len(rows)} rows in {groups} group{'' if groups == 1 else 's'}, "
        f"about {duration(document['estimate_s'])}"
    )
    return "\n".join(lines)


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
