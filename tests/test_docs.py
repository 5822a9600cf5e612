"""README and CONTRIBUTING say nothing that the commands do not do.

Command lines are taken from ``console`` blocks, where they follow ``$``. Exports are planned with
``--dry-run``, refusals are run and must print what stands below them.
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
import torch
from typer.main import get_command

import vitpe_deploy
from vitpe_deploy import cli, cli_options, encodings
from vitpe_deploy.encodings.base import EncodingSpec
from vitpe_deploy.request import DEFAULT_RTOL
from vitpe_deploy.sources import PREFIXES
from vitpe_deploy.sources.transformers_family import FAMILIES, Family

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


@dataclass(frozen=True, slots=True)
class Shown:
    """One command of ours and what stands below it."""

    argv: tuple[str, ...]
    output: str

    @property
    def name(self) -> str:
        return self.argv[0]


def blocks(text: str, language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall(text) if kind == language]


def shown(text: str) -> Iterator[Shown]:
    """Commands of ours in console blocks, with what they print."""
    for block in blocks(text, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            for command in line.split("&&"):
                argv = tuple(shlex.split(command))
                if argv[0].startswith("vitpe"):
                    yield Shown(argv, output.strip("\n"))


COMMANDS = list(shown(README))
EXPORTS = [c for c in COMMANDS if c.name == "vitpe-export"]
REFUSALS = [c for c in EXPORTS if c.output.startswith("error:")]


def flags_of(command: str) -> set[str]:
    """Every long flag of a command."""
    app = get_command(cli._app(command))
    return {f for p in app.params for f in (*p.opts, *p.secondary_opts) if f.startswith("--")}


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OWN_COMMANDS = [c.removeprefix("vitpe-") for c in PROJECT["scripts"] if c != "vitpe"]
KNOWN = set().union(*map(flags_of, OWN_COMMANDS)) | {"--help"}


@pytest.fixture
def in_folder_with_dinov2(
    make_dinov2: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, photographs: Path
) -> Path:
    """Where ``hf:dinov2-small`` is a folder: facts of it are read from its config alone."""
    folder = tmp_path / "dinov2-small"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(make_dinov2.CONFIG))
    (tmp_path / "photos").symlink_to(photographs)
    (tmp_path / "digits").symlink_to(photographs)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_two_commands_come_first() -> None:
    first = [b.strip() for b in blocks(README, "console")[:2]]
    assert first == [
        "$ pip install '.[export]' && vitpe-export --res 384",
        "$ pip install '.[test]' && pytest -n auto",
    ]


def test_readme_shows_exports_and_refusals() -> None:
    assert len(EXPORTS) >= 5
    assert len(REFUSALS) >= 2


@pytest.mark.parametrize("command", EXPORTS, ids=lambda c: " ".join(c.argv[1:]) or "default")
@pytest.mark.usefixtures("in_folder_with_dinov2")
def test_exports_of_the_readme_can_be_planned(
    command: Shown, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = command in REFUSALS
    code = cli.export_main([*command.argv[1:], "--dry-run"])
    captured = capsys.readouterr()
    assert code == (2 if refused else 0), captured.err
    if refused:
        assert captured.err.strip().endswith(command.output)
    elif command.output:
        for path in re.findall(r"^(out/\S+)  ", command.output, re.MULTILINE):
            assert f"would write   {path}\n" in captured.out


@pytest.mark.parametrize("command", EXPORTS, ids=lambda c: " ".join(c.argv[1:]) or "default")
def test_shown_exports_have_every_step_and_a_verdict(command: Shown) -> None:
    if not command.output or command in REFUSALS:
        return
    for step in range(1, 7):
        assert (f"[{step}/6] " in command.output) is ("-q" not in command.argv)
    result = r"^out/\S+  [\d.]+ MB  passed  (top-1 [\d.]+ \(at least [\d.]+\), )?max rel "
    assert re.search(result, command.output, re.MULTILINE)


def test_shown_commands_use_flags_that_exist() -> None:
    for command in (*COMMANDS, *shown(CONTRIBUTING)):
        name = command.name.removeprefix("vitpe-")
        for word in command.argv[1:]:
            if word.startswith("--"):
                assert word in flags_of(name), " ".join(command.argv)


@pytest.mark.parametrize("text", [README, CONTRIBUTING], ids=["README", "CONTRIBUTING"])
def test_flags_in_prose_exist(text: str) -> None:
    assert set(FLAG.findall(text)) <= KNOWN


def test_help_and_readme_name_the_same_exit_codes() -> None:
    said = re.search(r"Exit codes: (.*?)\.", " ".join(README.split()))
    assert said is not None
    assert re.findall(r"\b\d+\b", said[1]) == re.findall(r"\b\d+\b", cli_options.EXIT_CODES)


def test_help_of_the_model_names_every_source() -> None:
    (argument,) = get_args(cli_options.ModelName)[1:]
    for word in (*(f"{prefix}:" for prefix in PREFIXES), "digits-", ".onnx", ".toml"):
        assert word in argument.help


def test_help_of_rtol_names_the_default_of_each_precision() -> None:
    (option,) = get_args(cli_options.Rtol)[1:]
    for precision, rtol in DEFAULT_RTOL.items():
        assert f"1e{math.log10(rtol):.0f} for {precision}" in option.help


def test_python_of_the_readme_fits_the_interface() -> None:
    checked = set()
    for block in blocks(README, "python"):
        for node in ast.walk(ast.parse(block)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if isinstance(node.func.value, ast.Name) and node.func.value.id == "vitpe_deploy":
                signature = inspect.signature(getattr(vitpe_deploy, node.func.attr))
                signature.bind(*node.args, **{k.arg: k.value for k in node.keywords if k.arg})
                checked.add(node.func.attr)
    assert {"export", "load", "verify"} <= checked


def test_table_of_encodings_is_complete() -> None:
    section = README.partition("### Positional encodings")[2].partition("###")[0]
    rows = re.findall(r"^\| ([a-z0-9-]+) \| ([a-z, ]+) \|", section, re.MULTILINE)
    named = {name: tuple(networks.split(", ")) for name, networks in rows if name != "name"}
    assert named == {name: encodings.get(name).networks for name in encodings.names()}


@pytest.mark.parametrize("grid", [(4, 4), (3, 5), (6, 2), (1, 7)])
def test_example_encoding_keeps_the_contract(grid: tuple[int, int]) -> None:
    namespace: dict[str, Any] = {"__name__": "coordinates"}
    (block,) = (b for b in blocks(CONTRIBUTING, "python") if "ENCODING = " in b)
    exec(compile(block, "CONTRIBUTING.md", "exec"), namespace)
    spec = EncodingSpec(grid=(4, 4), embed_dim=6, num_heads=2, depth=1, prefix_tokens=1)
    encoding = namespace["ENCODING"].build(spec)
    h, w = grid
    expected = torch.zeros(1, 1 + h * w, 6)
    for i in range(h):
        for j in range(w):
            centre = torch.tensor([(i + 0.5) / h, (j + 0.5) / w])
            expected[0, 1 + i * w + j, :2] = centre * 2 - 1
    for found in (encoding.positions(grid), encoding.fit(grid), encoding.in_graph(h, w)):
        torch.testing.assert_close(found["table"], expected)
    tokens = torch.ones(2, 1 + h * w, 6)
    torch.testing.assert_close(
        encoding.tokens(tokens, encoding.fit(grid)), 1 + expected.expand(2, -1, -1)
    )
    assert encoding.describe().kind == "coordinates"


def test_example_family_is_a_declaration_of_the_code() -> None:
    (block,) = (b for b in blocks(CONTRIBUTING, "python") if "FAMILIES = " in b)
    namespace: dict[str, Any] = {"__name__": "families"}
    exec(compile(block, "CONTRIBUTING.md", "exec"), namespace)
    shown_families = namespace["FAMILIES"]
    assert len(shown_families) >= 2
    for name, family in shown_families.items():
        assert family == FAMILIES[name], name
        assert family != Family(), name


def test_extras_of_the_readme_exist() -> None:
    named = set(re.findall(r"`\[([a-z-]+)\]`", README))
    assert {"export", "all", "test"} <= named
    assert named <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("text", [README, CONTRIBUTING], ids=["README", "CONTRIBUTING"])
def test_files_that_are_named_exist(text: str) -> None:
    linked = re.findall(r"\]\(([^):#]+)\)", text)
    quoted = re.findall(r"`((?:vitpe_deploy|exporters|tests|benchmarks|\.ci)/[\w./]+)`", text)
    assert linked or quoted
    missing = [path for path in (*linked, *quoted) if not (ROOT / path).exists()]
    assert not missing
