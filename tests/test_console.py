from __future__ import annotations

import io

import pytest

from vitpe_deploy.console import Console, error_block, row, wants_colour
from vitpe_deploy.errors import MissingExtraError, UsageError, VitpeError
from vitpe_deploy.request import Resolution
from vitpe_deploy.sources.base import SizeRule


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def refusal(size: str, patch: int, *, floors: bool = False) -> VitpeError:
    rule = SizeRule(
        (patch, patch), f"patch size {patch}", remainder="floors" if floors else "refuses"
    )
    with pytest.raises(VitpeError) as caught:
        rule.check(Resolution.parse(size))
    return caught.value


# Errors


@pytest.mark.parametrize(
    ("size", "patch", "line"),
    [
        (
            "380",
            16,
            "error: --res 380 does not fit patch size 16 (380 = 23*16 + 12). Use 368 or 384.",
        ),
        (
            "384x512",
            14,
            "error: --res 384x512 does not fit patch size 14. Height 378 or 392, width 504 or 518.",
        ),
    ],
)
def test_size_refusals_are_one_line_as_published(size: str, patch: int, line: str) -> None:
    assert error_block(refusal(size, patch)) == line


def test_a_long_size_refusal_stays_on_one_line() -> None:
    line = error_block(refusal("384x512", 14, floors=True))
    assert "\n" not in line
    assert len(line) > 100
    assert line.startswith(
        "error: --res 384x512 does not fit patch size 14. Height 378 or 392, width 504 or 518."
    )


def test_a_short_error_is_one_line_and_a_long_one_a_block() -> None:
    assert error_block(UsageError("no", hint="Do this.")) == "error: no. Do this."
    assert error_block(UsageError("no?", hint="Do this.")) == "error: no? Do this."
    assert error_block(UsageError("no")) == "error: no"
    long = error_block(UsageError("x" * 95, hint="Do this."))
    assert long == f"error: {'x' * 95}\n  hint: Do this."


def test_the_first_line_of_an_error_is_the_whole_message() -> None:
    assert error_block(UsageError("two\nlines")) == "error: two lines"


def test_a_missing_extra_prints_the_pip_install() -> None:
    assert error_block(MissingExtraError("torch", "export")) == (
        "error: torch is not installed. Run: pip install 'vitpe-deploy[export]'"
    )


# Colour


@pytest.mark.usefixtures("coloured")
def test_colour_needs_a_terminal_and_obeys_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wants_colour(Terminal())
    assert not wants_colour(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_colour(Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "")
    assert wants_colour(Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal())


@pytest.mark.usefixtures("coloured")
def test_colour_is_beside_the_words() -> None:
    stream = Terminal()
    console = Console(stream=stream)
    console.line("a", label="x", good=True)
    console.line("b", label="x", good=False)
    good, bad = stream.getvalue().splitlines()
    assert good.endswith("\x1b[32mok\x1b[0m")
    assert bad.endswith("\x1b[31mFAILED\x1b[0m")


# Steps


def test_the_block_looks_as_published() -> None:
    stream = io.StringIO()
    console = Console(stream=stream)
    console.begin(1, 6, "Load model")
    console.end("22.1 M params (random, seed 0), native 224x224", 0.41)
    console.begin(5, 6, "Parity")
    console.tick("PyTorch at 384x384")
    console.line("max rel 1.6e-06 (limit 1e-04)  top-1 8/8", label="onnxruntime", good=True)
    console.line("max rel 2.1e-06 (limit 1e-04)  top-1 8/8", label="openvino", good=False)
    console.end("")
    console.begin(6, 6, "Write")
    console.line("out/x.onnx", value="88.8 MB")
    console.end("")
    assert stream.getvalue().splitlines() == [
        f"[1/6] Load model            22.1 M params (random, seed 0), native 224x224{' ' * 8}0.4 s",
        f"[5/6] Parity  onnxruntime   max rel 1.6e-06 (limit 1e-04)  top-1 8/8{' ' * 14}ok",
        f"      Parity  openvino      max rel 2.1e-06 (limit 1e-04)  top-1 8/8{' ' * 14}FAILED",
        f"[6/6] Write                 out/x.onnx{' ' * 44}88.8 MB",
    ]


def test_columns_are_aligned_and_a_long_cell_keeps_its_distance() -> None:
    assert row("head", "text", "1").index("text") == 28
    assert row("head", "text", "1").index("1") == row("other", "more text", "1").index("1") == 82
    assert row("h" * 40, "t" * 60, "1") == f"{'h' * 40}  {'t' * 60}  1"
    assert row("head", "text") == row("head", "text").rstrip()


def test_a_step_without_lines_or_text_still_says_that_it_ended() -> None:
    stream = io.StringIO()
    console = Console(stream=stream)
    console.begin(2, 6, "Fit positions")
    console.end("", 0.0)
    assert stream.getvalue().split() == ["[2/6]", "Fit", "positions", "0.0", "s"]


def test_the_text_of_a_step_that_had_lines_follows_them() -> None:
    stream = io.StringIO()
    console = Console(stream=stream)
    console.begin(4, 6, "Optimise")
    console.line("after tidy", good=True)
    console.end("9 -> 8 nodes", 1.0)
    first, second = stream.getvalue().splitlines()
    assert first.startswith("[4/6] Optimise  ")
    assert second.startswith("      Optimise  ")
    assert second.split() == ["Optimise", "9", "->", "8", "nodes", "1.0", "s"]


@pytest.mark.parametrize(("verbosity", "shown"), [(-1, ""), (0, "note\n"), (1, "note\ndetail\n")])
def test_verbosity(verbosity: int, shown: str) -> None:
    stream = io.StringIO()
    console = Console(verbosity, stream)
    console.note("note")
    console.detail("detail")
    assert stream.getvalue() == shown


def test_quiet_shows_no_steps() -> None:
    stream = Terminal()
    console = Console(-1, stream)
    console.begin(1, 6, "Load model")
    console.tick("reading")
    console.line("x", good=False)
    console.end("done", 1.0)
    assert stream.getvalue() == ""


def test_without_a_terminal_there_is_no_spinner_and_no_escape() -> None:
    stream = io.StringIO()
    with Console(stream=stream) as console:
        console.begin(3, 6, "Trace")
        console.tick("block 3")
        console.end("412 nodes", 5.1)
    assert "\x1b" not in stream.getvalue()
    assert "block 3" not in stream.getvalue()
    assert stream.getvalue().count("\n") == 1


@pytest.mark.usefixtures("coloured")
def test_on_a_terminal_the_current_step_spins_and_ends() -> None:
    stream = Terminal()
    with Console(stream=stream) as console:
        console.begin(3, 6, "Trace")
        console.tick("block 3")
        console.end("412 nodes", 5.1)
    shown = stream.getvalue()
    assert "[3/6] Trace" in shown
    assert "412 nodes" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") > 0  # the cursor is back


@pytest.mark.usefixtures("coloured")
def test_a_failure_inside_a_step_stops_the_spinner() -> None:
    stream = Terminal()

    def work() -> None:
        with Console(stream=stream) as console:
            console.begin(3, 6, "Trace")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert stream.getvalue().count("\x1b[?25l") == stream.getvalue().count("\x1b[?25h") > 0
