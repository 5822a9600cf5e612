"""Put the page, ONNX Runtime for the web and exported files into one folder that any server serves.

npm install onnxruntime-web@1.30
vitpe-export digits-rope-2d -o out
python docs/browser/build.py site out/digits-rope-2d-32x32-fp32.onnx
python -m http.server -d site
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from vitpe_deploy.errors import VitpeError
from vitpe_deploy.manifest import manifest_path, read_manifest

PAGE = ("index.html", "app.mjs", "preprocess.mjs", "resample.mjs")
ENGINE = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")


def build(site: Path, engine: Path, artifacts: list[Path]) -> None:
    """Write ``site``.

    Args:
        site: the folder; made where it is not there.
        engine: ``dist`` of the npm package onnxruntime-web.
        artifacts: ``.onnx`` files of ours with their manifests.

    Raises:
        VitpeError: an artifact is incomplete or no picture model in one ONNX file.
    """
    missing = [name for name in ENGINE if not (engine / name).is_file()]
    if missing:
        raise VitpeError(
            f"{engine} has no {missing[0]}", hint="npm install onnxruntime-web@1.30, then --engine."
        )
    for folder in ("models", "ort"):
        (site / folder).mkdir(parents=True, exist_ok=True)
    for name in PAGE:
        shutil.copy(Path(__file__).with_name(name), site / name)
    for name in ENGINE:
        shutil.copy(engine / name, site / "ort" / name)
    for artifact in artifacts:
        manifest = read_manifest(artifact)
        if (
            manifest.format != "onnx"
            or len(manifest.files) != 1
            or manifest.layout().kind != "image"
        ):
            raise VitpeError(f"{artifact.name} is not a picture model in one ONNX file")
        for path in (artifact, manifest_path(artifact)):
            shutil.copy(path, site / "models" / path.name)
    index = json.dumps([path.name for path in artifacts], indent=2)
    (site / "models" / "index.json").write_text(index + "\n", encoding="utf-8")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path, help="folder to write")
    parser.add_argument("artifacts", type=Path, nargs="+", help="exported .onnx files")
    parser.add_argument(
        "--engine", type=Path, default=Path("node_modules/onnxruntime-web/dist"),
        help="dist folder of the npm package onnxruntime-web (default: %(default)s)",
    )  # fmt: skip
    arguments = parser.parse_args()
    try:
        build(arguments.site, arguments.engine, arguments.artifacts)
    except VitpeError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
