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
from vitpe_deploy.sources.weights import (
    StateDict,
    class_count,
    load_checkpoint,
    load_into,
    read_state_dict,
)

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


@pytest.mark.parametrize("key", ["student", "model_state_dict", "ema_state_dict"])
def test_more_wrappers(tmp_path: Path, key: str) -> None:
    path = tmp_path / "w.pt"
    torch.save({"epoch": 3, key: TENSORS}, path)
    state = read_state_dict(path)
    assert state.unwrapped == (key,)
    assert _same(state.tensors)


def test_an_average_comes_before_the_last_step_and_a_teacher_before_its_student(
    tmp_path: Path,
) -> None:
    path = tmp_path / "w.pt"
    zeros = {k: torch.zeros_like(v) for k, v in TENSORS.items()}
    for first, second in (("model_ema", "model"), ("teacher", "student")):
        torch.save({second: zeros, first: TENSORS}, path)
        assert _same(read_state_dict(path).tensors)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_reported(tmp_path: Path, dtype: torch.dtype) -> None:
    path = tmp_path / "w.pt"
    torch.save({"model": {k: v.to(dtype) for k, v in TENSORS.items()}}, path)
    net = _Net()
    origin = load_checkpoint(net, path)
    name = str(dtype).removeprefix("torch.")
    assert origin == f"from w.pt, unwrapped model, {name} read as float32"
    assert all(torch.equal(v, TENSORS[k].to(dtype).float()) for k, v in net.state_dict().items())


def test_lora_that_was_not_merged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    base = {f"base_model.model.{k}".replace("a.w", "a.base_layer.w"): v for k, v in TENSORS.items()}
    lora = {
        "base_model.model.a.lora_A.default.weight": torch.zeros(2, 3),
        "base_model.model.a.lora_B.default.weight": torch.zeros(2, 2),
    }
    torch.save({**base, **lora}, path)
    with pytest.raises(SourceError, match="2 LoRA tensors that were not merged") as refused:
        read_state_dict(path)
    assert "merge_and_unload" in refused.value.hint


def test_names_that_peft_leaves_in_a_merged_model(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    first = next(iter(TENSORS))
    owner, _, leaf = first.rpartition(".")
    named = {}
    for key, value in TENSORS.items():
        module, _, last = key.rpartition(".")
        named[f"base_model.model.{module}.base_layer.{last}"] = value
    torch.save(named, path)
    net = _Net()
    assert load_checkpoint(net, path) == "from w.pt, unwrapped base_layer, base_model.model."
    assert _same(net.state_dict())
    named = {f"base_model.model.{k}": v for k, v in TENSORS.items() if k != first}
    head = f"base_model.model.{owner}"
    named[f"{head}.original_module.{leaf}"] = torch.zeros_like(TENSORS[first])
    named[f"{head}.modules_to_save.default.{leaf}"] = TENSORS[first]
    torch.save(named, path)
    net = _Net()
    assert load_checkpoint(net, path) == "from w.pt, unwrapped modules_to_save, base_model.model."
    assert _same(net.state_dict())


def test_the_head_of_the_file_says_how_many_classes() -> None:
    net = _Net()
    last = [n for n, m in net.named_modules() if isinstance(m, nn.Linear)][-1]
    columns = net.get_submodule(last).weight.shape[1]
    given = {**TENSORS, f"{last}.weight": torch.zeros(7, columns)}
    assert class_count({f"module.{k}": v for k, v in given.items()}, net) == 7
    assert class_count(TENSORS, net) is None
    assert class_count({}, net) is None
