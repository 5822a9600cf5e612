"""What only a process of its own can show: what is imported, and what is there when extras are not.

Each process runs several command lines, because starting one costs more than running them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vitpe_deploy import cli

ROOT = Path(cli.__file__).resolve().parent.parent

DRIVER = """
import contextlib, importlib.abc, io, json, sys

blocked, commands = json.loads(sys.argv[1])

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from vitpe_deploy import cli

results = []
for main, *arguments in commands:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = getattr(cli, main)(arguments)
    heavy = sorted({name.partition(".")[0] for name in sys.modules})
    results.append([code, out.getvalue(), err.getvalue(), heavy])
print(json.dumps(results))
"""

HEAVY = {"torch", "onnx", "onnx_ir", "onnxscript", "onnxruntime", "openvino", "transformers"}


def process(
    commands: list[list[str]], *, blocked: list[str] | None = None, first: Path | None = None
) -> list[tuple[int, str, str, set[str]]]:
    """Exit code, stdout, stderr and top-level modules after each command line."""
    path = [str(p) for p in (first, ROOT) if p is not None]
    done = subprocess.run(
        [sys.executable, "-P", "-c", DRIVER, json.dumps([blocked or [], commands])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results: list[Any] = json.loads(done.stdout)
    return [(code, out, err, set(modules)) for code, out, err, modules in results]


@pytest.fixture
def dinov2_config(tmp_path: Path) -> Path:
    """A folder with the config of a DINOv2 and no weights."""
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "dinov2",
                "architectures": ["Dinov2Model"],
                "image_size": 518,
                "patch_size": 14,
                "hidden_size": 384,
                "num_hidden_layers": 12,
                "num_attention_heads": 6,
            }
        )
    )
    return folder


def test_help_and_refusals_import_nothing_heavy(tmp_path: Path, dinov2_config: Path) -> None:
    commands = [
        ["main", "--help"],
        ["export_main", "--help"],
        ["verify_main", "--help"],
        ["main", "--version"],
        ["export_main", "--rse", "384"],
        ["export_main", "--res", "380"],
        ["export_main", "--pe", "learned-2"],
        ["export_main", f"hf:{dinov2_config}", "--res", "384x512"],
        ["export_main", "--res", "384", "--dry-run", "-o", str(tmp_path / "out")],
        ["verify_main", str(tmp_path / "nothing.onnx")],
    ]
    results = process(commands)
    assert [code for code, *_ in results] == [0, 0, 0, 0, 2, 2, 2, 2, 0, 1]
    for command, (_, _, _, modules) in zip(commands, results, strict=True):
        assert not modules & HEAVY, command
    *_, refusal, _, _ = (err for _, _, err, _ in results)
    assert "Height 378 or 392, width 504 or 518." in refusal
    assert not {"numpy", "PIL"} & results[6][3]  # refusals of reference models are instant
    assert not (tmp_path / "out").exists()


def test_help_costs_little_more_than_its_parser() -> None:
    """CPU time beside that of typer alone: 0.3 s are another amount of work on each machine."""

    def spent(code: str) -> float:
        before = os.times()
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=60,
        )
        after = os.times()
        return sum(after[2:4]) - sum(before[2:4])

    pairs = [
        (
            spent("from vitpe_deploy.cli import main; main(['--help'])"),
            spent("import typer, typer.rich_utils, rich.console"),
        )
        for _ in range(5)
    ]
    ours, parser = (min(times) for times in zip(*pairs, strict=True))
    assert ours < max(0.3, 2.5 * parser)


def test_without_the_export_extra(tmp_path: Path) -> None:
    out = tmp_path / "out"
    tiny = ["vit_tiny_patch16_224", "--model-kwarg", "depth=1", "--model-kwarg", "embed_dim=12"]
    exported = ["--res", "32", "-q", "-o", str(out), "--threads", "2"]
    assert cli.export_main([*tiny, *exported]) == 0
    artifact = out / "vit_tiny_patch16_224-32x32-fp32.onnx"
    assert cli.verify_main([str(artifact), "--bundle", "-q", "--threads", "2"]) == 0
    bundle = artifact.with_name(f"{artifact.name}.bundle.zip")

    missing = ["torch", "onnx", "onnx_ir", "onnxscript", "onnxsim", "safetensors", "transformers"]
    results = process(
        [
            ["export_main", "--res", "384", "-o", str(tmp_path / "none")],
            ["export_main", "--res", "384", "-o", str(tmp_path / "none"), "--json"],
            ["export_main", "--res", "380"],
            ["verify_main", str(artifact)],
            ["verify_main", str(bundle), "--json", "--threads", "2"],
        ],
        blocked=missing,
    )
    export, as_json, size, verify, bundled = results
    assert export[0] == 1
    assert export[2].splitlines()[-1].endswith("Run: pip install 'vitpe-deploy[export]'")
    assert as_json[0] == 1
    document = json.loads(as_json[1])
    assert document["kind"] == "missing_extra"
    assert document["hint"] == "Run: pip install 'vitpe-deploy[export]'"
    assert size[0] == 2
    assert verify[0] == 1
    assert "pip install 'vitpe-deploy[export]'" in verify[2]
    assert bundled[0] == 0, bundled[2]
    report = json.loads(bundled[1])
    assert report["verdict"] == "passed"
    assert {r["runtime"] for r in report["parity"]} == {"onnxruntime", "openvino"}
    assert not bundled[3] & set(missing)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("content", ["", "raise RuntimeError('somebody else')"])
def test_a_shadowing_exporters_package_is_named(content: str, tmp_path: Path) -> None:
    decoy = tmp_path / "exporters" / "__init__.py"
    decoy.parent.mkdir()
    decoy.write_text(content)
    command = ["export_main", "--res", "384", "-o", str(tmp_path / "out")]
    ((code, out, err, modules),) = process([command], first=tmp_path)
    assert code == 1
    assert out == ""
    first, *rest = err.splitlines()
    assert first == f"error: another package called 'exporters' shadows ours: {decoy}"
    assert rest == [
        "  hint: Uninstall it, then reinstall: "
        "pip install --force-reinstall --no-deps vitpe-deploy."
    ]
    assert "torch" not in modules
    assert not (tmp_path / "out").exists()


def test_a_reader_that_leaves_is_no_error() -> None:
    code = "from vitpe_deploy.cli import main; import sys; sys.exit(main(['nonsense', '--json']))"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        err = child.stderr.read()
        assert child.wait(timeout=60) == 2
    assert "Traceback" not in err
    assert "BrokenPipe" not in err
