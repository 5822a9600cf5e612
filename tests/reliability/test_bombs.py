"""A few bytes that claim to be many: refused before they are unpacked."""

from __future__ import annotations

import io
import itertools
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from vitpe_deploy import calibration, cli
from vitpe_deploy.bundle import open_bundle
from vitpe_deploy.calibration import check_calibration
from vitpe_deploy.errors import ArtifactError, SourceError, UsageError
from vitpe_deploy.inputs import ImageInput
from vitpe_deploy.runtimes.onnx_file import check_onnx_file
from vitpe_deploy.sources.weights import read_state_dict

MEGABYTE = 1 << 20


@contextmanager
def little_memory() -> Iterator[None]:
    """Fails when Python allocates more than 8 MB inside."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * MEGABYTE


def test_compressed_bundle(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx.bundle.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", b" " * (64 * MEGABYTE))
    with (
        little_memory(),
        pytest.raises(ArtifactError, match=r"'manifest.json' in it is compressed"),
        open_bundle(path),
    ):
        pass


def test_bundle_whose_members_share_their_bytes(tmp_path: Path) -> None:
    """The directory of an archive may name one stretch of bytes any number of times."""
    path = tmp_path / "m.onnx.bundle.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", b" " * MEGABYTE)
        first = archive.infolist()[0]
        for k in range(100):
            again = zipfile.ZipInfo(f"case{k}")
            for field in ("header_offset", "file_size", "compress_size", "CRC", "external_attr"):
                setattr(again, field, getattr(first, field))
            archive.filelist.append(again)
    assert path.stat().st_size < 2 * MEGABYTE
    with (
        little_memory(),
        pytest.raises(ArtifactError, match=r"claims to hold 1059"),
        open_bundle(path),
    ):
        pass


def test_compressed_checkpoint(tmp_path: Path) -> None:
    plain, bomb = tmp_path / "plain.pt", tmp_path / "bomb.pt"
    torch.save({"w": torch.zeros(4 * MEGABYTE)}, plain)
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            new.writestr(member.filename, old.read(member))
    assert bomb.stat().st_size < MEGABYTE
    assert read_state_dict(plain).tensors["w"].shape == (4 * MEGABYTE,)
    with little_memory(), pytest.raises(SourceError, match="in it is compressed"):
        read_state_dict(bomb)


def test_checkpoint_of_a_tensor_that_repeats_one_number(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    torch.save({"w": torch.zeros(1, dtype=torch.half).expand(10**12)}, path)
    with little_memory(), pytest.raises(SourceError, match=r"w is \[1000000000000\], more than"):
        read_state_dict(path)


@pytest.mark.parametrize("shape", ["(1, 3, 64, 64)", "(10**12,)", f"({10**12}, 3, 64, 64)"])
def test_calibration_that_unpacks_to_more_than_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """By what the archive says, whatever shape the array claims."""
    monkeypatch.setattr(calibration, "MOST_BYTES", MEGABYTE)
    header = io.BytesIO()
    description = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    text = description.encode().ljust(117) + b"\n"
    header.write(np.lib.format.magic(1, 0) + len(text).to_bytes(2, "little") + text)
    path = tmp_path / "c.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pixel_values.npy", header.getvalue() + bytes(64 * MEGABYTE))
    with little_memory(), pytest.raises(UsageError, match="unpacks to 67108992 bytes"):
        check_calibration(str(path), ImageInput())


def test_calibration_that_is_damaged_inside(tmp_path: Path) -> None:
    """Errors of zlib are no OSError."""
    path = tmp_path / "c.npz"
    np.savez_compressed(path, pixel_values=np.random.default_rng(0).normal(size=(2, 3, 8, 8)))
    data = bytearray(path.read_bytes())
    start = data.find(b"pixel_values.npy") + len("pixel_values.npy") + 20
    data[start : start + 40] = bytes(40)
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="cannot be read: "):
        check_calibration(str(path), ImageInput())


def deep_model(levels: int) -> bytes:
    """A branch in a branch in a branch, framed by hand: Python's protobuf refuses to nest so far.

    Field numbers are those of ``onnx.proto3``: graph 7 of a model, node 1 of a graph, attribute 5
    of a node, and graph 6 of an attribute.
    """

    def field(number: int, payload: bytes) -> bytes:
        size, out = len(payload), bytearray([number << 3 | 2])
        while size > 0x7F:
            out.append(size & 0x7F | 0x80)
            size >>= 7
        return bytes([*out, size]) + payload

    graph = b""
    for _ in range(levels):
        graph = field(1, field(5, field(6, graph)))
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    shell = helper.make_model(helper.make_graph([], "g", [value], [value]))
    shell.ClearField("graph")
    return field(7, graph) + shell.SerializeToString()


@pytest.mark.parametrize("levels", [50, 10_000])
def test_graphs_in_graphs_ten_thousand_deep(tmp_path: Path, levels: int) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(deep_model(levels))
    with pytest.raises(ArtifactError, match="nested more than 100 messages deep"):
        check_onnx_file(path)


def test_graphs_in_graphs_as_real_files_have_them(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(deep_model(8))
    check_onnx_file(path)
    assert len(onnx.load(path).graph.node) == 1


LAUGHS = """<?xml version="1.0"?>
<!DOCTYPE net [<!ENTITY a "ha">{entities}]>
<net name="&z;" version="11"><layers/></net>
"""


def test_every_command_refuses_deep_graphs_and_entities(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = "abcdefghijklmnopqrstuvwxyz"
    entities = "".join(
        f'<!ENTITY {new} "{f"&{old};" * 10}">' for old, new in itertools.pairwise(names)
    )
    deep, laughs = tmp_path / "deep.onnx", tmp_path / "laughs.xml"
    deep.write_bytes(deep_model(10_000))
    laughs.write_text(LAUGHS.format(entities=entities))
    laughs.with_suffix(".bin").write_bytes(b"")
    picture = tmp_path / "x.npy"
    np.save(picture, np.zeros((1, 3, 32, 32), np.float32))
    commands = [
        [cli.inspect_main, str(deep)],
        [cli.run_main, str(deep), str(picture)],
        [cli.verify_main, str(deep)],
        [cli.plot_main, str(deep), "-o", str(tmp_path / "plot")],
        [cli.export_main, str(deep), "-o", str(tmp_path / "out")],
        [cli.inspect_main, str(laughs)],
        [cli.run_main, str(laughs), str(picture)],
    ]
    for main, *arguments in commands:
        code = main(arguments)
        said = capsys.readouterr().err
        assert code in (1, 2), (arguments, said)
        assert sum(line.startswith("error: ") for line in said.splitlines()) == 1, said
        assert "defect" not in said
        assert "Traceback" not in said
