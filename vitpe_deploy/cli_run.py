"""The ``run`` command: an artifact on pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from vitpe_deploy import cli_options as o
from vitpe_deploy.cli_boundary import Outcome, stdout_for_results
from vitpe_deploy.console import Console
from vitpe_deploy.errors import UsageError

if TYPE_CHECKING:
    from vitpe_deploy.deploy.run import RunReport, RunRow

ENGINE = "Engine"
RESULT = "Result"

RunArtifact: TypeAlias = Annotated[
    Path,
    typer.Argument(
        metavar="ARTIFACT",
        help="An exported .onnx or .xml, an index of buckets, or their folder.",
    ),
]
Inputs: TypeAlias = Annotated[
    list[Path],
    typer.Argument(
        metavar="IMAGE...", help="Pictures, folders of pictures, or .npy files of prepared inputs."
    ),
]
Runtime: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--runtime",
        metavar="NAME",
        help="ort, openvino (default: what the file and the device go with).",
        rich_help_panel=ENGINE,
    ),
]
RunDevice: TypeAlias = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="NAME",
        help="In the engine's own words: CPU, GPU, GPU.1, NPU, AUTO.",
        rich_help_panel=ENGINE,
    ),
]
Cache: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--cache",
        metavar="DIR",
        help="Keep what OpenVINO compiled for the next start, in DIR or in the user's cache "
        "folder (auto). Default: nothing is kept.",
        rich_help_panel=ENGINE,
    ),
]
RunSize: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--res",
        metavar="N|HxW",
        help="Size that pictures are brought to, for a file of symbolic size (default: native) or "
        "buckets (default: the nearest).",
        rich_help_panel=RESULT,
    ),
]
Resize: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--resize",
        metavar="",
        help="Resample prepared inputs of another size instead of refusing them.",
        rich_help_panel=RESULT,
    ),
]
Prompts: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--prompt",
        metavar="TEXT",
        help="Score pictures against texts, with two towers (index or folder); repeatable. "
        'Example: --prompt "a photo of a cat" --prompt "a photo of a dog"',
        rich_help_panel=RESULT,
    ),
]
Top: TypeAlias = Annotated[
    int,
    typer.Option("--top", metavar="N", help="Classes per picture.", rich_help_panel=RESULT),
]
SaveDir: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="DIR",
        help="Also save every output as DIR/<image>.<output>.npy.",
        rich_help_panel=RESULT,
    ),
]


def run_command(
    artifact: RunArtifact,
    images: Inputs,
    runtime: Runtime = None,
    device: RunDevice = "CPU",
    res: RunSize = None,
    resize: Resize = False,
    top: Top = 5,
    prompt: Prompts = None,
    cache: Cache = None,
    output: SaveDir = None,
    force: o.Force = False,
    as_json: o.Json = False,
    verbose: o.RunVerbose = 0,
    quiet: o.Quiet = False,
    threads: o.Threads = None,
    version: o.Version = False,
) -> Outcome:
    """Run an exported model on pictures: top classes, or embeddings as .npy.

    Pictures go through the preprocessing that is stored with the file.

    Example: vitpe-run out/vit_small_patch16_224-384x384-fp32.onnx cat.jpg
    """
    del version
    level = o.verbosity(verbose, quiet)
    kept = True if cache == "auto" else cache
    if prompt or artifact.name.endswith(".pair.json"):
        return _against_prompts(
            artifact, images, prompt or [], level, as_json,
            unused={"--res": res, "--resize": resize, "--output": output, "--force": force},
            device=device, runtime=runtime, count=top, threads=threads, cache=kept,
        )  # fmt: skip
    if force and output is None:
        raise UsageError(
            "--force is for --output: without it no file is written",
            hint="Add --output DIR, or leave it out.",
        )
    from vitpe_deploy.deploy.run import run_on

    with Console(level) as console, stdout_for_results():
        report = run_on(
            artifact,
            images,
            device=device,
            runtime=runtime,
            size=res,
            resize=resize,
            count=top,
            output_dir=output,
            force=force,
            threads=threads,
            cache=kept,
            progress=console,
        )
    return Outcome(report.model_dump_json(by_alias=True, indent=2) if as_json else _summary(report))


def _against_prompts(
    artifact: Path,
    images: list[Path],
    prompts: list[str],
    level: int,
    as_json: bool,
    *,
    unused: dict[str, object],
    **options: Any,
) -> Outcome:
    """The command on two towers."""
    if not prompts:
        raise UsageError(
            f"{artifact} is a pair of towers and there are no prompts",
            hint="Add --prompt TEXT for each, or name the file of one tower.",
        )
    for flag, value in unused.items():
        if value:
            raise UsageError(f"{flag} has no meaning with --prompt", hint="Leave it out.")
    from vitpe_deploy.deploy.run_pair import run_pair

    with Console(level) as console, stdout_for_results():
        report = run_pair(artifact, images, prompts, progress=console, **options)
    return Outcome(report.model_dump_json(by_alias=True, indent=2) if as_json else _summary(report))


def _summary(report: RunReport) -> str:
    """A block per input: its classes, or its outputs."""
    return "\n".join(line for row in report.results for line in _lines(row))


def _lines(row: RunRow) -> list[str]:
    lines = [row.input]
    for best in row.top:
        label = "" if best.label is None else f"  {best.label}"
        lines.append(f"  {best.probability:7.2%}  class {best.index}{label}")
    for output in row.outputs:
        if row.top and output.name == "logits" and output.path is None:
            continue
        shape = "x".join(map(str, output.shape))
        saved = "" if output.path is None else f"  {output.path}"
        lines.append(f"  {output.name}  {shape}  norm {output.norm:.4g}{saved}")
    return lines
