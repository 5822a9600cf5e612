"""Exports of tiny networks and the engines that run them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitpe_deploy.runtimes.openvino import shared_core

Array = NDArray[Any]


@dataclass(frozen=True)
class Engines:
    """One exported file, opened in both engines."""

    model: onnx.ModelProto
    runners: Mapping[str, Callable[[Array], list[Array]]]

    @property
    def operators(self) -> set[str]:
        """Operator names of the graph and its functions."""
        nodes = [*self.model.graph.node, *(n for f in self.model.functions for n in f.node)]
        return {node.op_type for node in nodes}

    def differences(self, inputs: Tensor, expected: list[Tensor]) -> dict[str, float]:
        """Largest difference of any output, relative to its largest value, per engine."""
        found = {}
        for name, run in self.runners.items():
            outputs = run(inputs.numpy())
            assert len(outputs) == len(expected)
            found[name] = 0.0
            for got, want in zip(outputs, expected, strict=True):
                assert list(got.shape) == list(want.shape), (name, got.shape, want.shape)
                scale = want.abs().max().item()
                error = float(np.abs(got - want.numpy()).max()) / scale
                found[name] = max(found[name], error)
        return found


@pytest.fixture
def forbidden() -> set[str]:
    """Operators that no exported position needs."""
    return {"Resize", "Upsample", "Loop", "If", "Scan", "ScatterND", "ScatterElements"}


@pytest.fixture
def export() -> Callable[..., Engines]:
    """``export(module, example, dynamic={0: "batch", ...})`` -> :class:`Engines`."""

    def run(
        module: nn.Module, example: Tensor, dynamic: Mapping[int, str] | None = None
    ) -> Engines:
        import onnxruntime

        shapes = {axis: torch.export.Dim.DYNAMIC for axis in dynamic or {}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about its own internals
            program = torch.onnx.export(
                module,
                (example,),
                dynamo=True,
                opset_version=20,
                dynamic_shapes=(shapes,) if shapes else None,
                verbose=False,
            )
        assert program is not None
        model = program.model_proto
        data = model.SerializeToString()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 2
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        compiled = shared_core().compile_model(
            shared_core().read_model(data),
            "CPU",
            {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 2},
        )
        name = session.get_inputs()[0].name
        return Engines(
            model,
            {
                "onnxruntime": lambda x: session.run(None, {name: x}),
                "openvino": lambda x: list(compiled([x]).values()),
            },
        )

    return run
