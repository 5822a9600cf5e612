"""Shared by the tests of encodings: exports at any size, run in both engines.

``export_dynamic`` takes a function of h and w, for one encoding or resampling rule alone. The
fixtures below it put an encoding into a tiny ViT.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch
from torch import Tensor, nn

from vitpe_deploy.encodings.base import (
    Grid,
    PositionEncoding,
    Positions,
    resolve_encodings,
)
from vitpe_deploy.models.presets import ViTConfig
from vitpe_deploy.models.vit import VisionTransformer
from vitpe_deploy.runtimes import open_runtime

NATIVE: Grid = (6, 6)
GRIDS: tuple[Grid, ...] = ((6, 6), (4, 4), (9, 9), (5, 8), (8, 3))
"""Native, smaller, larger, wide, tall."""

PATCH = 4
TRACE_GRID: Grid = (7, 9)
FORBIDDEN = {"Resize", "Loop", "If", "ScatterND", "Scan", "ScatterElements"}
ENGINES = ("onnxruntime", "openvino")
INPUT = "x"

torch.set_num_threads(2)

Array = npt.NDArray[np.float32]
BuildViT = Callable[..., VisionTransformer]


# Files and engines


def export_file(module: nn.Module, x: Tensor, path: Path, dynamic_axes: tuple[int, ...]) -> None:
    """Trace ``module(x)``; the named axes of x stay symbolic."""
    torch.onnx.export(
        module.eval().requires_grad_(False),
        (x,),
        path,
        dynamo=True,
        dynamic_shapes=(dict.fromkeys(dynamic_axes, torch.export.Dim.AUTO),),
        input_names=[INPUT],
        verbose=False,
        external_data=False,
    )


def operators(path: Path) -> Counter[str]:
    """How often each operator stands in a file."""
    model = onnx.load(path)
    graphs = [model.graph, *model.functions]
    return Counter(node.op_type for graph in graphs for node in graph.node)


def run_everywhere(path: Path, inputs: list[Tensor]) -> Mapping[str, list[Array]]:
    """The only output of a file for each input, by engine."""
    results: dict[str, list[Array]] = {}
    for engine in ENGINES:
        with open_runtime(engine, path, threads=2) as runtime:
            outputs = [runtime.run({INPUT: x.numpy()}) for x in inputs]
            results[engine] = [next(iter(output.values())) for output in outputs]
    return results


class _OfSize(nn.Module):
    """A function of h and w as a module that reads them from a picture [1, h, w]."""

    def __init__(self, function: Callable[[int, int], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """x: [1, h, w] -> what the function gives."""
        return self.function(x.shape[1], x.shape[2])


@dataclass(frozen=True)
class DynamicGraph:
    """An exported function of h and w."""

    path: Path
    operators: Counter[str]

    def __call__(self, h: int, w: int) -> dict[str, Array]:
        """Its value by engine."""
        return {
            name: got[0] for name, got in run_everywhere(self.path, [torch.zeros(1, h, w)]).items()
        }


@pytest.fixture
def export_dynamic(tmp_path: Path) -> Callable[[Callable[[int, int], Tensor]], DynamicGraph]:
    """A function of h and w as a file: ``graph(h, w)`` and ``graph.operators``."""

    def export(function: Callable[[int, int], Tensor]) -> DynamicGraph:
        path = tmp_path / "function.onnx"
        export_file(_OfSize(function), torch.zeros(1, *TRACE_GRID), path, (1, 2))
        return DynamicGraph(path, operators(path))

    return export


# A tiny network


def build_vit(name: str, **params: Any) -> VisionTransformer:
    """Embed 32, depth 2, 2 heads, patch 4, image 24, cls and one register token; same every time.

    Names of :class:`ViTConfig` go to the network, all others to the encoding.
    """
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=(NATIVE[0] * PATCH, NATIVE[1] * PATCH),
        patch_size=PATCH,
        embed_dim=32,
        depth=2,
        num_heads=2,
        num_classes=10,
        register_tokens=1,
        encoding=name,
    )
    network = {key: params.pop(key) for key in list(params) if hasattr(config, key)}
    model = VisionTransformer(replace(config, encoding_params=params, **network))
    return model.eval().requires_grad_(False)


def pixels(grid: Grid, batch: int = 2) -> Tensor:
    """A picture of so many patches, the same every time."""
    generator = torch.Generator().manual_seed(100 * grid[0] + grid[1])
    return torch.randn(batch, 3, grid[0] * PATCH, grid[1] * PATCH, generator=generator)


@pytest.fixture
def tiny_vit() -> BuildViT:
    """:func:`build_vit`."""
    return build_vit


@pytest.fixture
def answers_agree() -> Callable[..., None]:
    """``answers_agree(encoding)``: all three against positions in float64 on five grids.

    torch's own float32 interpolation gets more room than ours: it rounds the sampling points.
    """

    def check(encoding: PositionEncoding, *, atol: float = 1e-5, in_graph: bool = True) -> None:
        with torch.no_grad():
            for grid in GRIDS:
                want = deepcopy(encoding).double().positions(grid)
                assert want, "nothing to compare"
                _assert_close(encoding.positions(grid), want, 4 * atol)
                _assert_close(encoding.fit(grid), want, atol)
                if in_graph:
                    _assert_close(encoding.in_graph(*grid), want, atol)

    return check


def _assert_close(got: Positions, want: Positions, atol: float) -> None:
    assert got.keys() == want.keys()
    for name in want:
        assert got[name].dtype == torch.float32
        assert got[name].shape == want[name].shape, name
        difference = (got[name].double() - want[name]).abs().max().item()
        assert difference <= atol, f"{name} is {difference} off"


@pytest.fixture
def positions_matter() -> Callable[[VisionTransformer], None]:
    """Dropping the positions, or handing over those of another place, moves the logits."""

    def check(model: VisionTransformer) -> None:
        x, encoding = pixels((5, 8)), model.encoding
        want = model(x)
        for spoil in (_dropped, _misplaced):
            spoilt = spoil(encoding.positions((5, 8)))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(encoding, "positions", lambda grid, spoilt=spoilt: spoilt)
                assert (model(x) - want).abs().max() > 1e-2, spoil.__name__

    return check


def _dropped(positions: Positions) -> Positions:
    """No rotation for cos and sin, zero for everything else."""
    return {
        name: torch.ones_like(value) if name.endswith("cos") else torch.zeros_like(value)
        for name, value in positions.items()
    }


def _misplaced(positions: Positions) -> Positions:
    """Every position moved on by three tokens (keys stay, for a bias)."""
    return {name: value.roll(3, dims=-2) for name, value in positions.items()}


@pytest.fixture
def export_matches(tmp_path: Path) -> Callable[..., set[str]]:
    """``export_matches(build)``: batch, H and W symbolic, against the eager model.

    ``build`` is called twice, so that the referee is never the module that was traced. Returns
    the operators of the file.
    """

    def check(build: Callable[[], VisionTransformer]) -> set[str]:
        path = tmp_path / "dynamic.onnx"
        model = resolve_encodings(build(), None)
        export_file(model, pixels(TRACE_GRID), path, (0, 2, 3))
        _assert_engines(path, build(), [pixels(NATIVE, 1), pixels((4, 5), 3), pixels((11, 8))])
        return _allowed(path)

    return check


@pytest.fixture
def baked_matches(tmp_path: Path) -> Callable[..., set[str]]:
    """``baked_matches(build, grid)``: positions as constants, against the eager model."""

    def check(build: Callable[[], VisionTransformer], grid: Grid) -> set[str]:
        path = tmp_path / "static.onnx"
        export_file(resolve_encodings(build(), grid), pixels(grid), path, ())
        _assert_engines(path, build(), [pixels(grid)])
        return _allowed(path)

    return check


def _assert_engines(path: Path, eager: VisionTransformer, inputs: list[Tensor]) -> None:
    expected = [eager(x).numpy() for x in inputs]
    for engine, outputs in run_everywhere(path, inputs).items():
        for want, got in zip(expected, outputs, strict=True):
            max_rel = np.abs(got - want).max() / np.abs(want).max()
            assert max_rel <= 1e-4, f"{engine} at batch {len(want)}: {max_rel}"


def _allowed(path: Path) -> set[str]:
    found = set(operators(path))
    assert not FORBIDDEN & found, FORBIDDEN & found
    return found
