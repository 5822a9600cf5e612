"""The suite of peers.py, and the files of both sides; each kind is made in a process of its own.

    python benchmarks/peer_files.py MODEL KIND --folder DIR

Kinds: ``plain`` (torch.onnx.export at three opsets, inputs, eager outputs), ``derived`` (those
files through the transformer optimizer of ONNX Runtime and through onnxsim), ``convert``
(openvino.convert_model from torch), ``ours``, ``dynamic``, ``skip:PASS``. Each writes its files and
``KIND.json`` with what it saw; a file that exists is not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OPSETS = (20, 18, 23)
OUR_OPSET = 23
"""The opset at which ONNX Runtime has the fastest attention of short sequences."""

DERIVED_OPSETS = {"quick": (18,), "full": (18, 20, 23)}


@dataclass(frozen=True, slots=True)
class SuiteModel:
    """One network of the suite.

    Attributes:
        model: our MODEL string; networks of timm are built by timm for the peers.
        size: pixels of a side; 0 for text.
        heads: attention heads of the last stage, for the transformer optimizer.
        width: embedding width.
        pooled_by_cls: a plain ViT whose output reads the class token (and distillation) alone.
        bias: attention has a relative bias.
    """

    model: str
    size: int
    heads: int
    width: int
    pooled_by_cls: bool = False
    bias: bool = False


SUITE = {
    "vit-s16-224": SuiteModel("timm:vit_small_patch16_224", 224, 6, 384, pooled_by_cls=True),
    "vit-b16-384": SuiteModel("timm:vit_base_patch16_384", 384, 12, 768, pooled_by_cls=True),
    "dinov2-s14-518": SuiteModel("timm:vit_small_patch14_dinov2", 518, 6, 384, pooled_by_cls=True),
    "deit-s-distilled-224": SuiteModel(
        "timm:deit_small_distilled_patch16_224", 224, 6, 384, pooled_by_cls=True
    ),
    "beit-b16-224": SuiteModel("timm:beit_base_patch16_224", 224, 12, 768, bias=True),
    "swin-t-224": SuiteModel("timm:swin_tiny_patch4_window7_224", 224, 24, 768, bias=True),
    "swinv2-t-256": SuiteModel("timm:swinv2_tiny_window8_256", 256, 24, 768, bias=True),
    "eva02-s14-336": SuiteModel("timm:eva02_small_patch14_336", 336, 6, 384),
    "dinov3-s16-256": SuiteModel("timm:vit_small_patch16_dinov3", 256, 6, 384),
    "clip-text-b32": SuiteModel("text_clip_base", 0, 8, 512),
}


def network(name: str) -> tuple[Any, Any]:
    """The eager network with random weights, as its library builds it, and one input."""
    import torch

    torch.manual_seed(0)
    entry = SUITE[name]
    if entry.size == 0:
        from vitpe_deploy.models.presets import TextConfig
        from vitpe_deploy.models.text import TextTower

        config = TextConfig()
        ids = torch.randint(1, config.vocab_size - 2, (1, config.context_length))
        ids[0, -1] = config.vocab_size - 1
        return TextTower(config).eval(), ids
    import timm

    made = timm.create_model(entry.model.removeprefix("timm:"), pretrained=False)
    return made.eval(), torch.randn(1, 3, entry.size, entry.size)


def make_plain(name: str, folder: Path) -> dict[str, Any]:
    """torch.onnx.export alone. The first export of the process is the one whose time counts."""
    import numpy as np
    import torch

    from vitpe_deploy.bench.inputs import save_expected, save_inputs

    net, x = network(name)
    found: dict[str, Any] = {
        "weights_bytes": sum(p.numel() * p.element_size() for p in net.parameters()),
        "gradients": "on",
    }
    import onnxscript  # noqa: F401  imported before the clock starts, as in the other process

    for opset in OPSETS:
        options = {"dynamo": True, "opset_version": opset, "verbose": False}
        names = {"input_names": ["x"], "output_names": ["y"]}
        start = time.perf_counter()
        try:
            program = torch.onnx.export(net, (x,), **options, **names)
        except Exception:  # learnable biases that ask for gradients: see the tracer's own notes
            net.requires_grad_(False)
            found["gradients"] = "off"
            start = time.perf_counter()
            program = torch.onnx.export(net, (x,), **options, **names)
        seconds = time.perf_counter() - start
        program.save(str(folder / f"opset{opset}.onnx"))
        found[f"opset{opset}"] = {"export_s": seconds}
    generator = torch.Generator().manual_seed(1)
    other = (
        x.flip(0).roll(3, -1)
        if name == "clip-text-b32"
        else torch.randn(x.shape, generator=generator)
    )
    inputs = [x.numpy(), np.ascontiguousarray(other.numpy())]
    with torch.inference_mode():
        outputs = [{"y": net(torch.tensor(v)).numpy()} for v in inputs]
    save_inputs(folder / "inputs.npz", inputs)
    save_expected(folder / "expected.npz", outputs)
    found["output_shape"] = list(outputs[0]["y"].shape)
    return found


def make_derived(name: str, folder: Path, effort: str) -> dict[str, Any]:
    """Plain files through two optimizers; what one cannot do is a row with its reason."""
    import onnx
    import onnxsim
    from onnxruntime.transformers.optimizer import optimize_model

    entry = SUITE[name]
    found: dict[str, Any] = {}
    for opset in DERIVED_OPSETS[effort]:
        plain = folder / f"opset{opset}.onnx"

        def optimizer(plain: Path = plain, opset: int = opset) -> None:
            kind = "vit" if entry.size else "clip"
            made = optimize_model(
                str(plain), model_type=kind, num_heads=entry.heads, hidden_size=entry.width
            )
            made.save_model_to_file(str(folder / f"opset{opset}-ortopt.onnx"))

        def simplifier(plain: Path = plain, opset: int = opset) -> None:
            made, good = onnxsim.simplify(onnx.load(str(plain)))
            if not good:
                raise ValueError("onnxsim's own check failed")
            onnx.save(made, str(folder / f"opset{opset}-sim.onnx"))

        for label, work in (("ortopt", optimizer), ("sim", simplifier)):
            found[f"opset{opset}-{label}"] = _tried(work)
    return found


def _tried(work: Callable[[], None]) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        work()
    except Exception as problem:  # a peer that fails is reported, not hidden
        return {"problem": f"{type(problem).__name__}: {str(problem)[:160]}"}
    return {"seconds": time.perf_counter() - start}


def make_convert(name: str, folder: Path) -> dict[str, Any]:
    """openvino.convert_model straight from torch, float32 weights kept."""
    from vitpe_deploy.runtimes.openvino import import_openvino

    ov = import_openvino()
    net, x = network(name)
    net.requires_grad_(False)

    def work() -> None:
        made = ov.convert_model(net, example_input=x, input=[list(x.shape)])
        made.outputs[0].get_tensor().set_names({"y"})
        made.get_results()[0].set_friendly_name("y")
        ov.save_model(made, str(folder / "convert.xml"), compress_to_fp16=False)

    return {"convert": _tried(work)}


def make_ours(name: str, folder: Path, kind: str) -> dict[str, Any]:
    """Our files: ``.onnx`` first, in a fresh process, because its time is compared."""
    import vitpe_deploy
    from vitpe_deploy.manifest import read_manifest
    from vitpe_deploy.own_exporters import require_exporters

    entry = SUITE[name]
    word, _, skipped = kind.partition(":")
    require_exporters()
    found: dict[str, Any] = {}
    # Only the time of our own static file is compared; for the others one trace serves both.
    apart = word == "ours"
    for forms in (("onnx",), ("openvino",)) if apart else (("onnx", "openvino"),):
        report = vitpe_deploy.export(
            entry.model,
            entry.size or None,
            dynamic=("size" if entry.size else "length") if word == "dynamic" else "none",
            formats=forms,
            opset=OUR_OPSET,
            skip_passes=(skipped,) if skipped else (),
            verify=apart,
            output_dir=folder / kind.replace(":", "-"),
            force=True,
        )
        steps = report.steps_s.model_dump()
        for artifact in report.artifacts:
            path = Path(artifact.path).resolve()
            found[artifact.format] = {
                "path": str(path),
                "size_bytes": artifact.size_bytes,
                "export_s": sum(v for k, v in steps.items() if k not in ("load", "parity")),
                "steps_s": steps,
                "max_rel": {row.runtime: row.max_rel for row in report.parity},
                "passes": {p.name: p.changed for p in report.passes if p.artifact == artifact.path},
                "output_shapes": [list(o.shape) for o in read_manifest(path).outputs],
            }
    return found


def make(name: str, kind: str, folder: Path, effort: str) -> dict[str, Any]:
    """Files of one kind; what cannot be made is ``{"problem": why}``."""
    try:
        if kind == "plain":
            return make_plain(name, folder)
        if kind == "derived":
            return make_derived(name, folder, effort)
        if kind == "convert":
            return make_convert(name, folder)
        return make_ours(name, folder, kind)
    except Exception as problem:
        lines = str(problem).strip().splitlines() or [""]
        return {"problem": f"{type(problem).__name__}: {lines[0][:300]}"}


def serve_torch(name: str, how: str, text: str) -> int:
    """A timed child of the eager or the compiled network."""
    import torch

    from vitpe_deploy.bench.child import serve
    from vitpe_deploy.bench.protocol import ChildSpec
    from vitpe_deploy.runtimes.torch_eager import TorchRuntime

    spec = ChildSpec.from_document(json.loads(text))
    net, x = network(name)
    run = torch.compile(net) if how == "compile" else net
    dtype = str(x.dtype).removeprefix("torch.")
    runtime = TorchRuntime(
        run,
        "x",
        threads=spec.threads,
        output_names=("y",),
        input_shape=tuple(x.shape),
        input_dtype=dtype,
    )
    return serve(spec, runtime)


def main() -> int:
    """One process of peers.py."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", choices=tuple(SUITE))
    parser.add_argument("kind")
    parser.add_argument("--folder", type=Path, default=Path("."))
    parser.add_argument("--effort", choices=tuple(DERIVED_OPSETS), default="full")
    parser.add_argument("spec", nargs="?", help="of a timed child: kinds eager and compile")
    args = parser.parse_args()
    if args.kind in ("eager", "compile"):
        return serve_torch(args.model, args.kind, args.spec)
    args.folder.mkdir(parents=True, exist_ok=True)
    found = make(args.model, args.kind, args.folder, args.effort)
    target = args.folder / f"{args.kind.replace(':', '-')}.json"
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps(found, indent=1))
    os.replace(partial, target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
