"""vitpe-inspect: values read off models and files, each against what made them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import timm
import torch
from onnx import TensorProto, helper

import vitpe_deploy
from vitpe_deploy import cli
from vitpe_deploy.errors import ArtifactError, UsageError
from vitpe_deploy.inspection.graph import wrong_in_openvino
from vitpe_deploy.inspection.onnx_skeleton import read_skeleton
from vitpe_deploy.inspection.report import Evidence, InspectReport
from vitpe_deploy.runtimes import open_runtime


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dynamic timm ViT as torch.onnx.export writes it."""
    path = tmp_path_factory.mktemp("plain") / "plain.onnx"
    network = timm.create_model("vit_tiny_patch16_224", depth=2, dynamic_img_size=True)
    torch.onnx.export(
        network.eval().requires_grad_(False),
        (torch.zeros(2, 3, 160, 192),),
        path,
        dynamo=True,
        opset_version=18,
        dynamic_shapes=({0: "b", 2: "h", 3: "w"},),
        external_data=False,
        verbose=False,
    )
    return path


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One bounded dynamic export of ours in both formats."""
    report = vitpe_deploy.export(
        "vit_tiny_patch16_224",
        64,
        dynamic="all",
        size_range="32:96:32",
        model_kwargs={"depth": 2},
        verify=False,
        formats=["onnx", "openvino"],
        output_dir=tmp_path_factory.mktemp("ours"),
    )
    return {a.format: Path(a.path) for a in report.artifacts}


@pytest.mark.parametrize(
    ("name", "encoding", "certainty", "grid", "prefix", "divisor", "depth"),
    [
        ("timm:vit_tiny_patch16_224", "learned-1d", "certain", (14, 14), 1, (16, 16), 12),
        ("timm:beit_base_patch16_224", "relative-2d", "likely", (14, 14), 1, (16, 16), 12),
        ("timm:swin_tiny_patch4_window7_224", "window-bias", "likely", (7, 7), 0, (4, 4), 12),
        ("timm:eva02_tiny_patch14_224", "learned-1d+rope-2d", "certain", (16, 16), 1, (14, 14), 12),
    ],
)
def test_timm(
    name: str,
    encoding: str,
    certainty: str,
    grid: tuple[int, int],
    prefix: int,
    divisor: tuple[int, int],
    depth: int,
) -> None:
    report = vitpe_deploy.inspect(name)
    found = report.positions
    assert (found.encoding, found.certainty) == (encoding, certainty)
    assert (found.grid, found.prefix_tokens) == (grid, prefix)
    assert (report.sizes.divisor, report.blocks) == (divisor, depth)
    with torch.device("meta"):
        network = timm.create_model(name.removeprefix("timm:"))
    assert report.parameters == sum(p.numel() for p in network.parameters())
    assert report.fusing.attention == depth


def test_evidence_is_the_table_and_the_watched_call() -> None:
    evidence = vitpe_deploy.inspect("timm:vit_tiny_patch16_224").positions.evidence
    assert evidence == (
        Evidence(
            kind="interpolation", where="F.interpolate", shape=(14, 14), says="bicubic antialias"
        ),
        Evidence(kind="parameter", where="pos_embed", shape=(1, 197, 192)),
    )


@pytest.mark.parametrize(
    ("encoding", "wrong"), [("learned-1d", True), ("sincos-2d", False), ("rope-2d", False)]
)
def test_reference(encoding: str, wrong: bool) -> None:
    report = vitpe_deploy.inspect("vit_tiny_patch16_224", encoding=encoding)
    assert (report.positions.encoding, report.positions.certainty) == (encoding, "certain")
    assert report.openvino.wrong is wrong
    assert (report.fusing.attention, report.sizes.dynamic) == (12, True)


def test_a_plain_dynamic_export_is_wrong_in_openvino(plain: Path) -> None:
    report = vitpe_deploy.inspect(plain)
    assert report.openvino.wrong
    assert "cubic Resize with antialias" in report.openvino.reasons[0]
    assert (report.fusing.attention, report.fusing.by_hand) == (0, 2)
    (table,) = report.positions.evidence
    assert table.shape == (1, 197, 192)
    assert table.says == "added to tokens, resized in the graph"
    file = report.file
    assert file is not None
    counts: dict[str, int] = {}
    for node in onnx.load(plain).graph.node:
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
    assert file.operators == counts
    assert [(d.axis, d.name) for d in file.symbolic] == [(0, "b"), (2, "h"), (3, "w")]
    assert file.manifest == "none"


def test_ours_is_right_and_says_who_runs_it(ours: dict[str, Path]) -> None:
    report = vitpe_deploy.inspect(ours["onnx"])
    assert not report.openvino.wrong
    assert (report.positions.encoding, report.positions.certainty) == ("learned-1d", "certain")
    assert (report.fusing.attention, report.fusing.by_hand) == (2, 0)
    file = report.file
    assert file is not None
    assert (file.manifest, file.opsets) == ("unverified", {"": 20, "com.microsoft": 1})
    assert {c.name: c.runs for c in file.consumers} == {
        "ONNX Runtime": True,
        "OpenVINO": True,
        "standard-only importers": False,
    }
    assert [r.split()[2] for r in file.consumers[1].reasons] == ["MultiHeadAttention:"]
    assert [(d.axis, d.low, d.high, d.step) for d in file.symbolic if d.low] == [
        (2, 32, 96, 32),
        (3, 32, 96, 32),
    ]


def test_ir(ours: dict[str, Path]) -> None:
    report = vitpe_deploy.inspect(ours["openvino"])
    assert report.kind == "openvino"
    assert report.positions.encoding == "learned-1d"
    assert not report.openvino.wrong
    file = report.file
    assert file is not None
    assert file.size_bytes == sum(
        ours["openvino"].with_suffix(s).stat().st_size for s in (".xml", ".bin")
    )


@pytest.mark.parametrize(("size", "wrong"), [(10, True), (24, False)])
def test_antialias_matters_where_something_shrinks(tmp_path: Path, size: int, wrong: bool) -> None:
    table = onnx.numpy_helper.from_array(np.zeros((1, 8, 14, 14), np.float32), "t")
    sizes = onnx.numpy_helper.from_array(np.array([1, 8, size, size]), "s")
    node = helper.make_node("Resize", ["t", "", "", "s"], ["r"], mode="cubic", antialias=1)
    add = helper.make_node("Add", ["x", "r"], ["y"])
    value = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 8, size, size]) for n in ("x", "y")
    ]
    graph = helper.make_graph([node, add], "g", value[:1], value[1:], [table, sizes])
    path = tmp_path / "r.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    assert bool(wrong_in_openvino(read_skeleton(path))) is wrong


@pytest.mark.parametrize(("positions", "wrong"), [([0], True), ([[0, 1, 2, 3, 4]], False)])
@pytest.mark.parametrize("as_input", [False, True])
def test_one_offset_for_all_rows_is_wrong(
    tmp_path: Path, positions: list[Any], wrong: bool, as_input: bool
) -> None:
    """What is said of a file is what both engines do with it."""
    arrays = {
        "p": np.array(positions, np.int64),
        "cos": np.cos(np.arange(20.0, dtype=np.float32)).reshape(5, 4),
        "sin": np.sin(np.arange(20.0, dtype=np.float32)).reshape(5, 4),
    }
    node = helper.make_node(
        "RotaryEmbedding", ["x", *arrays], ["y"], domain="com.microsoft", num_heads=2, interleaved=0
    )
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 5, 16]) for n in ("x", "y")]
    inputs = ports[:1]
    if as_input:
        inputs.append(helper.make_tensor_value_info("p", TensorProto.INT64, arrays["p"].shape))
    weights = [
        onnx.numpy_helper.from_array(v, k) for k, v in arrays.items() if not (as_input and k == "p")
    ]
    path = tmp_path / "rotary.onnx"
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", inputs, ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    assert bool(wrong_in_openvino(read_skeleton(path))) is wrong
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 5, 16)).astype(np.float32)}
    if as_input:
        feeds["p"] = arrays["p"]
    answers = []
    for runtime in ("onnxruntime", "openvino"):
        with open_runtime(runtime, path) as engine:
            answers.append(engine.run(feeds)["y"])
    assert bool(np.abs(answers[0] - answers[1]).max() > 0.1) is wrong


def test_cut_files_are_one_error(plain: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(plain.read_bytes()[:5000])
    with pytest.raises(ArtifactError, match="not a whole ONNX file"):
        vitpe_deploy.inspect(cut)
    with pytest.raises(UsageError, match="are for models"):
        vitpe_deploy.inspect(plain, encoding="none")


def test_command(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.inspect_main([str(plain), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert InspectReport.model_validate(document) == vitpe_deploy.inspect(str(plain))
    assert document["schema"] == "vitpe.inspect/1"
    assert cli.inspect_main([str(plain)]) == 0
    assert "  OpenVINO      WRONG\n" in capsys.readouterr().out
    assert cli.inspect_main([str(plain.with_name("none.onnx"))]) == 1


def test_trace_says_what_passes_do() -> None:
    report = vitpe_deploy.inspect(
        "vit_tiny_patch16_224", model_kwargs={"depth": 2}, trace=True, resolution=64
    )
    changed = {p.name: p.changed for p in report.fusing.passes}
    assert (changed["attention"], changed["unread-tokens"]) == (2, 1)
