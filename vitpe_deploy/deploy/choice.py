"""Which file of a folder, and which engine for a file and a device."""

from __future__ import annotations

from pathlib import Path

from vitpe_deploy.bucket_index import bucket_files, find_indexes
from vitpe_deploy.buckets import SUFFIX as BUCKETS
from vitpe_deploy.errors import ArtifactError, UsageError
from vitpe_deploy.manifest import SUFFIX
from vitpe_deploy.runtimes import canonical

_OPENVINO_ONLY = ("GPU", "NPU", "AUTO", "HETERO", "MULTI", "BATCH")


def choose_artifact(path: Path, device: str, runtime: str | None) -> Path:
    """The artifact or the index of buckets that ``path`` means: itself, or the one of a folder.

    A folder may hold one export in both formats: the device and the runtime decide between them.

    Raises:
        ArtifactError: nothing there, or nothing of ours.
        UsageError: several exports in one folder.
    """
    if not path.is_dir():
        return path
    indexes = find_indexes(path)
    inside = {file for index in indexes for file in bucket_files(index)}
    found = indexes + sorted(
        artifact
        for file in path.glob(f"*{SUFFIX}")
        if (artifact := file.with_name(file.name.removesuffix(SUFFIX))) not in inside
    )
    if not found:
        raise ArtifactError(
            f"{path} holds no exported model (no *{SUFFIX})",
            hint="Name the folder that vitpe-export wrote to, or a file in it.",
        )
    wanted = ".xml" if choose_runtime(Path("x.xml"), device, runtime) == "openvino" else ".onnx"
    if runtime is None and device.upper() == "CPU":
        wanted = ".onnx"  # both engines read it
    same = [file for file in found if _model_suffix(file) == wanted] or found
    if len(same) > 1:
        listed = ", ".join(file.name for file in same)
        raise UsageError(f"{path} holds several exports: {listed}", hint="Name one of the files.")
    return same[0]


def _model_suffix(file: Path) -> str:
    """``.onnx`` or ``.xml``, of a file or of what an index of buckets lists."""
    return Path(file.name.removesuffix(BUCKETS)).suffix


def choose_runtime(artifact: Path, device: str, runtime: str | None) -> str:
    """The engine: the one asked for, else what the file and the device can go with.

    ONNX Runtime runs ``.onnx`` on the CPU; OpenVINO runs ``.xml``, and every other device.

    Raises:
        UsageError: no such engine.
    """
    if runtime is not None:
        return canonical(runtime)
    word = device.upper().partition(":")[0].partition(".")[0]
    if artifact.suffix == ".xml" or word in _OPENVINO_ONLY:
        return "openvino"
    return "onnxruntime"
