"""One file that proves an artifact anywhere: artifact, manifest, inputs and reference outputs.

A bundle is an uncompressed zip named ``<artifact>.bundle.zip``. It is checked with numpy and an
engine alone; it is unpacked into a temporary folder under the names that its manifest lists and no
others.
"""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from vitpe_deploy.errors import ArtifactError, VitpeError
from vitpe_deploy.files import StagedFiles, refuse_existing, sha256_of
from vitpe_deploy.manifest import Manifest, manifest_path
from vitpe_deploy.parity import Outputs, ParityCase
from vitpe_deploy.request import Resolution
from vitpe_deploy.results import JudgedOn

SUFFIX = ".bundle.zip"

_MANIFEST = "manifest.json"
_CASES = "cases.json"
_FIXED_DATE = (1980, 1, 1, 0, 0, 0)
_CHUNK = 8 << 20
_JUDGED_ON: TypeAdapter[JudgedOn | None] = TypeAdapter(JudgedOn | None)


@dataclass(frozen=True, slots=True)
class Bundle:
    """An unpacked bundle. ``reference`` is what gave the stored outputs."""

    manifest: Manifest
    artifact: Path
    cases: tuple[ParityCase, ...]
    stored: tuple[list[Outputs], ...]
    reference: str

    def expected(self, case: ParityCase) -> list[Outputs]:
        """The stored outputs of one of its cases."""
        return self.stored[[c is case for c in self.cases].index(True)]


def is_bundle(path: Path) -> bool:
    """Whether the name is that of a bundle."""
    return path.name.endswith(SUFFIX)


def write_bundle(
    artifact: Path,
    manifest: Manifest,
    pairs: Sequence[tuple[ParityCase, list[Outputs]]],
    folder: Path,
    *,
    reference: str,
    force: bool = False,
) -> Path:
    """Pack an artifact with inputs and the outputs of a reference. Gives the path of the bundle.

    Raises:
        UsageError: the file exists already.
    """
    name = artifact.name + SUFFIX
    refuse_existing([folder / name], force=force)
    with StagedFiles(folder) as staging:
        with zipfile.ZipFile(staging.path(name), "w", zipfile.ZIP_STORED) as bundle:
            for file in manifest.files:
                with (
                    (artifact.parent / file).open("rb") as source,
                    bundle.open(
                        zipfile.ZipInfo(file, _FIXED_DATE), "w", force_zip64=True
                    ) as target,
                ):
                    while chunk := source.read(_CHUNK):
                        target.write(chunk)
            _write(bundle, _MANIFEST, manifest.as_json().encode())
            described = []
            for number, (case, outputs) in enumerate(pairs):
                described.append(
                    {
                        "size": case.size.as_list(),
                        "batch": case.batch,
                        "inputs": len(case.inputs),
                        "reference": reference,
                        "data": case.data,
                    }
                )
                for k, (array, named) in enumerate(zip(case.inputs, outputs, strict=True)):
                    _write(bundle, f"case{number}/in{k}.npy", _npy(array))
                    for place, output in enumerate(manifest.outputs):
                        data = _npy(named[output.name])
                        _write(bundle, f"case{number}/out{k}_{place}.npy", data)
            _write(bundle, _CASES, json.dumps(described).encode())
        return staging.commit(replace=force)[0]


def _write(bundle: zipfile.ZipFile, name: str, data: bytes) -> None:
    bundle.writestr(zipfile.ZipInfo(name, _FIXED_DATE), data)


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.ascontiguousarray(array), allow_pickle=False)
    return stream.getvalue()


@contextmanager
def open_bundle(path: Path) -> Iterator[Bundle]:
    """Unpack a bundle for the time of the ``with``.

    Raises:
        ArtifactError: not a bundle, damaged, or names outside it.
    """
    if not path.is_file():
        raise ArtifactError(f"{path} does not exist")
    with tempfile.TemporaryDirectory(prefix="vitpe-bundle-") as folder:
        try:
            bundle = _unpack(path, Path(folder))
        except VitpeError:
            raise
        except Exception as problem:  # of zipfile, zlib, pydantic, json, and numpy's header parser
            lines = str(problem).splitlines() or [type(problem).__name__]
            raise ArtifactError(
                f"{path} is not a bundle or is damaged: {lines[0][:200]}"
            ) from problem
        yield bundle


def _unpack(path: Path, folder: Path) -> Bundle:
    with zipfile.ZipFile(path) as bundle:
        _refuse_bomb(path, bundle)
        manifest = Manifest.model_validate_json(bundle.read(_MANIFEST))
        for name in manifest.files:
            if Path(name).name != name or name in ("", ".", ".."):
                raise ArtifactError(f"{path} names a file outside the bundle: {name!r}")
            with bundle.open(name) as source, (folder / name).open("wb") as target:
                while chunk := source.read(_CHUNK):
                    target.write(chunk)
        artifact = folder / manifest.files[0]
        if sha256_of(artifact) != manifest.sha256:
            raise ArtifactError(f"{path} is damaged: {artifact.name} does not match its hash")
        manifest_path(artifact).write_text(manifest.as_json(), encoding="utf-8")
        cases, stored = [], []
        reference = manifest.reference  # of bundles that do not say it themselves
        for number, described in enumerate(json.loads(bundle.read(_CASES))):
            reference = str(described.get("reference", reference))
            size = Resolution(*map(int, described["size"]))
            count = int(described["inputs"])
            inputs = tuple(_load(bundle, f"case{number}/in{k}.npy") for k in range(count))
            data = _JUDGED_ON.validate_python(described.get("data"))
            cases.append(ParityCase(size, int(described["batch"]), inputs, data))
            stored.append(
                [
                    {
                        output.name: _load(bundle, f"case{number}/out{k}_{place}.npy")
                        for place, output in enumerate(manifest.outputs)
                    }
                    for k in range(count)
                ]
            )
    return Bundle(manifest, artifact, tuple(cases), tuple(stored), reference)


def _refuse_bomb(path: Path, bundle: zipfile.ZipFile) -> None:
    """Bundles are stored as they are, so what is in them is no larger than they.

    Raises:
        ArtifactError: a compressed member, or members that claim more bytes than there are.
    """
    members = bundle.infolist()
    packed = next((m for m in members if m.compress_type != zipfile.ZIP_STORED), None)
    if packed is not None:
        raise ArtifactError(
            f"{path} is not a bundle of ours: {packed.filename!r} in it is compressed",
            hint="Make it with vitpe-verify ARTIFACT --bundle.",
        )
    claimed, size = sum(m.file_size for m in members), path.stat().st_size
    if claimed > size:
        raise ArtifactError(f"{path} is damaged: it has {size} bytes and claims to hold {claimed}")


def _load(bundle: zipfile.ZipFile, name: str) -> np.ndarray:
    array: np.ndarray = np.load(io.BytesIO(bundle.read(name)), allow_pickle=False)
    return array
