"""Tiny transformers models on disk, and the engines that run what is exported from them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import vitpe_deploy
from vitpe_deploy.results import ExportReport
from vitpe_deploy.runtimes import open_runtime

Array = NDArray[Any]

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_labels": 5,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "vit": {"config": "ViTConfig", "bare": "ViTModel", "head": "ViTForImageClassification",
            "image_size": 96, "patch_size": 16, "intermediate_size": 64},
    "deit": {"config": "DeiTConfig", "bare": "DeiTModel",
             "head": "DeiTForImageClassificationWithTeacher",
             "image_size": 96, "patch_size": 16, "intermediate_size": 64},
    "dinov2": {"config": "Dinov2Config", "bare": "Dinov2Model",
               "head": "Dinov2ForImageClassification",
               "image_size": 84, "patch_size": 14, "mlp_ratio": 2},
    "dinov2_with_registers": {"config": "Dinov2WithRegistersConfig",
                              "bare": "Dinov2WithRegistersModel",
                              "head": "Dinov2WithRegistersForImageClassification",
                              "image_size": 84, "patch_size": 14, "mlp_ratio": 2,
                              "num_register_tokens": 3},
}  # fmt: skip

RESIZING = {"Resize", "Upsample", "Interpolate"}


def randomise(module: nn.Module, seed: int = 0) -> None:
    """Weights large enough that every part matters; position tables N(0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name or "lambda" in name:
                parameter.copy_(1 + 0.1 * noise if name.endswith(("weight", "lambda1")) else noise)
            else:
                table = "position" in name or "token" in name or "pos_embed" in name
                parameter.copy_(noise if table else 0.2 * noise)


def build(family: str, *, head: bool = False, **options: Any) -> Any:
    """A tiny random network of the transformers library."""
    import transformers

    given = {k: v for k, v in FAMILIES[family].items() if k not in ("config", "bare", "head")}
    config = getattr(transformers, FAMILIES[family]["config"])(**{**SMALL, **given, **options})
    cls = getattr(transformers, FAMILIES[family]["head" if head else "bare"])
    module = cls(config).eval()
    randomise(module)
    return module


def library_forward(module: Any, pixels: Tensor) -> Any:
    """How the library documents a run at any size."""
    flag = {} if "dinov2" in module.config.model_type else {"interpolate_pos_encoding": True}
    with torch.no_grad():
        return module(pixels, **flag)


def pictures(*size: int, batch: int = 1, seed: int = 3) -> Tensor:
    """N(0, 1) pixel values [batch, 3, *size]."""
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(seed))


def max_rel(given: Any, right: Any) -> float:
    """Largest difference over the largest right value; the shapes must be the same."""
    given, right = np.asarray(given), np.asarray(right)
    assert given.shape == right.shape
    return float(np.abs(given - right).max() / np.abs(right).max())


@dataclass(frozen=True)
class Exported:
    """What one export wrote."""

    report: ExportReport

    def path(self, kind: str = "onnx") -> Path:
        return Path(next(a.path for a in self.report.artifacts if a.format == kind))

    @property
    def operators(self) -> set[str]:
        """Operators of all files: ONNX ops and OpenVINO layer types."""
        found: set[str] = set()
        for artifact in self.report.artifacts:
            if artifact.format == "onnx":
                found |= {n.op_type for n in onnx.load(artifact.path).graph.node}
            else:
                layers = ElementTree.parse(artifact.path).iter("layer")
                found |= {str(layer.get("type")) for layer in layers}
        return found

    def input_shape(self) -> list[int | str]:
        dims = onnx.load(self.path()).graph.input[0].type.tensor_type.shape.dim
        return [d.dim_param or d.dim_value for d in dims]

    def engines(self) -> Iterator[tuple[str, Callable[[Tensor], dict[str, Array]]]]:
        """Every file in every engine that takes it, opened once: name, and pixels -> outputs."""
        for artifact in self.report.artifacts:
            names = ("onnxruntime", "openvino") if artifact.format == "onnx" else ("openvino",)
            for name in names:
                with open_runtime(name, Path(artifact.path), device="CPU", threads=2) as runtime:
                    yield (
                        f"{name} {artifact.format}",
                        lambda x, r=runtime: r.run({"pixel_values": x.numpy()}),
                    )

    def run(self, pixels: Tensor) -> Iterator[tuple[str, dict[str, Array]]]:
        """Outputs for one input."""
        for name, engine in self.engines():
            yield name, engine(pixels)


Export = Callable[..., Exported]


@pytest.fixture
def export(tmp_path: Path) -> Export:
    """``vitpe_deploy.export`` into a folder of its own; parity must have passed."""
    count = iter(range(100))

    def run(model: Any, resolution: Any = None, *, passes: bool = True, **options: Any) -> Exported:
        if isinstance(model, Path):
            model = f"hf:{model}"
        folder = tmp_path / f"out{next(count)}"
        report = vitpe_deploy.export(model, resolution, output_dir=folder, threads=2, **options)
        assert not passes or report.verdict == "passed", report.parity
        return Exported(report)

    return run


def save(module: Any, folder: Path) -> Path:
    """A transformers folder of a module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module.save_pretrained(folder)
    return folder


@dataclass
class Kit:
    """The helpers of this file, for tests."""

    root: Path
    randomise = staticmethod(randomise)
    build = staticmethod(build)
    forward = staticmethod(library_forward)
    pictures = staticmethod(pictures)
    max_rel = staticmethod(max_rel)

    def save(self, module: Any, name: str = "tiny") -> Path:
        return save(module, self.root / name)

    def folder(
        self, family: str, *, head: bool = False, name: str = "tiny", **options: Any
    ) -> Path:
        return self.save(build(family, head=head, **options), name)

    def edit(self, folder: Path, **values: Any) -> Path:
        """Change values of a folder's config.json; None removes one."""
        path = folder / "config.json"
        config = {**json.loads(path.read_text()), **values}
        path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
        return folder


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    """Builders of tiny models, saving below the test's own folder."""
    return Kit(tmp_path)
