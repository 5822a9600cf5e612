"""Weight files: what is unwrapped, what is refused, and that nothing in them is executed."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from vitpe_deploy.errors import SourceError
from vitpe_deploy.sources.weights import StateDict, load_into, read_state_dict

TENSORS = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.tensor([7.0, 8.0])}


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 2)


def _same(found: Any) -> bool:
    return set(found) == set(TENSORS) and all(torch.equal(found[k], v) for k, v in TENSORS.items())


def test_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file(TENSORS, path)
    state = read_state_dict(path)
    assert _same(state.tensors)
    assert state.unwrapped == ()


@pytest.mark.parametrize("new_format", [True, False])
def test_torch_files_of_both_formats(tmp_path: Path, new_format: bool) -> None:
    path = tmp_path / "w.pth"
    torch.save(TENSORS, path, _use_new_zipfile_serialization=new_format)
    assert _same(read_state_dict(path).tensors)


@pytest.mark.parametrize(
    ("content", "unwrapped"),
    [
        ({"state_dict": TENSORS, "epoch": 3}, ("state_dict",)),
        ({"model": TENSORS, "optimizer": {"lr": 0.1}}, ("model",)),
        ({"model": {"state_dict": TENSORS}}, ("model", "state_dict")),
        ({"state_dict": {"x": torch.zeros(1)}, "state_dict_ema": TENSORS}, ("state_dict_ema",)),
        ({"student": {"x": torch.zeros(1)}, "teacher": TENSORS}, ("teacher",)),
    ],
)
def test_wrappers(tmp_path: Path, content: Any, unwrapped: tuple[str, ...]) -> None:
    path = tmp_path / "w.pt"
    torch.save(content, path)
    state = read_state_dict(path)
    assert _same(state.tensors)
    assert state.unwrapped == unwrapped


@pytest.mark.parametrize("content", [{"epoch": 3}, {}, [torch.zeros(1)], {"state_dict": {"a": 1}}])
def test_no_state_dict(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "w.pt"
    torch.save(content, path)
    with pytest.raises(SourceError, match="holds no state dict"):
        read_state_dict(path)


def test_missing_and_damaged(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is not a file"):
        read_state_dict(tmp_path / "nothing.pt")
    with pytest.raises(SourceError, match="is not a file"):
        read_state_dict(tmp_path)
    whole = tmp_path / "w.pt"
    torch.save(TENSORS, whole)
    for name, data in (("cut.pt", whole.read_bytes()[:200]), ("empty.pt", b""), ("text.pt", b"hi")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(SourceError, match="is not a checkpoint of plain tensors"):
            read_state_dict(tmp_path / name)
    for data in (b"", b"12345", b"\xff" * 64):
        (tmp_path / "w.safetensors").write_bytes(data)
        with pytest.raises(SourceError, match="is not a safetensors file"):
            read_state_dict(tmp_path / "w.safetensors")


class _Payload:
    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (self.marker,)


@pytest.mark.parametrize("new_format", [True, False])
def test_pickled_code_is_refused_and_not_executed(tmp_path: Path, new_format: bool) -> None:
    marker = tmp_path / "executed"
    path = tmp_path / "evil.pt"
    content = {"a.weight": torch.zeros(2, 3), "extra": _Payload(str(marker))}
    torch.save(content, path, _use_new_zipfile_serialization=new_format)
    with pytest.raises(SourceError, match="plain tensors") as refused:
        read_state_dict(path)
    assert "need code to be executed" in refused.value.hint
    assert not marker.exists()
    torch.load(path, weights_only=False)
    assert marker.exists()  # the payload is a real one


@pytest.mark.parametrize(
    "prefixes", [(), ("module.",), ("backbone.",), ("module.", "_orig_mod."),
                 ("_orig_mod.", "module."), ("model.", "module.", "backbone.")]
)  # fmt: skip
def test_prefixes_in_any_order(prefixes: tuple[str, ...]) -> None:
    net = _Net()
    named = {"".join(prefixes) + k: v for k, v in TENSORS.items()}
    assert load_into(net, StateDict(named, ("model",)), Path("w.pt")) == ("model", *prefixes)
    assert _same(net.state_dict())


def test_a_prefix_that_is_the_models_own_stays() -> None:
    net = nn.Sequential()
    net.add_module("module", _Net())
    named = {f"module.{k}": v for k, v in TENSORS.items()}
    assert load_into(net, StateDict(named, ()), Path("w.pt")) == ()
    assert _same({k.removeprefix("module."): v for k, v in net.state_dict().items()})


def test_half_precision_is_widened() -> None:
    net = _Net()
    load_into(net, StateDict({k: v.half() for k, v in TENSORS.items()}, ()), Path("w.pt"))
    assert net.a.weight.dtype == torch.float32
    assert _same(net.state_dict())


def test_what_does_not_fit_is_listed() -> None:
    net = _Net()
    given = {"a.weight": torch.zeros(3, 3), "b.bias": torch.zeros(2)}
    with pytest.raises(SourceError) as refused:
        load_into(net, StateDict(given, ()), Path("w.pt"))
    assert refused.value.message == (
        "--weights w.pt does not fit the model: missing a.bias; unexpected b.bias; "
        "a.weight is [3, 3], the model has [2, 3]"
    )
    many = StateDict({f"x{k}": torch.zeros(1) for k in range(20)}, ())
    with pytest.raises(SourceError, match=re.escape("; and 14 more")):
        load_into(net, many, Path("w.pt"))
    with pytest.raises(SourceError, match=r"missing a\.weight; missing a\.bias"):
        load_into(net, StateDict({}, ()), Path("w.pt"))
