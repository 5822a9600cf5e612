"""What is shipped runs no text as code, and says what it depends on and why."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import vitpe_deploy
from vitpe_deploy import cli, versions
from vitpe_deploy.errors import VersionError

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted(p for room in ("vitpe_deploy", "exporters") for p in (ROOT / room).rglob("*.py"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Calls that run text as code, or rebuild objects by running what a file says.
_NEVER = {
    "eval", "exec", "compile", "__import__", "execfile",
    "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load", "marshal.loads",
    "shelve.open", "dill.load", "joblib.load", "yaml.load", "yaml.unsafe_load",
    "os.system", "os.popen", "pty.spawn", "runpy.run_path", "code.interact",
    "torch.hub.load", "torch.jit.load", "numpy.load", "importlib.util.spec_from_file_location",
}  # fmt: skip
_NEVER_IMPORTED = {"pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle"}


def _dotted(node: ast.expr) -> str:
    """``torch.load`` for an attribute of a name; empty for what is no plain name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def problems(source: str) -> Iterator[str]:
    """Calls and imports in a file that could run something from outside."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None)
            names = [module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names]
            yield from (f"imports {n}" for n in names if n.partition(".")[0] in _NEVER_IMPORTED)
        if not isinstance(node, ast.Call):
            continue
        name = _dotted(node.func)
        words = {k.arg: k.value for k in node.keywords if k.arg}

        def says(word: str, value: bool, words: dict[str, ast.expr] = words) -> bool:
            given = words.get(word)
            return isinstance(given, ast.Constant) and given.value is value

        if name in _NEVER:
            yield f"line {node.lineno} calls {name}"
        if name == "torch.load" and not says("weights_only", True):
            yield f"line {node.lineno} calls torch.load without weights_only=True"
        if name in ("np.load", "np.save") and not says("allow_pickle", False):
            yield f"line {node.lineno} calls {name} without allow_pickle=False"
        if "shell" in words and not says("shell", False):
            yield f"line {node.lineno} starts a shell"
        if says("trust_remote_code", True):
            yield f"line {node.lineno} trusts code from a hub"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: str(p.relative_to(ROOT)))
def test_shipped_code_runs_nothing_from_outside(path: Path) -> None:
    assert list(problems(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "source",
    [
        "eval('1')",
        "import pickle",
        "from pickle import loads",
        "import torch; torch.load(p)",
        "import torch; torch.load(p, weights_only=False)",
        "np.load(p)",
        "subprocess.run('x', shell=True)",
        "os.system('x')",
        "AutoModel.from_pretrained(x, trust_remote_code=True)",
    ],
)
def test_what_would_be_found(source: str) -> None:
    assert list(problems(source))


# ---------------------------------------------------------------- dependencies


def requirements() -> dict[str, str]:
    """Package -> lower bound of everything that users install, tests left out."""
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(r for n, rs in extras.items() if n != "test" for r in rs)]
    found = {}
    for requirement in map(Requirement, lines):
        if requirement.name == PROJECT["name"]:
            continue
        (specifier,) = requirement.specifier
        assert specifier.operator == ">=", f"{requirement}: a lower bound and nothing else"
        # An extra may ask for a newer one than the base install; the table says both.
        found.setdefault(requirement.name, specifier.version)
    return found


def newest_tested() -> dict[str, Version]:
    """What ``.ci/constraints.txt`` installs."""
    lines = (ROOT / ".ci" / "constraints.txt").read_text().splitlines()
    pairs = (re.split("[=<]=", line) for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def table() -> dict[str, list[str]]:
    """Rows of ``docs/dependencies.md``: bound, newest, licence, reason."""
    text = (ROOT / "docs" / "dependencies.md").read_text()
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    return {r[0].strip(): [w.strip() for w in r[1:]] for r in rows if r[0].strip() != "package"}


def test_table_names_every_dependency_with_its_bound_licence_and_reason() -> None:
    rows = table()
    assert {name: row[0] for name, row in rows.items()} == requirements()
    for name, (_, newest, licence, reason) in rows.items():
        assert licence, name
        assert len(reason) > 5, name
        known = newest_tested().get(canonicalize_name(name))
        if known is not None:
            assert str(known).startswith(newest), name


def test_versions_are_refused_by_the_bounds_that_pip_has() -> None:
    bounds = requirements()
    for name, bound in versions.BOUNDS.items():
        assert bound.least == bounds[name], name
        newest = newest_tested()[canonicalize_name(name)]
        assert str(newest).startswith(bound.tested), name
        extra = PROJECT["optional-dependencies"].get(bound.extra, PROJECT["dependencies"])
        assert any(Requirement(line).name == name for line in extra), name
    heavy = {"torch", "onnx", "onnxscript", "onnx-ir", "onnxsim", "safetensors"}
    assert heavy == set(versions.EXPORT)


@pytest.mark.parametrize(
    ("found", "fine"), [("2.8.0", False), ("2.9.0+cpu", True), ("2.10.1", True), ("1.99", False)]
)
def test_old_version_is_one_line(found: str, fine: bool) -> None:
    if fine:
        versions.require_version("torch", found)
        return
    with pytest.raises(VersionError) as caught:
        versions.require_version("torch", found)
    message = f"torch {found} is too old: 2.9 is the oldest version that works"
    assert caught.value.message == message
    assert caught.value.hint == "Run: pip install -U 'torch>=2.9'"


def test_commands_refuse_old_packages_and_note_new_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real = versions.installed
    fake = {"onnx-ir": "0.1.9"}
    monkeypatch.setattr(versions, "installed", lambda name: fake.get(name, real(name)))
    tiny = ["vit_tiny_patch16_224", "--model-kwarg", "depth=1", "--model-kwarg", "embed_dim=12"]
    rest = ["--res", "32", "--no-verify", "-o", str(tmp_path / "out")]
    assert cli.export_main([*tiny, *rest]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[1:] == [  # behind the line that says what was asked for
        "error: onnx-ir 0.1.9 is too old: 0.2.1 is the oldest version that works",
        "  hint: Run: pip install -U 'onnx-ir>=0.2.1'",
    ]
    assert not (tmp_path / "out").exists()
    fake.update({"onnx-ir": "99.0", "timm": "0.9.12"})
    assert cli.export_main([*tiny, *rest]) == 0
    noted = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert noted == ["note: onnx-ir 99.0 is newer than any that was tested (1.1)"]
    with pytest.raises(VersionError, match=r"timm 0\.9\.12 is too old"):
        vitpe_deploy.inspect("timm:vit_tiny_patch16_224")


def test_licence_is_there() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert PROJECT["license"] == "Apache-2.0"
    assert PROJECT["license-files"] == ["LICENSE"]
