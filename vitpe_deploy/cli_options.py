"""The flags of the commands: names, help texts and how their text is split.

Values are checked by the Python interface, so that both answer alike; here text only becomes
lists and pairs. Imported by ``--help``, so nothing heavy may be imported here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from vitpe_deploy import __version__
from vitpe_deploy.errors import UsageError

SIZE = "Size"
POSITIONS = "Positions"
CONTENT = "What comes out"
HOW = "How"
PROOF = "Proof"
GENERAL = "General"
MODEL = "Model"

EXIT_CODES = (
    "Exit codes: 0 fine; 1 failed; 2 usage; 3 parity outside tolerance (files are kept and "
    "marked as failed); 4 slower than the baseline (vitpe-bench); 130 interrupted."
)


def _value(panel: str, metavar: str, *names: str, text: str) -> Any:
    """A flag that takes a value."""
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel)


def _switch(panel: str, *names: str, text: str, count: bool = False) -> Any:
    """A flag that is there or not, or is counted."""
    return typer.Option(
        *names, metavar="", help=text, rich_help_panel=panel, count=count, show_default=not count
    )


# The model
ModelName: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A reference model (digits-<encoding> are small trained ones), timm:NAME, "
        "hf:DIR_OR_ID, torchvision:NAME, open_clip:NAME, py:MODULE:CALLABLE, the path of an .onnx "
        "file, or of a jobs file (.toml).",
    ),
]
Artifact: TypeAlias = Annotated[
    Path,
    typer.Argument(help="An exported .onnx or .xml, a .bundle.zip, or buckets (index or folder)."),
]
Weights: TypeAlias = Annotated[
    Path | None,
    _value(
        MODEL,
        "FILE",
        "--weights",
        text="Safetensors or state dict of the training size (default: random, by --seed).",
    ),
]
ModelKwarg: TypeAlias = Annotated[
    list[str] | None,
    _value(
        MODEL,
        "KEY=VALUE",
        "--model-kwarg",
        text="Option of its constructor; repeatable. Example: --model-kwarg depth=6",
    ),
]
Against: TypeAlias = Annotated[
    str | None,
    _value(
        MODEL,
        "MODEL",
        "--against",
        text="Model to compare with (default: the manifest's). Example: --against hf:DIR",
    ),
]
AgainstSeed: TypeAlias = Annotated[
    int, _value(MODEL, "N", "--seed", text="Seed of random weights of --against.")
]
AgainstPe: TypeAlias = Annotated[
    str | None, _value(MODEL, "NAME", "--pe", text="Encoding of --against (default: its own).")
]

# Size
Res: TypeAlias = Annotated[
    list[str] | None,
    _value(
        SIZE,
        "N|HxW",
        "--res",
        text="Pixels, height first, used exactly; repeatable (default: native). "
        "Example: --res 384x512",
    ),
]
Buckets: TypeAlias = Annotated[
    list[str] | None,
    _value(
        SIZE,
        "SIZES",
        "--buckets",
        text="Static files of these sizes that share one weights file, for devices with fixed "
        "shapes (NPU). Example: --buckets 224,384,224x384",
    ),
]
DynamicDims: TypeAlias = Annotated[
    str,
    _value(
        SIZE, "WHICH", "--dynamic", text="Dimensions left symbolic: none, batch, size, length, all."
    ),
]
ResRange: TypeAlias = Annotated[
    str | None,
    _value(
        SIZE,
        "RANGE",
        "--res-range",
        text="Bounds of a dynamic size of pictures, LOW:HIGH:STEP in pixels; it is verified at "
        "several sizes inside. Example: --res-range 224:1024:32",
    ),
]
Batch: TypeAlias = Annotated[
    int, _value(SIZE, "N", "--batch", text="Batch of a file whose batch is not dynamic.")
]
VerifyBatch: TypeAlias = Annotated[
    list[int] | None,
    _value(
        SIZE, "N", "--batch", text="Batch to verify at, repeatable (default: those of the export)."
    ),
]
MaxLength: TypeAlias = Annotated[
    int | None,
    _value(
        POSITIONS,
        "N",
        "--max-length",
        text="Longest text of a text tower: up to its positions, or 248 to stretch 77 of them.",
    ),
]
AllowFloor: TypeAlias = Annotated[
    bool,
    _switch(
        SIZE,
        "--allow-floor",
        text="Accept sizes whose border pixels the model's library silently drops.",
    ),
]

# Positions
Pe: TypeAlias = Annotated[
    str | None,
    _value(
        POSITIONS,
        "NAME",
        "--pe",
        text="Encoding of a reference model (default: its own). Example: --pe sincos-2d",
    ),
]
Interpolation: TypeAlias = Annotated[
    str | None,
    _value(
        POSITIONS,
        "KERNEL",
        "--interpolation",
        text="Resampling of tables: bicubic, bilinear (default: the source's rule).",
    ),
]
Antialias: TypeAlias = Annotated[
    bool | None,
    _switch(
        POSITIONS,
        "--antialias/--no-antialias",
        text="Widen the kernel when a table shrinks (default: the source's rule).",
    ),
]
AlignCorners: TypeAlias = Annotated[
    bool | None,
    _switch(
        POSITIONS,
        "--align-corners/--no-align-corners",
        text="Corner positions stay where they are (default: the source's rule).",
    ),
]

PosEmbed: TypeAlias = Annotated[
    str | None,
    _value(
        POSITIONS,
        "PATH",
        "--pos-embed",
        text="Parameter that holds the positions of a py: model, where inspection is not sure. "
        "Example: --pos-embed encoder.pos_embed",
    ),
]

# What comes out
Outputs: TypeAlias = Annotated[
    list[str] | None,
    _value(
        CONTENT,
        "NAMES",
        "--outputs",
        text="logits, pooled, cls, tokens, feature-map, block:K (default: the model's own). "
        "Example: --outputs cls,block:6",
    ),
]

Tower: TypeAlias = Annotated[
    str | None,
    _value(
        CONTENT,
        "WHICH",
        "--tower",
        text="vision, text or both, of a model that has two (CLIP). Example: --tower text",
    ),
]

# How
TargetName: TypeAlias = Annotated[
    str,
    _value(
        HOW,
        "NAME",
        "--target",
        text="Whose kernels the graph is spelled for: ort, openvino, portable (standard "
        "operators). A file of ours is respelled without its model.",
    ),
]
Formats: TypeAlias = Annotated[
    list[str],
    _value(
        HOW,
        "NAMES",
        "--format",
        text="onnx, openvino, ort (ONNX Runtime mobile). Example: --format onnx,openvino",
    ),
]
PrecisionName: TypeAlias = Annotated[
    str,
    _value(
        HOW,
        "NAME",
        "--precision",
        text="Number format: fp32, fp16, int8, int8-weights (float32 compute).",
    ),
]
Calibration: TypeAlias = Annotated[
    str | None,
    _value(
        HOW,
        "DATA",
        "--calibration",
        text="For int8 (and fp16): a folder of pictures, an .npz whose arrays are named like the "
        "inputs, or random. Half (at most 32) calibrate, the rest judge. "
        "Example: --calibration photos/",
    ),
]
MinAgreement: TypeAlias = Annotated[
    float,
    _value(
        HOW,
        "X",
        "--min-agreement",
        text="int8 below it fails: share of equal top-1 (logits, enough inputs), else cosine.",
    ),
]
Int8Method: TypeAlias = Annotated[
    str,
    _value(
        HOW,
        "NAME",
        "--int8-method",
        text="auto measures and keeps the best; or dynamic, static (each also -reduced: 7-bit "
        "weights), nncf, nncf-smooth-0.15, nncf-smooth-0.5.",
    ),
]
Opset: TypeAlias = Annotated[
    int,
    _value(HOW, "N", "--opset", text="ONNX operator set, 18 to 23 (fastest in ONNX Runtime)."),
]
Simplify: TypeAlias = Annotated[
    bool, _switch(HOW, "--simplify/--no-simplify", text="Run onnxsim after the passes.")
]
SkipPass: TypeAlias = Annotated[
    list[str] | None,
    _value(
        HOW,
        "NAME",
        "--skip-pass",
        text="Leave out one graph pass; repeatable. Example: --skip-pass constants",
    ),
]

EmbedPreprocess: TypeAlias = Annotated[
    bool,
    _switch(
        HOW,
        "--embed-preprocess",
        text="The file takes uint8 pixels; scaling and normalisation are inside, resizing is not.",
    ),
]
PixelOrder: TypeAlias = Annotated[
    str | None,
    _value(
        HOW,
        "ORDER",
        "--pixel-order",
        text="Of --embed-preprocess: nhwc (default) or nchw.",
    ),
]
LayoutName: TypeAlias = Annotated[
    str,
    _value(
        HOW,
        "NAME",
        "--layout",
        text="files, or a server's model repository: triton, ovms (OpenVINO Model Server).",
    ),
]

# Proof
Verify: TypeAlias = Annotated[
    bool,
    _switch(
        PROOF,
        "--verify/--no-verify",
        text="Compare files with PyTorch in every engine that can run them.",
    ),
]
VerifyRes: TypeAlias = Annotated[
    list[str] | None,
    _value(
        PROOF,
        "N|HxW",
        "--verify-res",
        text="Further size to verify a dynamic file at; repeatable. Example: --verify-res 512x256",
    ),
]
VerifyPasses: TypeAlias = Annotated[
    bool,
    _switch(
        PROOF, "--verify-passes", text="Also compare after each graph pass that changed something."
    ),
]
VerifySizes: TypeAlias = Annotated[
    list[str] | None,
    _value(
        PROOF,
        "N|HxW",
        "--res",
        text="Pixels, height first; repeatable (default: as at export). Example: --res 384x512",
    ),
]
Runtimes: TypeAlias = Annotated[
    list[str] | None,
    _value(
        PROOF,
        "NAMES",
        "--runtime",
        text="ort, openvino (default: all that can run the file). Example: --runtime ort",
    ),
]
Device: TypeAlias = Annotated[
    str,
    _value(
        PROOF,
        "NAME",
        "--device",
        text="In the engine's own words. Example: --runtime openvino --device GPU",
    ),
]
BundleFlag: TypeAlias = Annotated[
    bool,
    _switch(
        PROOF,
        "--bundle",
        text="Pack ARTIFACT with PyTorch's outputs into ARTIFACT.bundle.zip, and check that.",
    ),
]
Layers: TypeAlias = Annotated[
    bool,
    _switch(PROOF, "--layers", text="Also name the first block whose activations leave tolerance."),
]
Images: TypeAlias = Annotated[
    Path | None,
    _value(
        PROOF,
        "DIR",
        "--images",
        text="Pictures to compare on, besides noise and a structured picture.",
    ),
]
Rtol: TypeAlias = Annotated[
    float | None,
    _value(
        PROOF,
        "X",
        "--rtol",
        text="Passes when max|error| <= atol + rtol * max|reference| (default: 1e-4 for fp32, "
        "1e-2 for fp16); int8 passes by --min-agreement.",
    ),
]
Atol: TypeAlias = Annotated[float, _value(PROOF, "X", "--atol", text="See --rtol.")]
StoredRtol: TypeAlias = Annotated[
    float | None,
    _value(
        PROOF,
        "X",
        "--rtol",
        text="Passes when max|error| <= atol + rtol * max|reference| (default: as at export).",
    ),
]
StoredAtol: TypeAlias = Annotated[
    float | None, _value(PROOF, "X", "--atol", text="See --rtol (default: as at export).")
]

# General
OutputDir: TypeAlias = Annotated[
    Path, _value(GENERAL, "DIR", "-o", "--output", text="Folder that files go to.")
]
BundleDir: TypeAlias = Annotated[
    Path | None,
    _value(
        GENERAL, "DIR", "-o", "--output", text="Folder of the bundle (default: beside ARTIFACT)."
    ),
]
Force: TypeAlias = Annotated[bool, _switch(GENERAL, "--force", text="Replace existing files.")]
Seed: TypeAlias = Annotated[int, _value(GENERAL, "N", "--seed", text="Seed of random weights.")]
Json: TypeAlias = Annotated[
    bool,
    _switch(GENERAL, "--json", text="One JSON document on stdout and nothing else, on errors too."),
]
DryRun: TypeAlias = Annotated[
    bool,
    _switch(GENERAL, "--dry-run", text="Print what would be written and verified; write nothing."),
]
Verbose: TypeAlias = Annotated[
    int,
    _switch(
        GENERAL,
        "-v",
        "--verbose",
        text="-v also shows what passes left alone and why, -vv also tracebacks.",
        count=True,
    ),
]
VerifyVerbose: TypeAlias = Annotated[
    int,
    _switch(
        GENERAL,
        "-v",
        "--verbose",
        text="-v also shows blocks that cannot be compared, -vv also tracebacks.",
        count=True,
    ),
]
RunVerbose: TypeAlias = Annotated[
    int, _switch(GENERAL, "-v", "--verbose", text="-vv shows tracebacks.", count=True)
]
Quiet: TypeAlias = Annotated[
    bool, _switch(GENERAL, "-q", "--quiet", text="Only errors and the final result.")
]
Threads: TypeAlias = Annotated[
    int | None,
    _value(
        GENERAL,
        "N",
        "--threads",
        text="Threads of every engine (default: the CPUs this process may use).",
    ),
]


def words(values: Iterable[str] | None, flag: str) -> tuple[str, ...]:
    """``["a, b", "c"]`` -> ``("a", "b", "c")``.

    Raises:
        UsageError: values were given and all of them are empty.
    """
    given = list(values or ())
    found = tuple(word for text in given for part in text.split(",") if (word := part.strip()))
    if given and not found:
        raise UsageError(f"{flag} names nothing", hint=f"Leave {flag} out, or give it a value.")
    return found


def pairs(values: Iterable[str] | None, flag: str) -> dict[str, str]:
    """``["depth=2"]`` -> ``{"depth": "2"}``.

    Raises:
        UsageError: no ``=``, no key, or one key twice.
    """
    found: dict[str, str] = {}
    for text in values or ():
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UsageError(
                f"{flag} {text!r} is not KEY=VALUE", hint=f"For example {flag} num_classes=10."
            )
        if key in found:
            raise UsageError(f"{flag} gives {key!r} twice")
        found[key] = value.strip()
    return found


def verbosity(verbose: int, quiet: bool) -> int:
    """-1 for ``-q``, else the number of ``-v``.

    Raises:
        UsageError: both.
    """
    if quiet and verbose:
        raise UsageError("-q contradicts -v", hint="Leave one of them out.")
    return -1 if quiet else verbose


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vitpe-deploy {__version__}")
        raise typer.Exit


Version: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--version",
        metavar="",
        callback=_print_version,
        is_eager=True,
        help="Print the version.",
        rich_help_panel=GENERAL,
    ),
]
