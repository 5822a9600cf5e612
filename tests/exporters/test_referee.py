"""Does the proof notice? Each test breaks one thing on purpose and expects a failed verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import vitpe_deploy
from tests.exporters.conftest import MODEL, TINY
from vitpe_deploy.encodings.learned_1d import Learned1D
from vitpe_deploy.errors import VitpeError
from vitpe_deploy.request import Resolution
from vitpe_deploy.sources.reference import ReferenceModel

NATIVE_GRID = (6, 6)


def export(folder: Path, size: object = (64, 160), **options: object) -> object:
    return vitpe_deploy.export(MODEL, size, model_kwargs=TINY, output_dir=folder, **options)  # type: ignore[arg-type]


def test_table_that_is_not_resampled_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crop(self: Learned1D, grid: tuple[int, int]) -> dict[str, torch.Tensor]:
        rows = grid[0] * grid[1]
        return {"table": self.table.repeat(1, 3, 1)[:, : 1 + rows]}

    monkeypatch.setattr(Learned1D, "fit", crop)
    assert export(tmp_path).verdict == "failed"


def test_swapped_height_and_width_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Learned1D.fit

    def turned(self: Learned1D, grid: tuple[int, int]) -> dict[str, torch.Tensor]:
        return right(self, (grid[1], grid[0]))

    monkeypatch.setattr(Learned1D, "fit", turned)
    assert export(tmp_path).verdict == "failed"


def test_file_of_another_size_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import exporters.pipeline as pipeline

    right = pipeline.trace

    def native(loaded: Any, module: nn.Module, **options: Any) -> object:
        size = options["size"] = Resolution(96, 96)
        return right(loaded, loaded.explicit(size), **options)

    monkeypatch.setattr(pipeline, "trace", native)
    with pytest.raises(VitpeError, match="96"):
        export(tmp_path)
    assert not list(tmp_path.rglob("*.onnx"))


def test_reference_is_never_the_module_that_was_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A patched module that agrees with its own file must still fail against the original."""
    right = ReferenceModel.explicit

    def patched(self: ReferenceModel, size: Resolution | None) -> nn.Module:
        module = right(self, size)
        with torch.no_grad():
            # A new parameter: the pristine one is shared and must stay as it is.
            norm = module.norm  # type: ignore[union-attr]
            norm.weight = nn.Parameter(norm.weight * 1.01, requires_grad=False)  # type: ignore[union-attr]
        return module

    monkeypatch.setattr(ReferenceModel, "explicit", patched)
    report = export(tmp_path)
    assert report.verdict == "failed"
    assert all(row.max_rel > 1e-4 for row in report.parity)


def test_dynamic_positions_frozen_at_the_traced_grid_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Learned1D.in_graph

    def frozen(self: Learned1D, h: int, w: int) -> dict[str, torch.Tensor]:
        """The rows of the native grid, which are right there, over and over."""
        table = right(self, *NATIVE_GRID)["table"]
        rows = 1 + torch.arange(h * w) % (NATIVE_GRID[0] * NATIVE_GRID[1])
        return {"table": torch.cat([table[:, :1], table[:, rows]], dim=1)}

    monkeypatch.setattr(Learned1D, "in_graph", frozen)
    report = export(tmp_path, None, dynamic="size")
    assert report.verdict == "failed"
    native = [NATIVE_GRID[0] * 16, NATIVE_GRID[1] * 16]
    passed = {tuple(row.resolution) for row in report.parity if row.passed}
    assert passed == {tuple(native)}


@pytest.mark.parametrize("block", [0, 1, 2, 3])
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_layers_names_the_block_whose_weights_were_changed(
    tmp_path_factory: pytest.TempPathFactory, block: int, runtime: str
) -> None:
    folder = tmp_path_factory.mktemp("layers")
    report = vitpe_deploy.export(
        MODEL, 64, model_kwargs={**TINY, "depth": 4}, output_dir=folder, verify=False
    )
    path = Path(report.artifacts[0].path)
    clean = vitpe_deploy.verify(path, layers=True, runtimes=[runtime])
    assert clean.verdict == "passed"
    assert [r.block for r in clean.layers[0].rows] == [0, 1, 2, 3]

    model = onnx.load(path)
    name = f"blocks.{block}.mlp.fc1.bias"
    (tensor,) = [t for t in model.graph.initializer if t.name == name]
    changed = onnx.numpy_helper.to_array(tensor) + 1.0
    tensor.CopyFrom(onnx.numpy_helper.from_array(changed.astype(np.float32), name))
    onnx.save(model, path)
    report = vitpe_deploy.verify(path, layers=True, runtimes=[runtime])
    assert report.verdict == "failed"
    assert report.layers[0].first_failing_block == block
