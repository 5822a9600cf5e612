"""The commands: flags in, the Python interface called, a report out.

``vitpe`` has the commands as sub-commands; ``vitpe-export``, ``vitpe-verify``, ``vitpe-bench``,
``vitpe-plot`` and ``vitpe-run`` are the same functions under their own names. Nothing heavy is
imported before it is needed, so that ``--help`` and refusals are instant.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vitpe_deploy import cli_options as o
from vitpe_deploy.cli_bench import bench_command
from vitpe_deploy.cli_boundary import Outcome, run_app, stdout_for_results
from vitpe_deploy.cli_inspect import inspect_command
from vitpe_deploy.cli_jobs import is_jobs_file, run_jobs
from vitpe_deploy.cli_plot import plot_command
from vitpe_deploy.cli_run import run_command
from vitpe_deploy.console import Console
from vitpe_deploy.errors import ParityError, UsageError

if TYPE_CHECKING:
    from vitpe_deploy.results import ExportReport, VerifyReport


def export(
    context: typer.Context,
    model: o.ModelName = "vit_small_patch16_224",
    res: o.Res = None,
    buckets: o.Buckets = None,
    dynamic: o.DynamicDims = "none",
    res_range: o.ResRange = None,
    batch: o.Batch = 1,
    allow_floor: o.AllowFloor = False,
    pe: o.Pe = None,
    interpolation: o.Interpolation = None,
    antialias: o.Antialias = None,
    align_corners: o.AlignCorners = None,
    max_length: o.MaxLength = None,
    pos_embed: o.PosEmbed = None,
    outputs: o.Outputs = None,
    tower: o.Tower = None,
    target: o.TargetName = "ort",
    formats: o.Formats = ["onnx"],  # noqa: B006  typer reads the default, nothing changes it
    precision: o.PrecisionName = "fp32",
    calibration: o.Calibration = None,
    min_agreement: o.MinAgreement = 0.99,
    int8_method: o.Int8Method = "auto",
    opset: o.Opset = 20,
    simplify: o.Simplify = True,
    skip_pass: o.SkipPass = None,
    embed_preprocess: o.EmbedPreprocess = False,
    pixel_order: o.PixelOrder = None,
    layout: o.LayoutName = "files",
    weights: o.Weights = None,
    model_kwarg: o.ModelKwarg = None,
    verify: o.Verify = True,
    verify_res: o.VerifyRes = None,
    verify_passes: o.VerifyPasses = False,
    layers: o.Layers = False,
    images: o.Images = None,
    rtol: o.Rtol = None,
    atol: o.Atol = 0.0,
    output: o.OutputDir = Path("out"),
    force: o.Force = False,
    seed: o.Seed = 0,
    as_json: o.Json = False,
    dry_run: o.DryRun = False,
    verbose: o.Verbose = 0,
    quiet: o.Quiet = False,
    threads: o.Threads = None,
    version: o.Version = False,
) -> Outcome:
    """Export a Vision Transformer at exactly the size given, and prove it equal to PyTorch.

    Example: vitpe-export --res 384
    """
    del version
    level = o.verbosity(verbose, quiet)
    if is_jobs_file((model,)):
        return run_jobs(
            context, Path(model), "model", output=output, force=force, as_json=as_json,
            dry_run=dry_run, level=level,
        )  # fmt: skip
    from vitpe_deploy import export_steps, towers
    from vitpe_deploy.build_request import make_request

    request = make_request(
        model,
        list(o.words(res, "--res")),
        buckets=list(o.words(buckets, "--buckets")),
        dynamic=dynamic,
        size_range=res_range,
        batch=batch,
        encoding=pe,
        weights=weights,
        model_kwargs=o.pairs(model_kwarg, "--model-kwarg"),
        seed=seed,
        interpolation=interpolation,
        antialias=antialias,
        align_corners=align_corners,
        max_length=max_length,
        tower=tower,
        pos_embed=pos_embed,
        outputs=o.words(outputs, "--outputs"),
        target=target,
        formats=o.words(formats, "--format"),
        precision=precision,
        calibration=calibration,
        min_agreement=min_agreement,
        int8_method=int8_method,
        opset=opset,
        simplify=simplify,
        skip_passes=o.words(skip_pass, "--skip-pass"),
        embed_preprocess=embed_preprocess,
        pixel_order=pixel_order,
        layout=layout,
        allow_floor=allow_floor,
        verify=verify,
        verify_resolutions=o.words(verify_res, "--verify-res"),
        verify_passes=verify_passes,
        verify_layers=layers,
        images=images,
        rtol=rtol,
        atol=atol,
        output_dir=output,
        force=force,
        threads=threads,
    )
    exports = export_steps.plan_exports(request)
    from vitpe_deploy import cli_summary as summary

    def announce(one: export_steps.PlannedRequest) -> None:
        console.note(summary.header(one.request, one.source.facts(), one.plan))

    with Console(level) as console, stdout_for_results():
        if dry_run:
            planned = []
            for one in exports:
                announce(one)
                planned.append(summary.plan_document(one.request, one.source.facts(), one.plan))
            document = towers.merged_plans(planned)
            said = json.dumps(document, indent=2) if as_json else summary.plan_summary(document)
            return Outcome(said)
        report = export_steps.run_exports(request, exports, progress=console, before_each=announce)
        _show_passes(console, report)
    text = report.model_dump_json(by_alias=True, indent=2)
    return Outcome(text if as_json else summary.export_summary(report), _exit_code(report))


def verify(
    artifact: o.Artifact,
    against: o.Against = None,
    pe: o.AgainstPe = None,
    weights: o.Weights = None,
    model_kwarg: o.ModelKwarg = None,
    seed: o.AgainstSeed = 0,
    res: o.VerifySizes = None,
    batch: o.VerifyBatch = None,
    runtime: o.Runtimes = None,
    device: o.Device = "CPU",
    bundle: o.BundleFlag = False,
    layers: o.Layers = False,
    images: o.Images = None,
    rtol: o.StoredRtol = None,
    atol: o.StoredAtol = None,
    output: o.BundleDir = None,
    force: o.Force = False,
    as_json: o.Json = False,
    verbose: o.VerifyVerbose = 0,
    quiet: o.Quiet = False,
    threads: o.Threads = None,
    version: o.Version = False,
) -> Outcome:
    """Prove an artifact equal to PyTorch again: later, on another machine or device.

    A bundle is checked without torch and without the model.

    Example: vitpe-verify out/vit_small_patch16_224-384x384-fp32.onnx --runtime ort
    """
    del version
    level = o.verbosity(verbose, quiet)
    if bundle and layers:
        raise UsageError("--layers contradicts --bundle", hint="A bundle holds whole outputs.")
    if bundle and batch:
        raise UsageError("--batch contradicts --bundle", hint="Leave it out.")
    if not bundle and (output is not None or force):
        raise UsageError("--output and --force are for --bundle", hint="Add --bundle.")
    from vitpe_deploy import api

    engines = o.words(runtime, "--runtime") or None
    sizes = o.words(res, "--res")
    model: dict[str, Any] = {
        "against": against,
        "encoding": pe,
        "weights": weights,
        "model_kwargs": o.pairs(model_kwarg, "--model-kwarg"),
        "seed": seed,
    }
    from vitpe_deploy import cli_summary as summary
    from vitpe_deploy.bundle import is_bundle

    with Console(level) as console, stdout_for_results():
        path = artifact
        if bundle:
            path = api.bundle(
                artifact, **model, resolutions=sizes, images=images, threads=threads,
                output_dir=output, force=force, progress=console,
            )  # fmt: skip
            console.note(f"packed {path}")
            model, sizes, images = {}, (), None
        report = api.verify(
            path,
            **model,
            resolutions=sizes,
            batches=batch or (),
            runtimes=engines,
            device=device,
            images=images,
            layers=layers,
            rtol=rtol,
            atol=atol,
            threads=threads,
            progress=console,
        )
        for verdict in report.layers:
            for reason in verdict.not_comparable:
                console.detail(f"  {verdict.runtime} layers not compared: {reason}")
    text = report.model_dump_json(by_alias=True, indent=2)
    said = text if as_json else summary.verify_summary(report, bundle=is_bundle(path))
    return Outcome(said, _exit_code(report))


def _show_passes(console: Console, report: ExportReport) -> None:
    for record in report.passes:
        console.detail(
            f"  {Path(record.artifact).name}: pass {record.name} changed {record.changed}"
        )
        for refusal in record.refused:
            console.detail(f"    left {refusal.node}: {refusal.reason}")


def _exit_code(report: ExportReport | VerifyReport) -> int:
    return ParityError.exit_code if report.verdict == "failed" else 0


def _app(*commands: str) -> typer.Typer:
    """An app of one command, or of several as sub-commands."""
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=o.EXIT_CODES,
    )
    known: dict[str, Callable[..., Outcome]] = {
        "export": export,
        "verify": verify,
        "inspect": inspect_command,
        "plot": plot_command,
        "run": run_command,
        "bench": bench_command,
    }
    for name in commands:
        app.command(name, epilog=o.EXIT_CODES)(known[name])
    return app


def _vitpe(
    context: typer.Context,
    version: o.Version = False,
) -> Outcome | None:
    """Vision Transformers with any positional encoding, at any size, to ONNX and OpenVINO."""
    del version
    if context.invoked_subcommand is None:
        raise UsageError(
            "no command was given", hint="Choose from: export, verify, bench, inspect, plot, run."
        )
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """``vitpe``. Gives the exit code."""
    app = _app("export", "verify", "bench", "inspect", "plot", "run")
    app.callback(invoke_without_command=True)(_vitpe)
    return run_app(app, "vitpe", argv)


def export_main(argv: Sequence[str] | None = None) -> int:
    """``vitpe-export``. Gives the exit code."""
    return run_app(_app("export"), "vitpe-export", argv)


def verify_main(argv: Sequence[str] | None = None) -> int:
    """``vitpe-verify``. Gives the exit code."""
    return run_app(_app("verify"), "vitpe-verify", argv)


def bench_main(argv: Sequence[str] | None = None) -> int:
    """``vitpe-bench``. Gives the exit code."""
    return run_app(_app("bench"), "vitpe-bench", argv)


def inspect_main(argv: Sequence[str] | None = None) -> int:
    """``vitpe-inspect``. Gives the exit code."""
    return run_app(_app("inspect"), "vitpe-inspect", argv)


def plot_main(argv: Sequence[str] | None = None) -> int:
    """``vitpe-plot``. Gives the exit code."""
    return run_app(_app("plot"), "vitpe-plot", argv)


def run_main(argv: Sequence[str] | None = None) -> int:
    """``vitpe-run``. Gives the exit code."""
    return run_app(_app("run"), "vitpe-run", argv)
