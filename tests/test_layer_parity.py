"""Layers: what passes, what fails, and that nothing is never all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest

import vitpe_deploy
from exporters.proof import report_layers
from vitpe_deploy.errors import UsageError
from vitpe_deploy.layer_parity import Blocks, check_layers, layer_words
from vitpe_deploy.manifest import manifest_path, read_manifest
from vitpe_deploy.parity import Outputs, ParityCase, Target
from vitpe_deploy.progress import Silent
from vitpe_deploy.request import Resolution, Tolerance

TINY = {"image_size": 64, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 10}
MODEL = "vit_tiny_patch16_224"

INPUTS = tuple(np.random.default_rng(k).standard_normal((1, 4, 3), np.float32) for k in range(2))
CASE = ParityCase(Resolution(1, 1), 1, INPUTS)


@pytest.fixture(scope="module")
def two_blocks(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """x -> block:0 = x + 1 -> block:1 = 2 block:0 -> y, over four tokens."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 20]>
        blocks (float[1, 4, 3] x) => (float[1, 4, 3] y) <float[1] one = {1}, float[1] two = {2}> {
            b0 = Add(x, one)
            b1 = Mul(b0, two)
            y = Neg(b1)
        }
    """)
    for node in model.graph.node:
        node.input[:] = [n.replace("b0", "block:0").replace("b1", "block:1") for n in node.input]
        node.output[:] = [n.replace("b0", "block:0").replace("b1", "block:1") for n in node.output]
    path = tmp_path_factory.mktemp("blocks") / "blocks.onnx"
    onnx.save(model, path)
    return Target(path, "onnxruntime", threads=1)


def right() -> list[Outputs]:
    return [{"block:0": x + 1, "block:1": 2 * (x + 1)} for x in INPUTS]


def compared(target: Target, expected: list[Outputs], **options: Any) -> Any:
    blocks = Blocks(("block:0", "block:1"), lambda: expected, **options)
    return check_layers(target, CASE, blocks, Tolerance(1e-4), artifact="blocks.onnx")


def test_equal_blocks_pass(two_blocks: Target) -> None:
    found = compared(two_blocks, right())
    assert not found.fails
    assert (found.first_failing_block, found.not_comparable) == (None, ())
    assert layer_words(found) == "all 2 blocks inside tolerance"


@pytest.mark.parametrize("decide", [True, False])
def test_another_shape_never_passes(two_blocks: Target, decide: bool) -> None:
    other = [{**named, "block:1": named["block:1"][:, :3]} for named in right()]
    found = compared(two_blocks, other, decide=decide)
    assert found.fails
    assert found.first_failing_block == 1
    assert found.not_comparable == ("block:1: shape [1, 4, 3] instead of [1, 3, 3]",)
    assert "block 1: shape [1, 4, 3] instead of [1, 3, 3]" in layer_words(found)


def test_an_export_prints_what_could_not_be_compared(two_blocks: Target) -> None:
    class Lines(Silent):
        said: ClassVar[list[tuple[str, bool | None]]] = []

        def line(
            self, text: str, *, label: str = "", value: str = "", good: bool | None = None
        ) -> None:
            self.said.append((text, good))

    other = [{**named, "block:0": named["block:0"][:, :3]} for named in right()]
    report_layers(Lines(), compared(two_blocks, other), "onnxruntime")
    (first, good), (second, _) = Lines.said
    assert first.startswith("layers: first outside tolerance is block 0: shape")
    assert good is False
    assert second == "layers not compared: block:0: shape [1, 4, 3] instead of [1, 3, 3]"


def test_a_block_of_fewer_tokens_passes_where_they_are_known(two_blocks: Target) -> None:
    def longer(extra: int) -> list[Outputs]:
        more = np.ones((1, extra, 3), np.float32)
        named = right()
        return [{k: np.concatenate([v, more], axis=1) for k, v in one.items()} for one in named]

    assert not compared(two_blocks, longer(5), kept_tokens=(0, 4)).fails
    assert compared(two_blocks, longer(5)).fails
    assert compared(two_blocks, longer(5), kept_tokens=(0, 3)).fails
    assert compared(two_blocks, longer(5), kept_tokens=(1, 5)).fails


@pytest.mark.parametrize("decide", [True, False])
def test_rounded_blocks_fail_a_file_that_passes_by_tolerance(
    two_blocks: Target, decide: bool
) -> None:
    rounded = [{k: v * np.float32(1.03) for k, v in named.items()} for named in right()]
    found = compared(two_blocks, rounded, decide=decide)
    assert found.first_failing_block == 0
    assert not any(row.passed for row in found.rows)
    assert found.fails == decide
    words = "first outside tolerance is block 0" if decide else "agreement decides"
    assert words in layer_words(found)


def test_no_blocks_are_refused_and_not_all_of_them(two_blocks: Target) -> None:
    with pytest.raises(UsageError, match="names no blocks"):
        check_layers(two_blocks, CASE, Blocks((), list), Tolerance(), artifact="blocks.onnx")


def test_an_export_of_a_file_has_no_layers_to_compare(tmp_path: Path) -> None:
    own = vitpe_deploy.export(
        MODEL, model_kwargs=TINY, verify=False, output_dir=tmp_path / "own", threads=1
    )
    alone = tmp_path / "alone.onnx"
    alone.write_bytes(Path(own.artifacts[0].path).read_bytes())
    with pytest.raises(UsageError, match="names no blocks") as caught:
        vitpe_deploy.export(str(alone), verify_layers=True, output_dir=tmp_path / "out", threads=1)
    assert caught.value.exit_code == 2
    assert not list((tmp_path / "out").glob("*"))


def test_int8_passes_on_agreement_whatever_its_layers_say(tmp_path: Path) -> None:
    report = vitpe_deploy.export(
        "digits-learned-1d", precision="int8", calibration="random", int8_method="dynamic",
        min_agreement=0.9, verify_layers=True, output_dir=tmp_path, threads=1,
    )  # fmt: skip
    path = Path(report.artifacts[0].path)
    manifest = read_manifest(path)
    tight = manifest.model_copy(update={"tolerance": {"rtol": 1e-6, "atol": 0.0}})
    manifest_path(path).write_text(tight.as_json(), encoding="utf-8")
    again = vitpe_deploy.verify(path, layers=True, runtimes=["onnxruntime"], threads=1)
    assert again.layers[0].first_failing_block == 0
    assert not again.layers[0].decides
    assert (report.verdict, again.verdict) == ("passed", "passed")
