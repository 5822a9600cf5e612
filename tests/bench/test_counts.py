"""Operations counted from graphs, the measured peak, and what the host says."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitpe_deploy.bench.flops import gflops
from vitpe_deploy.bench.gemm import gemm_peak_gflops
from vitpe_deploy.bench.host import isa_of, read_host, warnings

from .conftest import ROWS, WIDTH, MakeChain


def test_operations_of_a_chain(make_chain: MakeChain) -> None:
    path = make_chain("a.onnx", 7)
    assert gflops(path, (1, ROWS, WIDTH)) == pytest.approx(7 * 2 * ROWS * WIDTH**2 / 1e9)


def test_operations_follow_a_symbolic_size(make_chain: MakeChain) -> None:
    path = make_chain("a.onnx", 2, dims=("batch", "rows", WIDTH))
    assert gflops(path, (3, 5, WIDTH)) == pytest.approx(2 * 2 * 15 * WIDTH**2 / 1e9)


def test_what_cannot_be_read_has_no_count(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"nothing")
    assert gflops(tmp_path / "a.onnx", (1,)) is None


def test_peak_is_a_plausible_number() -> None:
    assert 1 < gemm_peak_gflops(1) < 20_000


def test_isa_words_of_both_families() -> None:
    assert isa_of("processor : 0\nflags\t\t: fpu avx2 fma nonsense\n") == ("avx2", "fma")
    assert isa_of("Features\t: fp asimd i8mm") == ("asimd", "i8mm")
    assert isa_of("") == ()


def test_host_names_the_versions_it_ran() -> None:
    host = read_host()
    assert {"numpy", "onnxruntime", "openvino", "python"} <= set(host.versions)
    assert host.cores_used >= 1


def test_more_threads_than_cpus_is_said() -> None:
    assert any("take turns" in text for text in warnings(read_host().cores_used + 1))
    assert not any("take turns" in text for text in warnings(1))
