"""Files that plain ``torch.onnx.export`` wrote at one size, brought to others.

    python benchmarks/foreign.py [--only NAME] [--keep DIR]

Shallow networks of timm, transformers and torchvision with positions that matter are exported the
plain way, by both of torch's exporters, at 224x224; then ``vitpe-export FILE.onnx`` makes a static
file of another shape and one of any size. A cell is the verdict with the largest difference to the
original (its graph, tables resampled by PyTorch, where that cannot run at the size), or the
refusal. Prints a table; exits 1 when a cell is wrong or crashes. Refusals are answers.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import vitpe_deploy
from vitpe_deploy.errors import SizeError, UnsupportedError, UsageError, VitpeError

NATIVE = 224
SMALL = {"embed_dim": 48, "depth": 2, "num_heads": 3}
HIDDEN = {
    "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96,
}  # fmt: skip
EXPORTERS = ("dynamo", "torchscript")


class FirstOutput(nn.Module):
    """A network of transformers that gives one tensor."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, C, H, W] to tokens [B, N, D]."""
        tokens: torch.Tensor = self.network(x).last_hidden_state
        return tokens


def from_timm(name: str, **kwargs: Any) -> nn.Module:
    """A shallow network of timm."""
    import timm

    network: nn.Module = timm.create_model(name, pretrained=False, **kwargs)
    return network


def from_transformers(kind: str, **config: Any) -> nn.Module:
    """A shallow network of transformers."""
    import transformers

    made = getattr(transformers, f"{kind}Config")(image_size=NATIVE, **HIDDEN, **config)
    return FirstOutput(getattr(transformers, f"{kind}Model")(made))


def from_torchvision() -> nn.Module:
    """torchvision's ViT; its head starts as zeros."""
    from torchvision.models import VisionTransformer

    network: nn.Module = VisionTransformer(NATIVE, 16, 2, 3, 48, 96, num_classes=7)
    nn.init.normal_(network.get_parameter("heads.head.weight"))
    return network


NETWORKS: Mapping[str, tuple[Callable[[], nn.Module], int]] = {
    "timm ViT": (lambda: from_timm("vit_tiny_patch16_224", **SMALL), 16),
    "timm DeiT, distilled": (lambda: from_timm("deit_tiny_distilled_patch16_224", **SMALL), 16),
    "timm DINOv2": (lambda: from_timm("vit_small_patch14_dinov2", img_size=NATIVE, **SMALL), 14),
    "timm DINOv2, registers": (
        lambda: from_timm("vit_small_patch14_reg4_dinov2", img_size=NATIVE, **SMALL), 14,
    ),
    "timm SigLIP": (lambda: from_timm("vit_base_patch16_siglip_224", **SMALL), 16),
    "timm BEiT": (lambda: from_timm("beit_base_patch16_224", **SMALL), 16),
    "timm EVA-02": (lambda: from_timm("eva02_tiny_patch14_224", **SMALL), 14),
    "timm DINOv3": (lambda: from_timm("vit_small_patch16_dinov3", img_size=NATIVE, **SMALL), 16),
    "timm Swin": (
        lambda: from_timm(
            "swin_tiny_patch4_window7_224", embed_dim=24, depths=(2, 2), num_heads=(2, 3)
        ),
        32,
    ),
    "torchvision ViT": (from_torchvision, 16),
    "transformers ViT": (lambda: from_transformers("ViT"), 16),
    "transformers DINOv2": (lambda: from_transformers("Dinov2", patch_size=14), 14),
    "transformers SigLIP": (lambda: from_transformers("SiglipVision", patch_size=16), 16),
    "transformers CLIP": (lambda: from_transformers("CLIPVision", patch_size=32), 32),
}  # fmt: skip


def with_positions(network: nn.Module) -> nn.Module:
    """Tables drawn with standard deviation 0.5, so that a misplaced one shows."""
    for name, parameter in network.named_parameters():
        if "pos" in name or "bias_table" in name:
            nn.init.normal_(parameter, std=0.5)
    return network.eval().requires_grad_(False)


def plain_file(network: nn.Module, exporter: str, path: Path) -> str | None:
    """Export as a user without this package would. Gives what went wrong."""
    x = torch.zeros(1, 3, NATIVE, NATIVE)
    quiet = io.StringIO()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(quiet):
            warnings.simplefilter("ignore")
            torch.onnx.export(network, (x,), str(path), dynamo=exporter == "dynamo")
    except Exception as problem:  # torch's exporters share no base class of errors
        return f"no file: {str(problem).splitlines()[0][:80]}"
    finally:
        logging.disable(logging.NOTSET)
    return None


def cell(path: Path, folder: Path, **asked: Any) -> tuple[str, bool]:
    """What becomes of a file, and whether that is an answer."""
    try:
        report = vitpe_deploy.export(path, output_dir=folder, force=True, threads=1, **asked)
    except (UnsupportedError, SizeError, UsageError) as error:
        return f"refused: {error.message}", True
    except VitpeError as error:
        return f"{type(error).__name__}: {error.message[:110]}", False
    worst = max((row.max_rel for row in report.parity if row.max_rel is not None), default=None)
    shown = "none" if worst is None else f"{worst:.0e}"
    return f"{report.verdict} {shown}", report.verdict == "passed"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table. Gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=tuple(NETWORKS), help="repeatable")
    parser.add_argument("--keep", type=Path, help="a folder that keeps all files")
    options = parser.parse_args(argv)
    good = True
    sys.stdout.write("| network | exporter | another shape | dynamic size |\n|---|---|---|---|\n")
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        for name in options.only or NETWORKS:
            make, patch = NETWORKS[name]
            torch.manual_seed(0)
            network = with_positions(make())
            for exporter in EXPORTERS:
                path = folder / f"{name.replace(' ', '-').replace(',', '')}-{exporter}.onnx"
                problem = plain_file(network, exporter, path)
                shape = NATIVE // patch * patch - 2 * patch, NATIVE // patch * patch + patch
                found = [(problem, True)] * 2 if problem else [
                    cell(path, folder / "out", resolution=shape),
                    cell(path, folder / "out", dynamic="size"),
                ]  # fmt: skip
                good = good and all(answered for _, answered in found)
                row = " | ".join([name, exporter, *(str(text) for text, _ in found)])
                sys.stdout.write(f"| {row} |\n")
                sys.stdout.flush()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
