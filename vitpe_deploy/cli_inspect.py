"""The ``inspect`` command: what a model or a file is, and who can run it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from vitpe_deploy import cli_options as o
from vitpe_deploy.cli_boundary import Outcome, stdout_for_results
from vitpe_deploy.console import Console

if TYPE_CHECKING:
    from vitpe_deploy.inspection.report import Dimension, FileFacts, InspectReport, Sizes

Subject: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="MODEL_OR_FILE",
        help="A MODEL as vitpe-export takes it, an .onnx of anybody's, an OpenVINO .xml, a "
        ".bundle.zip, or buckets (index or folder).",
    ),
]
Trace: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--trace",
        metavar="",
        help="Also load the model, trace it and run the passes: what each changed, and what it "
        "left alone and why. Takes as long as an export; writes nothing.",
        rich_help_panel=o.HOW,
    ),
]
TraceSize: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--res",
        metavar="N|HxW",
        help="Size to trace at (default: native).",
        rich_help_panel=o.HOW,
    ),
]

_HEAD = 14
_SHOWN = 6
"""Rows of one kind that are printed; ``-v`` and ``--json`` have all of them."""


def inspect_command(
    subject: Subject,
    pe: o.Pe = None,
    model_kwarg: o.ModelKwarg = None,
    tower: o.Tower = None,
    trace: Trace = False,
    res: TraceSize = None,
    target: o.TargetName = "ort",
    as_json: o.Json = False,
    verbose: o.Verbose = 0,
    quiet: o.Quiet = False,
    version: o.Version = False,
) -> Outcome:
    """Say what a model or a file is: positions, sizes, what fuses, who can run it.

    No weights are needed, and nothing of a file is executed.

    Example: vitpe-inspect timm:vit_small_patch14_dinov2
    """
    del version
    level = o.verbosity(verbose, quiet)
    from vitpe_deploy import api

    with Console(level) as console, stdout_for_results():
        report = api.inspect(
            subject,
            encoding=pe,
            model_kwargs=o.pairs(model_kwarg, "--model-kwarg"),
            tower=tower,
            trace=trace,
            resolution=res,
            target=target,
            progress=console,
        )
    if as_json:
        return Outcome(report.model_dump_json(by_alias=True, indent=2))
    return Outcome("\n".join(lines_of(report, everything=level > 0)))


def lines_of(report: InspectReport, *, everything: bool = False) -> Iterator[str]:
    """The report for people, one fact per line."""
    positions = report.positions
    yield f"{report.subject}  {report.kind}"
    yield _row("encoding", f"{positions.encoding or 'none found'}  ({positions.certainty})")
    shown = positions.evidence if everything else positions.evidence[:_SHOWN]
    for e in shown:
        shape = "" if e.shape is None else f"  [{', '.join(map(str, e.shape))}]"
        times = "" if e.count == 1 else f"  x{e.count}"
        yield _row("", f"{e.kind}: {e.where}{shape}{times}{'  ' if e.says else ''}{e.says}")
    yield from _more(len(positions.evidence) - len(shown))
    if positions.grid is not None:
        prefix = "" if positions.prefix_tokens is None else f", {positions.prefix_tokens} prefix"
        yield _row("grid", f"{_by(positions.grid)} patches{prefix}")
    for k, text in enumerate(_sizes(report.sizes)):
        yield _row("" if k else "sizes", text)
    blocks = "" if report.blocks is None else f"{report.blocks} blocks, "
    yield _row("network", f"{blocks}{report.parameters:,} parameters")
    yield _row("outputs", ", ".join(report.outputs))
    fusing = report.fusing
    words = f"{fusing.attention} of one node each"
    words += f", {fusing.by_hand} spelled by hand" if fusing.by_hand else ""
    yield _row("attention", words)
    for record in fusing.passes:
        yield _row("", f"pass {record.name} changes {record.changed}")
        for refusal in record.refused if everything else record.refused[:_SHOWN]:
            yield _row("", f"  left {refusal.node}: {refusal.reason}")
    wrong = report.openvino.reasons
    yield _row("OpenVINO", "WRONG" if wrong and report.file else _fine(report))
    for reason in wrong if everything else wrong[:_SHOWN]:
        yield _row("", reason)
    if report.file is not None:
        yield from _file(report.file, everything=everything)


def _fine(report: InspectReport) -> str:
    if report.openvino.wrong:
        return "wrong with other exporters, right with this one"
    return "nothing known to come out wrong"


def _sizes(sizes: Sizes) -> Iterator[str]:
    if sizes.longest is not None:
        yield f"texts of up to {sizes.longest} tokens"
    if sizes.native is not None:
        yield f"native {_by(sizes.native)}"
    if sizes.buckets:
        yield f"buckets {', '.join(map(_by, sizes.buckets))}, one weights file"
    elif sizes.fixed is not None:
        yield f"{_by(sizes.fixed)} only: {sizes.fixed_reason}"
    elif sizes.divisor is not None:
        what = f" ({sizes.reason})" if sizes.reason else ""
        rest = {"refuses": "refused", "floors": "floored", "pads": "padded"}
        other = "" if sizes.remainder is None else f"; others are {rest[sizes.remainder]}"
        any_size = sizes.divisor == (1, 1)
        yield f"{'any' if any_size else f'multiples of {_by(sizes.divisor)}'}{what}{other}"
    if sizes.least is not None:
        yield f"at least {_by(sizes.least)}"
    if sizes.square:
        yield f"squares only: {sizes.square}"
    if sizes.dynamic:
        yield "dynamic: yes"
    elif sizes.not_dynamic and sizes.fixed is None:
        yield f"dynamic: no, {sizes.not_dynamic}"


def _file(facts: FileFacts, *, everything: bool) -> Iterator[str]:
    opsets = ", ".join(f"{domain or 'onnx'} {n}" for domain, n in facts.opsets.items())
    if facts.format == "openvino":
        opsets = ", ".join(facts.opsets)
    yield _row("file", f"{', '.join(facts.files)}  {facts.size_bytes / 1e6:.1f} MB  {opsets}")
    note = f" ({facts.manifest_note})" if facts.manifest_note else ""
    yield _row("manifest", f"{facts.manifest}{note}")
    if facts.bundle_cases is not None:
        yield _row("bundle", f"{facts.bundle_cases} stored cases of PyTorch's outputs")
    for t in (*facts.inputs, *facts.outputs):
        shape = "?" if t.shape is None else f"[{', '.join(map(str, t.shape))}]"
        yield _row("input" if t in facts.inputs else "output", f"{t.name} {shape} {t.dtype}")
    for d in facts.symbolic:
        yield _row("symbolic", _dimension(d))
    counts = list(facts.operators.items())
    shown = counts if everything else counts[:12]
    yield _row("operators", _joined(shown) + ("" if shown == counts else ", ..."))
    yield _row("weights", ", ".join(facts.weight_dtypes))
    words = {True: "yes", False: "no", None: "not claimed"}
    for c in facts.consumers:
        reasons = f": {'; '.join(c.reasons)}" if c.reasons else ""
        yield _row("runs in", f"{c.name}  {words[c.runs]}{reasons}")


def _dimension(d: Dimension) -> str:
    bounds = ""
    if d.low is not None:
        bounds = f"  {d.low} to {'any' if d.high is None else d.high}"
        bounds += f" by {d.step}" if d.step not in (None, 1) else ""
    by = f", outside refused by {d.enforced_by}" if d.enforced_by else ""
    return f"{d.input}[{d.axis}] {d.name or ''}{bounds}{by}"


def _joined(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{kind} {n}" for kind, n in counts)


def _more(count: int) -> Iterator[str]:
    if count > 0:
        yield _row("", f"and {count} more (-v shows them)")


def _row(head: str, text: str) -> str:
    return f"  {head:<{_HEAD}}{text}".rstrip()


def _by(pair: tuple[int, int]) -> str:
    return f"{pair[0]}x{pair[1]}"
