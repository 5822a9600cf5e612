from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import typer
from PIL import Image

from vitpe_deploy.cli_boundary import run_app
from vitpe_deploy.cli_plot import plot_command
from vitpe_deploy.errors import MissingExtraError, UsageError
from vitpe_deploy.plot import draw, positions

KINDS = [
    ("sincos-2d", "similarity"),
    ("sincos-2d", "matrix"),
    ("relative-2d", "bias"),
    ("rope-2d", "frequencies"),
    ("decomposed", "bias"),
]
OPTIONS = [
    "vit_tiny_patch16_224", "--model-kwarg", "image_size=96", "--model-kwarg", "embed_dim=32",
    "--model-kwarg", "depth=2", "--model-kwarg", "num_heads=2", "-q",
]  # fmt: skip


@pytest.mark.parametrize(("encoding", "kind"), KINDS)
def test_the_same_numbers_give_the_same_bytes(seen, tmp_path, encoding, kind):
    import matplotlib

    plot = seen(encoding, 144, kind=kind)
    for ending in ("svg", "png"):
        first = draw(plot, tmp_path / f"a.{ending}").read_bytes()
        with matplotlib.rc_context({"font.size": 30, "svg.hashsalt": None}):  # a user's settings
            second = draw(plot, tmp_path / f"b.{ending}").read_bytes()
            assert matplotlib.rcParams["font.size"] == 30
        assert first == second


@pytest.mark.parametrize(("encoding", "kind"), KINDS)
def test_svg_says_model_encoding_and_grids(seen, tmp_path, encoding, kind):
    path = draw(seen(encoding, 144, kind=kind), tmp_path / "a.svg")
    words = " ".join(ET.parse(path).getroot().itertext())
    assert f"vit_tiny_patch16_224: {encoding} positions" in words
    assert "grid 6x6 (96x96 px), native" in words
    assert "grid 9x9 (144x144 px)" in words
    axis = {"frequencies": "channel pair", "matrix": "token"}.get(kind, "patch row")
    assert axis in words
    assert "<dc:date>" not in path.read_text()


def test_cells_are_whole_pixels_of_the_right_colour(seen, tmp_path):
    """Every map of the picture has its brightest cell at its own place."""
    path = draw(seen("sincos-2d"), tmp_path / "a.png")
    pixels = np.asarray(Image.open(path))
    yellow = (np.abs(pixels.astype(int) - [253, 231, 36, 255]) <= 1).all(axis=2)
    yellow[:, 760:] = False  # the colour bar
    rows, columns = np.nonzero(yellow)
    side = rows.max() - rows.min() + 1
    step = 41  # 6 maps of 6 cells and 5 lines
    cell = side // step
    assert side == cell * step
    cells = np.unique(
        np.stack([(rows - rows.min()) // cell, (columns - columns.min()) // cell]), axis=1
    ).T
    right = {(i * 7 + i, j * 7 + j) for i in range(6) for j in range(6)}
    assert {tuple(map(int, c)) for c in cells} == right
    assert abs(int(yellow.sum()) - 36 * cell * cell) <= 6  # ticks touch a few pixels


@pytest.mark.parametrize(
    ("encoding", "axes"),
    [("relative-1d", ("head", "token")), ("rope-1d", ("channel pair", "token"))],
)
def test_words_lie_on_a_line(tmp_path, encoding, axes):
    kwargs = {"context_length": 9, "embed_dim": 32, "depth": 1, "num_heads": 2, "vocab_size": 50}
    plot = positions("text_clip_base", encoding=encoding, model_kwargs=kwargs)
    path = draw(plot, tmp_path / "a.svg")
    words = [text.strip() for text in ET.parse(path).getroot().itertext() if text.strip()]
    assert "9 tokens, native" in words
    assert set(axes) <= set(words)
    assert not any("patch" in word for word in words if word != f"{plot.model}")


def test_background_is_transparent(seen, tmp_path):
    path = draw(seen("rope-2d"), tmp_path / "a.png")
    picture = Image.open(path)
    assert picture.mode == "RGBA"
    assert picture.getpixel((2, 2))[3] == 0


def test_existing_files_and_unknown_formats_are_refused(seen, tmp_path):
    plot = seen("learned-1d")
    path = draw(plot, tmp_path / "a.svg")
    with pytest.raises(UsageError, match="exists already"):
        draw(plot, path)
    draw(plot, path, force=True)
    with pytest.raises(UsageError, match="--format 'gif' is not known"):
        draw(plot, tmp_path / "a.gif")


def test_missing_matplotlib_names_the_extra(seen, tmp_path, monkeypatch):
    plot = seen("learned-1d")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError) as caught:
        draw(plot, tmp_path / "a.svg")
    assert caught.value.hint == "Run: pip install 'vitpe-deploy[report]'"
    assert not list(tmp_path.iterdir())


def run(*arguments):
    app = typer.Typer(add_completion=False)
    app.command()(plot_command)
    return run_app(app, "vitpe-plot", [*OPTIONS, *map(str, arguments)])


def test_command_writes_and_says_where(tmp_path, capsys):
    assert run("--pe", "relative-2d", "--query", "1,2", "--head", 1, "--res", 144,
               "--format", "svg,png", "-o", tmp_path) == 0  # fmt: skip
    stem = "vit_tiny_patch16_224+relative-2d-bias-head1-query1x2-144x144"
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{stem}.png", f"{stem}.svg"]
    assert f"{stem}.svg" in capsys.readouterr().out


def test_command_json(tmp_path, capsys, seen):
    assert run("--pe", "sincos-2d", "--json", "-o", tmp_path) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "vitpe.plot/1"
    assert (document["kind"], document["encoding"]) == ("similarity", "sincos-2d")
    assert document["grid"] == [6, 6]
    assert [f["format"] for f in document["files"]] == ["svg"]
    (panel,) = document["panels"]
    right = seen("sincos-2d").panels[0].values
    np.testing.assert_allclose(panel["values"], right, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pe", "none"], "nothing to draw"),
        (["--query", "3"], "cannot read --query '3'"),
        (["--format", "gif"], "--format 'gif' is not known"),
        (["--kind", "biass"], "Did you mean 'bias'?"),
        (["--res", "100"], "100 does not fit patch size 16"),
    ],
)
def test_command_refusals(tmp_path, capsys, arguments, message):
    assert run(*arguments, "-o", tmp_path / "out") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
