"""What pip installs: two packages, a licence, three commands, and no torch without an extra."""

from __future__ import annotations

import importlib
import re
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
WORKSHOP = {"torch", "onnx", "onnx-ir", "onnxscript", "onnxsim", "timm", "transformers"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    builder = WheelBuilder(str(ROOT))
    folder = tmp_path_factory.mktemp("dist")
    return zipfile.ZipFile(next(builder.build(directory=str(folder), versions=["standard"])))


def expanded(extra: str) -> set[str]:
    """Distributions that an extra brings, through the extras that it names."""
    found = set()
    for text in EXTRAS[extra]:
        requirement = Requirement(text)
        if requirement.name == PROJECT["name"]:
            found |= set().union(*(expanded(inner) for inner in requirement.extras))
        else:
            found.add(requirement.name)
    return found


def test_wheel_holds_both_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    version = importlib.import_module("vitpe_deploy").__version__
    info = f"vitpe_deploy-{version}.dist-info"
    tree = {
        str(path.relative_to(ROOT))
        for package in ("vitpe_deploy", "exporters")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"vitpe_deploy/py.typed", "exporters/pipeline.py"} < tree
    assert set(wheel.namelist()) == {
        *tree,
        *(f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")),
        f"{info}/licenses/LICENSE",
    }


def test_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    metadata = wheel.read(next(n for n in wheel.namelist() if n.endswith("METADATA"))).decode()
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "\nRequires-Python: >=3.11\n" in metadata
    licence = wheel.read(next(n for n in wheel.namelist() if n.endswith("LICENSE"))).decode()
    assert "Apache License" in licence
    assert "END OF TERMS AND CONDITIONS" in licence


def test_base_install_is_what_a_device_needs() -> None:
    names = {Requirement(text).name for text in PROJECT["dependencies"]}
    assert names == {"numpy", "onnxruntime", "openvino", "pillow", "pydantic", "rich", "typer"}


def test_extras_hold_what_they_promise() -> None:
    assert {"torch", "onnx", "onnx-ir", "onnxscript", "onnxsim"} <= expanded("export")
    for name in ("timm", "transformers"):
        assert expanded(name) == expanded("export") | {name}
    assert not expanded("report") & WORKSHOP
    # int8 keeps its name for a precision that is still refused; nobody needs it with the rest.
    others = [name for name in EXTRAS if name not in ("all", "int8", "test")]
    assert expanded("all") == set().union(*map(expanded, others))
    assert expanded("all") < expanded("test")


def test_every_extra_named_in_the_code_exists() -> None:
    pattern = re.compile(r"MissingExtraError\(\s*[^\n]*?,\s*\"([a-z-]+)\"\s*\)")
    named = {
        extra
        for package in ("vitpe_deploy", "exporters")
        for path in (ROOT / package).rglob("*.py")
        for extra in pattern.findall(path.read_text(encoding="utf-8"))
    }
    assert "export" in named
    assert named <= set(EXTRAS)


@pytest.mark.parametrize("command", sorted(PROJECT["scripts"]))
def test_every_command_starts(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    module, _, name = PROJECT["scripts"][command].partition(":")
    assert getattr(importlib.import_module(module), name)(["--help"]) == 0
    assert f"Usage: {command} " in capsys.readouterr().out


def test_every_main_of_the_command_line_is_a_command() -> None:
    from vitpe_deploy import cli

    mains = {f"vitpe_deploy.cli:{n}" for n in dir(cli) if n == "main" or n.endswith("_main")}
    assert set(PROJECT["scripts"].values()) == mains


def bounds(file: str) -> Iterator[Requirement]:
    for line in (ROOT / ".ci" / file).read_text().splitlines():
        if line and not line.startswith("#"):
            yield Requirement(line)


def test_tested_versions_are_allowed_versions() -> None:
    wanted = {
        requirement.name: requirement.specifier
        for texts in (PROJECT["dependencies"], *EXTRAS.values())
        for requirement in map(Requirement, texts)
    }
    for tested in bounds("constraints.txt"):
        version = next(iter(tested.specifier)).version
        assert version in wanted[tested.name], tested.name


def test_oldest_versions_are_the_lower_bounds() -> None:
    oldest = {r.name: str(r.specifier) for r in bounds("constraints-oldest.txt")}
    lower = {}
    for requirement in map(Requirement, PROJECT["dependencies"]):
        lower[requirement.name] = str(requirement.specifier).replace(">=", "==") + ".*"
    assert oldest == lower


# Assembled, so that this file does not find itself.
MACHINE_TRACES = re.compile(
    "|".join(
        [
            rf"/(?:{'roo' + 't'}|{'wor' + 'k'}|{'far' + 'm'})/",
            "/tmp/" + "dev",
            "/opt/" + "(?:pypi|wheels)",
            "pypi" + r"\.org",
            "python" + "hosted",
            r"download\.pytorch" + r"\.org",
        ]
    )
)


def project_files() -> Iterator[Path]:
    for folder in ("vitpe_deploy", "exporters", "tests", "benchmarks", ".ci"):
        yield from (p for p in (ROOT / folder).rglob("*") if p.is_file())
    yield from (p for p in ROOT.iterdir() if p.suffix in (".md", ".toml"))


def test_no_file_names_a_machine_or_a_registry() -> None:
    assert MACHINE_TRACES.search("see " + "/roo" + "t/x")
    traces = {
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in project_files()
        if "__pycache__" not in path.parts and path.suffix in (".py", ".md", ".toml", ".txt", "")
        for line in path.read_text(encoding="utf-8").splitlines()
        if MACHINE_TRACES.search(line)
    }
    assert not traces
