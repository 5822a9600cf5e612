"""Triton's repository, read with the server's own message definition."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from vitpe_deploy.inputs import TextInput
from vitpe_deploy.layouts import ServedModel, layout_of
from vitpe_deploy.layouts.triton import config
from vitpe_deploy.manifest import Manifest, TensorRecord


def _parsed(manifest: Manifest) -> Any:
    """Unknown fields and wrong types are errors of the parser."""
    return text_format.Parse(config(ServedModel.of(manifest)), model_config_pb2.ModelConfig())


def test_a_static_file_takes_its_own_batch(manifest: Callable[..., Manifest]) -> None:
    parsed = _parsed(manifest())
    assert parsed.name == "vit-rope-2d-64x96-fp32"
    assert parsed.default_model_filename == "vit+rope-2d-64x96-fp32.onnx"
    assert parsed.backend == "onnxruntime"
    assert parsed.max_batch_size == 0
    assert list(parsed.input[0].dims) == [1, 3, 64, 96]
    assert list(parsed.output[0].dims) == [1, 7]
    assert parsed.input[0].data_type == model_config_pb2.TYPE_FP32
    assert not parsed.HasField("dynamic_batching")
    assert parsed.instance_group[0].kind == model_config_pb2.ModelInstanceGroup.KIND_CPU


def test_a_symbolic_batch_is_the_servers(dynamic: Manifest) -> None:
    parsed = _parsed(dynamic)
    assert parsed.max_batch_size == 8
    assert parsed.HasField("dynamic_batching")
    assert list(parsed.input[0].dims) == [3, -1, -1]
    assert [list(o.dims) for o in parsed.output] == [[2], [-1, 32]]


def test_warm_up_is_a_size_that_was_proved(dynamic: Manifest) -> None:
    (warm,) = _parsed(dynamic).model_warmup
    assert warm.batch_size == 1
    assert list(warm.inputs["pixel_values"].dims) == [3, 96, 96]
    assert warm.inputs["pixel_values"].random_data


def test_a_model_without_batches_is_warmed_up_too(manifest: Callable[..., Manifest]) -> None:
    (warm,) = _parsed(manifest()).model_warmup
    assert warm.batch_size == 1
    assert list(warm.inputs["pixel_values"].dims) == [1, 3, 64, 96]


def test_text_is_warmed_up_with_ids_that_exist(manifest: Callable[..., Manifest]) -> None:
    text = manifest(
        native_resolution=(1, 77),
        resolution=(1, 77),
        input_layout=TextInput(100, 77).as_dict(),
        inputs=(TensorRecord(name="input_ids", shape=(1, 77), dtype="int64"),),
    )
    parsed = _parsed(text)
    assert parsed.input[0].data_type == model_config_pb2.TYPE_INT64
    assert list(parsed.model_warmup[0].inputs["input_ids"].dims) == [1, 77]
    assert parsed.model_warmup[0].inputs["input_ids"].zero_data


def test_class_names_lie_beside_the_configuration(dynamic: Manifest) -> None:
    texts = layout_of("triton").texts([ServedModel.of(dynamic)])
    assert texts[PurePosixPath("vit-dynall-fp32/labels.txt")] == 'a "cat"\ndog\n'
    parsed = _parsed(dynamic)
    assert [o.label_filename for o in parsed.output] == ["labels.txt", ""]


def test_both_formats_of_an_export_are_two_models(manifest: Callable[..., Manifest]) -> None:
    layout = layout_of("triton")
    assert str(layout.place("a+b-64x64-fp32.onnx.manifest.json")) == (
        "a-b-64x64-fp32/1/a+b-64x64-fp32.onnx.manifest.json"
    )
    ir = manifest(files=("a.xml", "a.bin"), format="openvino")
    assert {str(layout.place(name).parent) for name in (*ir.files, "a.xml.manifest.json")} == {
        "a-openvino/1"
    }
    assert _parsed(ir).backend == "openvino"


def test_every_type_of_an_input_has_a_name(manifest: Callable[..., Manifest]) -> None:
    for dtype in ("float32", "float16", "int64", "int32", "uint8", "int8", "bool"):
        tensors = (TensorRecord(name="x", shape=(1, 3, 64, 96), dtype=dtype),)
        assert _parsed(manifest(inputs=tensors)).input[0].data_type


def test_a_layout_that_is_not_there_is_refused() -> None:
    with pytest.raises(Exception, match="--layout 'tritn' is not known") as problem:
        layout_of("tritn")
    assert "Did you mean 'triton'" in str(getattr(problem.value, "hint", ""))
