"""The reference runtime: values, threads, modes."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import nn

from vitpe_deploy.errors import MissingExtraError, UsageError
from vitpe_deploy.runtimes import TensorInfo
from vitpe_deploy.runtimes.torch_eager import TorchRuntime


def test_values_names_and_inference_mode() -> None:
    modes: list[bool] = []

    def forward(x: torch.Tensor) -> dict[str, torch.Tensor]:
        modes.append(torch.is_inference_mode_enabled())
        return {"double": 2 * x, "mean": x.mean(dim=(1, 2, 3))}

    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    with TorchRuntime(forward, threads=1) as runtime:
        got = runtime.run({"pixel_values": x})
    assert modes == [True]
    assert list(got) == ["double", "mean"]
    np.testing.assert_array_equal(got["double"], 2 * x)
    np.testing.assert_allclose(got["mean"], x.mean(axis=(1, 2, 3)), rtol=1e-5)


def test_the_callers_array_is_never_changed() -> None:
    x = np.ones((1, 3, 2, 2), dtype=np.float32)
    x.flags.writeable = False
    with TorchRuntime(lambda t: t.add_(1), output_names=("y",)) as runtime:
        np.testing.assert_array_equal(runtime.run({"pixel_values": x})["y"], x + 1)
    assert (x == 1).all()


def test_module_with_output_names() -> None:
    linear = nn.Linear(4, 2).eval()
    x = np.ones((3, 4), dtype=np.float32)
    with TorchRuntime(
        linear, "features", output_names=("logits",), input_shape=("batch", 4), threads=1
    ) as runtime:
        assert runtime.inputs == (TensorInfo("features", ("batch", 4), "float32"),)
        got = runtime.run({"features": x})["logits"]
        with pytest.raises(UsageError, match=r"\[3, 5\], the model takes \[batch, 4\]"):
            runtime.run({"features": np.ones((3, 5), dtype=np.float32)})
    expected = (torch.from_numpy(x) @ linear.weight.T + linear.bias).detach().numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("fails", [False, True])
def test_thread_count_is_set_inside_and_restored(fails: bool) -> None:
    before = torch.get_num_threads()
    wanted = 1 if before != 1 else 2
    inside: list[int] = []

    def forward(x: torch.Tensor) -> torch.Tensor:
        inside.append(torch.get_num_threads())
        if fails:
            raise ValueError("inside the model")
        return x

    x = np.zeros((1, 3, 1, 1), dtype=np.float32)
    runtime = TorchRuntime(forward, output_names=("y",), threads=wanted)
    if fails:
        with pytest.raises(ValueError, match="inside the model"), runtime:
            runtime.run({"pixel_values": x})
    else:
        with runtime:
            runtime.run({"pixel_values": x})
            assert runtime.info.threads == wanted
    assert inside == [wanted]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("dtype", "word"), [(torch.float32, "f32"), (torch.bfloat16, "bf16")])
def test_info_and_bfloat16_outputs(dtype: torch.dtype, word: str) -> None:
    linear = nn.Linear(2, 2).to(dtype).eval()
    calls = TorchRuntime(linear, output_names=("y",), input_shape=(1, 2))
    with calls as runtime:
        assert (runtime.info.runtime, runtime.info.precision_executed) == ("torch", word)
        assert torch.__version__.startswith(runtime.info.version)
    values = torch.tensor([[1.5, -2.0]], dtype=dtype)
    with TorchRuntime(lambda _: values, output_names=("y",), input_shape=(1,)) as runtime:
        got = runtime.run({"pixel_values": np.zeros(1, dtype=np.float32)})["y"]
    np.testing.assert_array_equal(got, np.array([[1.5, -2.0]], dtype=np.float32))


def test_training_mode_is_refused() -> None:
    with pytest.raises(UsageError, match="training mode"):
        TorchRuntime(nn.Dropout(0.5))


def test_output_names_must_match_in_number() -> None:
    x = np.zeros((1, 3, 1, 1), dtype=np.float32)
    with (
        TorchRuntime(lambda t: (t, t), output_names=("only",)) as runtime,
        pytest.raises(UsageError, match="returned 2 tensors for 1 output names"),
    ):
        runtime.run({"pixel_values": x})


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = TorchRuntime(lambda t: t)
    monkeypatch.setitem(sys.modules, "torch", None)  # type: ignore[arg-type]
    with pytest.raises(MissingExtraError) as got, runtime:
        pass
    assert "vitpe-deploy[export]" in got.value.hint
