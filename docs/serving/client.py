"""Ask a served model about pictures, by the KServe V2 protocol over HTTP.

    python client.py http://localhost:8000 MODEL out/MODEL/1/FILE.onnx.manifest.json cat.jpg

Triton, OpenVINO Model Server and KServe speak this protocol. Preprocessing comes from the manifest
of the export. Needs the base install of vitpe-deploy; the server may be anywhere.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from vitpe_deploy.deploy.inputs import pictures_to_batch
from vitpe_deploy.manifest import Manifest
from vitpe_deploy.request import Resolution

_TYPES = {"float32": "FP32", "float16": "FP16", "int64": "INT64", "uint8": "UINT8"}
_DTYPES = {name: dtype for dtype, name in _TYPES.items()}


def infer(server: str, model: str, name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Outputs of one request, by name.

    Args:
        server: address of the HTTP endpoint.
        model: name of the model in the repository.
        name: name of its input.
        values: the batch, in the dtype of the input.

    Raises:
        urllib.error.HTTPError: the server refused; its body holds the reason.
    """
    tensor = {
        "name": name,
        "shape": list(values.shape),
        "datatype": _TYPES[str(values.dtype)],
        "data": values.ravel().tolist(),
    }
    request = urllib.request.Request(
        f"{server}/v2/models/{model}/infer",
        data=json.dumps({"inputs": [tensor]}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        document: dict[str, Any] = json.load(answer)
    return {
        output["name"]: np.array(output["data"], _DTYPES[output["datatype"]]).reshape(
            output["shape"]
        )
        for output in document["outputs"]
    }


def main(server: str, model: str, manifest_file: str, *pictures: str) -> None:
    """Print the best class of each picture."""
    manifest = Manifest.model_validate_json(Path(manifest_file).read_bytes())
    size = manifest.size() or Resolution(*(manifest.native_resolution or (224, 224)))
    batch = pictures_to_batch(pictures, size, manifest.layout(), manifest.preprocessing())
    logits = infer(server, model, manifest.inputs[0].name, batch)["logits"]
    for picture, row in zip(pictures, logits, strict=True):
        best = int(row.argmax())
        print(picture, manifest.labels[best] if manifest.labels else best)


if __name__ == "__main__":
    main(*sys.argv[1:])
