"""``vitpe_deploy.benchmark``: what the command does, with Python's own types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitpe_deploy.bench.plan import BenchOptions, Group, make_plan
from vitpe_deploy.bench.rounds import Schedule
from vitpe_deploy.bench.sweep import Sweep
from vitpe_deploy.errors import UsageError
from vitpe_deploy.request import Resolution
from vitpe_deploy.threads import available_cpus

if TYPE_CHECKING:
    from vitpe_deploy.bench.documents import BenchReport
    from vitpe_deploy.bench.estimate import Estimate
    from vitpe_deploy.progress import Progress

Size = Resolution | int | str | tuple[int, int]

FILES = (".onnx", ".xml", ".json", ".zip")
"""Suffixes of files; other words that are no path are names of models."""

LONGER = 6
"""Rounds are made up to so many times ``--rounds`` while a comparison is unsure."""


def benchmark(
    artifacts: str | Path | Sequence[str | Path],
    *,
    runtimes: Sequence[str] = (),
    device: str = "CPU",
    resolutions: Sequence[Size] = (),
    batches: Sequence[int] = (),
    threads: int | Sequence[int] | None = None,
    precisions: Sequence[str] = ("f32",),
    modes: Sequence[str] = ("latency",),
    images: str | Path | None = None,
    labels: str | Path | None = None,
    layers: bool = False,
    encodings: Sequence[str] = (),
    file_precisions: Sequence[str] = (),
    model_kwargs: Sequence[str] = (),
    calibration: str | None = None,
    warmup: int = 5,
    iters: int | None = None,
    min_time_s: float = 3.0,
    rounds: int = 20,
    starts: int = 3,
    baseline: str | Path | None = None,
    max_regression: float = 0.05,
    cross_host: bool = False,
    fewer_rows: bool = False,
    output_dir: str | Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> BenchReport:
    """Time artifacts in engines on this machine, with their agreement with PyTorch beside it.

    Args:
        artifacts: ``.onnx`` or ``.xml`` of ours, or folders of them; names of models are
            exported first, one static file per encoding, precision, size and batch.
        runtimes: onnxruntime, openvino, torch; those that can run the file when empty.
        device: in the engine's own words.
        resolutions: sizes in pixels, height first; what the file is made for when empty.
        batches: images of one request.
        threads: of the engine; the CPUs this process may use for None.
        precisions: what OpenVINO is asked for: f32, f16, bf16.
        modes: latency, throughput.
        images: folder of pictures to compare on, besides noise and a structured picture.
        labels: right classes of ``images``, see :mod:`vitpe_deploy.bench.labels`.
        layers: also compare after each block.
        encodings: positional encodings of reference models.
        file_precisions: number formats that models are exported in: fp32, fp16, int8,
            int8-weights.
        model_kwargs: ``KEY=VALUE`` options of the constructors of models.
        calibration: what int8 is made with.
        warmup: runs before the first round at least; more until latency is stable.
        iters: samples per row, in place of ``min_time_s``.
        min_time_s: seconds of timed inference per row.
        rounds: rounds at least; up to six times as many while a comparison is unsure.
        starts: how often each process is started anew at least; rounds are shared among starts.
        baseline: an earlier report to judge the rows by.
        max_regression: what a row may be slower by than the baseline.
        cross_host: accept a baseline of another machine.
        fewer_rows: accept a baseline with rows that are not measured now.
        output_dir: keeps finished rows in ``bench.jsonl``, to go on after an interruption.
        force: measure again what ``output_dir`` has.
        progress: told what happens.

    Returns:
        The report; ``report.baseline`` says which rows regressed, ``report.unjudged`` which
        could not be judged.

    Raises:
        VitpeError: see :mod:`vitpe_deploy.errors`.
    """
    options = make_options(
        artifacts,
        runtimes=runtimes,
        device=device,
        resolutions=resolutions,
        batches=batches,
        threads=threads,
        precisions=precisions,
        modes=modes,
        images=images,
        labels=labels,
        layers=layers,
        encodings=encodings,
        file_precisions=file_precisions,
        model_kwargs=model_kwargs,
        calibration=calibration,
        warmup=warmup,
        iters=iters,
        min_time_s=min_time_s,
        rounds=rounds,
        starts=starts,
        folder=Path("out") if output_dir is None else Path(output_dir),
    )
    plan = make_plan(options)
    return run_planned(
        options,
        plan,
        baseline=None if baseline is None else Path(baseline),
        max_regression=max_regression,
        cross_host=cross_host,
        fewer_rows=fewer_rows,
        output_dir=None if output_dir is None else Path(output_dir),
        force=force,
        progress=progress,
    )


def make_options(
    artifacts: str | Path | Sequence[str | Path],
    *,
    runtimes: Sequence[str] = (),
    device: str = "CPU",
    resolutions: Sequence[Size] = (),
    batches: Sequence[int] = (),
    threads: int | Sequence[int] | None = None,
    precisions: Sequence[str] = ("f32",),
    modes: Sequence[str] = ("latency",),
    images: str | Path | None = None,
    labels: str | Path | None = None,
    layers: bool = False,
    encodings: Sequence[str] = (),
    file_precisions: Sequence[str] = (),
    model_kwargs: Sequence[str] = (),
    calibration: str | None = None,
    warmup: int = 5,
    iters: int | None = None,
    min_time_s: float = 3.0,
    rounds: int = 20,
    starts: int = 3,
    folder: Path = Path("out"),
) -> BenchOptions:
    """Arguments of :func:`benchmark` as frozen values; ``folder`` is where models are exported.

    Raises:
        UsageError: options of models, and no model.
    """
    given = [artifacts] if isinstance(artifacts, str | Path) else list(artifacts)
    models = tuple(str(one) for one in given if not _is_file(one))
    paths = [Path(one) for one in given if _is_file(one)]
    for flag, values in (
        ("--pe", encodings), ("--model-kwarg", model_kwargs), ("--calibration", calibration),
        (f"--precision {', '.join(file_precisions)}", file_precisions),
    ):  # fmt: skip
        if values and not models:
            raise UsageError(
                f"{flag} is for models, these are files", hint="Name a model: vit_tiny_patch16_224."
            )
    if calibration is not None and not any(word.startswith("int8") for word in file_precisions):
        raise UsageError(
            "--calibration is for --precision int8 and int8-weights",
            hint="Name one of them, or leave --calibration out.",
        )
    counts = [threads] if isinstance(threads, int) else list(threads or (available_cpus(),))
    schedule = Schedule(
        rounds=rounds,
        starts=min(starts, max(rounds, 1)),
        min_time_s=min_time_s,
        iters=iters,
        warmup=warmup,
        max_rounds=LONGER * rounds if iters is None else None,
    )
    return BenchOptions(
        artifacts=tuple(paths),
        runtimes=tuple(runtimes),
        device=device,
        resolutions=tuple(dict.fromkeys(Resolution.from_any(s) for s in resolutions)),
        batches=tuple(dict.fromkeys(batches)),
        threads=tuple(dict.fromkeys(counts)),
        precisions=tuple(precisions),
        modes=tuple(dict.fromkeys(modes)),
        images=None if images is None else Path(images),
        labels=None if labels is None else Path(labels),
        layers=layers,
        schedule=schedule,
        sweep=Sweep(
            models=models,
            encodings=tuple(dict.fromkeys(encodings)),
            precisions=tuple(dict.fromkeys(file_precisions)) or ("fp32",),
            kwargs=tuple(model_kwargs),
            calibration=calibration,
            folder=folder,
        ),
    )


def _is_file(given: str | Path) -> bool:
    """Whether it is a file or a folder, and not the name of a model."""
    return isinstance(given, Path) or Path(given).suffix in FILES or Path(given).exists()


def run_planned(
    options: BenchOptions,
    plan: Sequence[Group],
    *,
    expected: Estimate | None = None,
    baseline: Path | None,
    max_regression: float,
    cross_host: bool,
    fewer_rows: bool,
    output_dir: Path | None,
    force: bool,
    progress: Progress | None,
) -> BenchReport:
    """Measure a plan and judge it by a baseline. See :func:`benchmark`."""
    from vitpe_deploy.bench.baseline import against_baseline, not_judged
    from vitpe_deploy.bench.resume import Journal, measured_how
    from vitpe_deploy.bench.run import run_bench

    old = read_baseline(baseline, plan, cross_host=cross_host, fewer_rows=fewer_rows)
    journal = None
    if output_dir is not None:
        journal = Journal(output_dir, measured_how(options), fresh=force)
    report = run_bench(options, plan, expected=expected, journal=journal, progress=progress)
    if old is None:
        return report
    return report.model_copy(
        update={
            "baseline": against_baseline(report, old, max_regression),
            "unjudged": not_judged(report, old),
        }
    )


def read_baseline(
    path: Path | None, plan: Sequence[Group], *, cross_host: bool, fewer_rows: bool
) -> BenchReport | None:
    """The earlier report that will judge a plan; nobody wants to hear afterwards that it cannot.

    Raises:
        ArtifactError: it is missing or something else.
        UsageError: it is of another machine, or of other rows.
    """
    if path is None:
        return None
    from vitpe_deploy.bench.baseline import read_report, require_comparable

    old = read_report(path)
    planned = [row.id for group in plan for row in group]
    require_comparable(old, planned, cross_host=cross_host, fewer_rows=fewer_rows)
    return old


def parse_seconds(text: str, flag: str = "--min-time") -> float:
    """``"3s"``, ``"500ms"``, ``"2m"`` or ``"3"`` in seconds.

    Raises:
        UsageError: anything else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m)?", text.strip())
    if match is None:
        raise UsageError(f"{flag} {text!r} is not a time", hint=f"For example {flag} 3s.")
    return float(match[1]) * {"ms": 1e-3, "s": 1.0, "m": 60.0}[match[2] or "s"]


def parse_share(text: str, flag: str = "--max-regression") -> float:
    """``"5%"`` or ``"0.05"`` as a share.

    Raises:
        UsageError: anything else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%)?", text.strip())
    if match is None:
        raise UsageError(f"{flag} {text!r} is not a share", hint=f"For example {flag} 5%.")
    return float(match[1]) / (100 if match[2] else 1)


__all__ = [
    "benchmark",
    "make_options",
    "parse_seconds",
    "parse_share",
    "read_baseline",
    "run_planned",
]
