"""The public surface fails a test when a name is added or lost by accident."""

from __future__ import annotations

import pytest

import vitpe_deploy


def test_public_names() -> None:
    expected = {
        "BenchReport",
        "benchmark",
        "ExportReport",
        "InspectReport",
        "LoadedArtifact",
        "LoadedBuckets",
        "LoadedPair",
        "Resolution",
        "VerifyReport",
        "VitpeError",
        "__version__",
        "export",
        "inspect",
        "load",
        "load_pair",
        "verify",
    }
    assert set(vitpe_deploy.__all__) == set(dir(vitpe_deploy)) == expected
    assert len(vitpe_deploy.__all__) == len(expected)
    for name in expected:
        value = getattr(vitpe_deploy, name)
        assert name == "__version__" or value.__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'exprot'"):
        _ = vitpe_deploy.exprot
