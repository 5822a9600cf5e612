"""What surrounds the commands: a clean stdout, interruption, defects, help."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

import vitpe_deploy
from vitpe_deploy import cli
from vitpe_deploy.cli_boundary import run_app

MODEL = [
    "vit_tiny_patch16_224",
    *("--model-kwarg", "image_size=96", "--model-kwarg", "embed_dim=32"),
    *("--model-kwarg", "depth=2", "--model-kwarg", "num_heads=2"),
    *("--model-kwarg", "num_classes=10", "--res", "64", "--threads", "2"),
]


@pytest.fixture(autouse=True)
def signals_as_in_a_terminal() -> Iterator[None]:
    """Jobs in the background ignore Ctrl-C, and so would everything that they start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def run(
    main: Any, arguments: Sequence[object], capfd: pytest.CaptureFixture[str]
) -> tuple[int, Any]:
    """Exit code and what was printed, down to the file descriptors."""
    capfd.readouterr()
    code = main([str(a) for a in arguments])
    return code, capfd.readouterr()


def test_libraries_that_print_do_not_reach_stdout(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def noisy(*_: object, **__: object) -> None:
        print("from python")
        os.write(1, b"from C\n")
        raise vitpe_deploy.VitpeError("enough")

    monkeypatch.setattr("sys.stdout", sys.__stdout__)
    monkeypatch.setattr("vitpe_deploy.export_steps.run_request", noisy)
    code, shown = run(cli.export_main, [*MODEL, "-o", tmp_path, "--json"], capfd)
    assert code == 1
    assert json.loads(shown.out)["message"] == "enough"
    assert "from python" in shown.err
    assert "from C" in shown.err


def test_ctrl_c_is_one_line_and_130(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("exporters.pipeline.trace", interrupt)
    code, shown = run(cli.export_main, [*MODEL, "-o", tmp_path / "out", "--json"], capfd)
    assert code == 130
    assert json.loads(shown.out) == {
        "schema": "vitpe.error/1",
        "kind": "interrupted",
        "message": "interrupted",
        "hint": "",
        "exit_code": 130,
    }
    assert shown.err.splitlines()[-1] == "error: interrupted"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interruption_that_a_library_renames(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
) -> None:
    """A module whose import was interrupted lacks names when it is used."""

    def half_imported(*_: object, **__: object) -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        except KeyboardInterrupt:
            raise AttributeError("module has no attribute 'exc'") from None

    before = signal.getsignal(number)
    monkeypatch.setattr("exporters.pipeline.trace", half_imported)
    code, shown = run(cli.export_main, [*MODEL, "-o", tmp_path / "out"], capfd)
    assert code == 130
    assert shown.err.splitlines()[-1] == "error: interrupted"
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(("flags", "shown_traceback"), [(["-v"], False), (["-vv"], True)])
def test_a_defect_shows_its_traceback_only_with_vv(
    flags: list[str],
    shown_traceback: bool,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise EOFError("of a\nlibrary")

    monkeypatch.setattr("vitpe_deploy.export_steps.plan_request", fail)
    code, shown = run(cli.export_main, ["--json", *flags], capfd)
    assert code == 1
    assert json.loads(shown.out)["kind"] == "internal"
    assert "error: EOFError: of a." in shown.err
    assert ("Traceback" in shown.err) is shown_traceback


# Help and names


@pytest.mark.parametrize(
    ("main", "arguments"),
    [(cli.main, []), (cli.main, ["export"]), (cli.export_main, []), (cli.verify_main, [])],
)
def test_help_ends_with_the_exit_codes(
    main: Any, arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    code, shown = run(main, [*arguments, "--help"], capfd)
    assert code == 0
    assert shown.err == ""
    text = " ".join(shown.out.split())
    assert "Exit codes: 0 fine; 1 failed; 2 usage; 3 parity outside tolerance" in text


@pytest.mark.parametrize("main", [cli.main, cli.export_main, cli.verify_main])
def test_version(main: Any, capfd: pytest.CaptureFixture[str]) -> None:
    code, shown = run(main, ["--version"], capfd)
    assert (code, shown.out) == (0, f"vitpe-deploy {vitpe_deploy.__version__}\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_strikes_in_a_destructor_is_not_lost(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    """Python prints and forgets what a destructor raises; the command would go on to its end."""

    class Struck:
        def __del__(self) -> None:
            signal.raise_signal(number)

    reached = []
    app = typer.Typer(add_completion=False)

    @app.command()
    def command() -> None:
        Struck()
        time.sleep(5)
        reached.append(True)

    hook = sys.unraisablehook
    assert run_app(app, "command", []) == 130
    assert not reached
    shown = capfd.readouterr()
    assert "interrupted" in shown.err
    assert "Traceback" not in shown.err
    assert "Exception ignored" not in shown.err
    assert sys.unraisablehook is hook
