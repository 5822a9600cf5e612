"""Refusals: message, exit code, and the same as JSON. None of them runs a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from vitpe_deploy import cli

Main = Callable[[Sequence[str]], int]

TINY = "vit_tiny_patch16_224"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(
    main: Main, arguments: str | Sequence[str], capsys: pytest.CaptureFixture[str], code: int = 2
) -> str:
    """The error block; the JSON document must say the same, and nothing may be written."""
    words = arguments.split() if isinstance(arguments, str) else list(arguments)
    before = sorted(Path().rglob("*"))
    assert main(words) == code
    human = capsys.readouterr()
    assert human.out == ""
    assert human.err.startswith("error: ")
    assert "Traceback" not in human.err
    assert main([*words, "--json"]) == code
    machine = capsys.readouterr()
    document = json.loads(machine.out)
    assert set(document) == {"schema", "kind", "message", "hint", "exit_code"}
    assert document["schema"] == "vitpe.error/1"
    assert document["exit_code"] == code
    assert " ".join(document["message"].split()) in human.err
    assert document["hint"] in human.err
    assert sorted(Path().rglob("*")) == before
    return human.err.rstrip("\n")


# Sizes


def test_a_square_size_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(cli.export_main, "--res 380", capsys) == (
        "error: --res 380 does not fit patch size 16 (380 = 23*16 + 12). Use 368 or 384."
    )


def test_a_rectangle_names_the_nearest_of_each_axis(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(cli.export_main, "vit_small_patch14_518 --res 384x512", capsys) == (
        "error: --res 384x512 does not fit patch size 14. Height 378 or 392, width 504 or 518."
    )


def test_a_size_refusal_has_its_own_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.export_main(["--res", "380", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["kind"] == "size"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--res 38O", "cannot read the size '38O'"),
        ("--res 0", "a size must be at least 1x1, got 0x0"),
        ("--res 224 --res 224x224", "--res names one size twice"),
        ("--verify-res 225 --dynamic size", "--verify-res 225 does not fit patch size 16"),
        ("--res-range 224:512", "--res-range needs a dynamic size, got --dynamic none"),
        ("--res-range 512:224 --dynamic size", "the range '512:224' is empty"),
        ("--res-range 224 --dynamic size", "cannot read the range '224'"),
        ("--res 640 --res-range 224:512:32 --dynamic size", "--res 640x640 is outside --res-range"),
    ],
)
def test_other_sizes(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(cli.export_main, arguments, capsys)


# Typos: the closest match is named


@pytest.mark.parametrize(
    ("arguments", "closest"),
    [
        ("--rse 384", "'--res'"),
        ("--presicion fp32", "'--precision'"),
        ("--no-antialais", "'--no-antialias'"),
        ("--dynamic sizes", "'size'"),
        ("--precision fp31", "'fp32'"),
        ("--target openvion", "'openvino'"),
        ("--format onxn", "'onnx'"),
        ("--interpolation bicubik", "'bicubic'"),
        ("--pe learned1d", "'learned-1d'"),
        ("--outputs logit", "'logits'"),
        ("--skip-pass constant", "'constants'"),
        ("--model-kwarg detph=2", "'depth'"),
        ("vit_smal_patch16_224", "'vit_small_patch16_224'"),
        ("hff:somewhere", "'hf:'"),
    ],
)
def test_a_typo_gets_the_closest_match(
    arguments: str, closest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"Did you mean {closest}?" in refused(cli.export_main, arguments, capsys)


def test_a_typo_in_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    block = refused(cli.main, "exprot", capsys)
    assert block.startswith("error: there is no command 'exprot'")
    assert "Did you mean 'export'? Choose from: export, verify, bench" in block


def test_a_typo_in_a_flag_of_a_sub_command_names_its_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert refused(cli.main, "export --rse 384", capsys) == (
        "error: there is no flag --rse. Did you mean '--res'? See vitpe export --help."
    )


# What the parser itself refuses


@pytest.mark.parametrize(
    ("main", "arguments", "message"),
    [
        (cli.export_main, "--opset twenty", "'--opset'"),
        (cli.export_main, "--batch 1.5", "'--batch'"),
        (cli.export_main, "one two", "two"),
        (cli.verify_main, "", "ARTIFACT is missing"),
        (cli.main, "", "no command was given"),
    ],
)
def test_the_parser_refuses_in_our_form(
    main: Main, arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if main is cli.main:
        assert main([]) == 2
        assert message in capsys.readouterr().err
    else:
        assert message in refused(main, arguments, capsys)


def test_a_missing_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.export_main(["--json", "--res"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert "--res" in document["message"]
    assert document["hint"] == "See vitpe-export --help."


# Contradictions and impossible values


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("-q -v", "-q contradicts -v"),
        ("--threads 0", "--threads must be at least 1, got 0"),
        ("--batch 0", "--batch must be at least 1, got 0"),
        ("--batch 2 --dynamic batch", "--batch 2 contradicts --dynamic batch"),
        ("--dynamic length", "--dynamic length is for text towers"),
        ("--opset 12", "--opset 12 is not possible"),
        ("--opset 24", "--opset 24 is not possible"),
        ("--precision int8", "--precision int8 needs calibration data"),
        ("--seed=-1", "--seed must be from 0 to"),
        ("--rtol=-1", "--rtol must be a number of at least 0"),
        ("--rtol nan", "--rtol must be a number of at least 0"),
        ("--atol inf", "--atol must be a number of at least 0"),
        ("--no-verify --layers", "--no-verify contradicts"),
        ("--no-verify --verify-passes", "--no-verify contradicts"),
        ("--verify-res 224", "--verify-res needs a file with a dynamic size"),
        ("--skip-pass attention", "a file without it would be wrong"),
        ("--outputs cls,cls", "--outputs names one output twice"),
        ("--outputs block:12", "has blocks 0 to 11"),
        ("--outputs ,", "--outputs names nothing"),
        ("--format ,", "--format names nothing"),
        ("--model-kwarg depth", "--model-kwarg 'depth' is not KEY=VALUE"),
        ("--model-kwarg =2", "--model-kwarg '=2' is not KEY=VALUE"),
        ("--model-kwarg depth=2 --model-kwarg depth=3", "--model-kwarg gives 'depth' twice"),
        ("--model-kwarg depth=two", "--model-kwarg depth='two' cannot be read"),
    ],
)
def test_export_refuses(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(cli.export_main, f"{TINY} {arguments}", capsys)


def test_pictures_must_be_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    for name, found in (("nowhere", "does not exist"), ("empty", "holds no picture")):
        words = ["--images", str(tmp_path / name)]
        assert f"{tmp_path / name} {found}" in refused(cli.export_main, words, capsys)


def test_the_output_folder_must_not_be_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("mine")
    assert refused(cli.export_main, "-o taken", capsys) == (
        "error: --output taken is a file. Give a folder."
    )


@pytest.mark.parametrize("suffix", [".onnx", ".onnx.manifest.json", ".xml", ".bin"])
def test_an_existing_file_is_refused_before_anything_is_loaded(
    suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("out").mkdir()
    mine = Path("out") / f"{TINY}-32x32-fp32{suffix}"
    mine.write_text("mine")
    block = refused(cli.export_main, f"{TINY} --res 32 --format onnx,openvino", capsys)
    assert block.startswith(f"error: {mine} exists already")
    assert mine.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("x.onnx --bundle --layers", "--layers contradicts --bundle"),
        ("x.onnx -o elsewhere", "--output and --force are for --bundle"),
        ("x.onnx --force", "--output and --force are for --bundle"),
        ("x.onnx --runtime oort", "Did you mean 'ort'?"),
        ("x.onnx --runtime torch", "--runtime 'torch' is not known"),
        ("x.onnx --pe none", "--pe, --weights, --model-kwarg and --seed describe the model of"),
        ("x.onnx --threads 0", "--threads must be at least 1"),
        ("x.onnx --rtol=-1", "--rtol must be a number of at least 0"),
        ("x.onnx --against vit_smal_patch16_224", "Did you mean 'vit_small_patch16_224'?"),
        ("x.onnx.bundle.zip --bundle", "x.onnx.bundle.zip is a bundle already"),
        ("x.onnx --res big", "cannot read the size 'big'"),
    ],
)
def test_verify_refuses(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(cli.verify_main, arguments, capsys)


@pytest.mark.parametrize("name", ["x.onnx", "x.onnx.bundle.zip"])
def test_verify_of_nothing_is_a_failure(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(cli.verify_main, name, capsys, 1) == f"error: {name} does not exist"


def test_verify_of_a_file_that_is_not_ours(capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.onnx").write_bytes(b"onnx")
    assert "x.onnx has no manifest" in refused(cli.verify_main, "x.onnx", capsys, 1)


def test_verify_of_a_damaged_bundle(capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.onnx.bundle.zip").write_bytes(b"PK\x03\x04 this is no zip")
    block = refused(cli.verify_main, "x.onnx.bundle.zip", capsys, 1)
    assert block.startswith("error: x.onnx.bundle.zip is not a bundle or is damaged")
