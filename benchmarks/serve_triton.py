"""A repository of ``--layout triton`` in a real Triton server, its answers against PyTorch.

    python benchmarks/serve_triton.py

The server is the ``tritonserver`` that nvidia-pytriton ships; an environment of 450 MB is made in a
temporary folder, ``--server-env DIR`` keeps it. That package lacks the ONNX Runtime backend, so a
short one on Triton's Python backend stands in for it; the repository runs as it was written.
Measured: models that become ready, the largest difference from PyTorch, the same for eight requests
at once, which the server joins into batches, and whether a model with wrong dims becomes ready.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
SERVER = "nvidia-pytriton==0.7.0"
MODEL = "digits-rope-2d"
LIMIT = 1e-4

BACKEND = '''
import json, os
import onnxruntime
import triton_python_backend_utils as triton


class TritonPythonModel:
    """As much of the onnxruntime backend as a repository of ours asks for."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        folder = os.path.join(args["model_repository"], args["model_version"])
        path = os.path.join(folder, config["default_model_filename"])
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.outputs = [output["name"] for output in config["output"]]
        self.runs, self.most = 0, 0

    def execute(self, requests):
        import numpy
        batches = [{t.name(): t.as_numpy() for t in r.inputs()} for r in requests]
        joined = {name: numpy.concatenate([b[name] for b in batches]) for name in batches[0]}
        try:
            values = self.session.run(self.outputs, joined)
        except Exception as problem:
            error = triton.TritonError(str(problem))
            return [triton.InferenceResponse(error=error) for _ in requests]
        first, answers = 0, []
        for batch in batches:
            last = first + len(next(iter(batch.values())))
            tensors = [triton.Tensor(n, v[first:last]) for n, v in zip(self.outputs, values)]
            answers.append(triton.InferenceResponse(tensors))
            first = last
        return answers
'''


def main() -> int:
    """Print what was seen as JSON; 1 when anything is not as promised."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server-env", type=Path, help="environment of the server, made if absent")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        site = _server(arguments.server_env or work / "env")
        backends = _backends(site, work / "backends")
        out = work / "out"
        for dynamic in ("none", "all"):
            flags = ["--layout", "triton", "--dynamic", dynamic, "-o", str(out), "-q"]
            _run("vitpe-export", MODEL, *flags)
        seen = _ask(site, backends, out)
        seen["wrong_dims_ready"] = _wrong_dims(site, backends, out, work / "wrong")
    print(json.dumps(seen, indent=2))
    good = seen["max_rel"] <= LIMIT and seen["max_rel_joined"] <= LIMIT
    return 0 if good and seen["largest_batch"] > 1 and not seen["wrong_dims_ready"] else 1


def _run(*command: str) -> None:
    program = str(Path(sys.executable).parent / command[0])
    subprocess.run([program, *command[1:]], check=True, stdout=sys.stderr)


def _server(env: Path) -> Path:
    """Folder of the packages of the server's environment."""
    python = env / "bin" / "python"
    if not python.is_file():
        print(f"installing {SERVER}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(env)], check=True)
        packages = [SERVER, "numpy<2", "onnxruntime"]
        subprocess.run([str(python), "-m", "pip", "install", "-qq", *packages], check=True)
    (site,) = (env / "lib").glob("python*/site-packages")
    return site


def _backends(site: Path, folder: Path) -> Path:
    home = site / "pytriton" / "tritonserver"
    version = site.parent.name.removeprefix("python")
    shutil.copytree(home / "backends" / "python", folder / "python")
    for file in (home / "python_backend_stubs" / version).iterdir():
        shutil.copy(file, folder / "python")
    (folder / "onnxruntime").mkdir()
    (folder / "onnxruntime" / "model.py").write_text(BACKEND)
    return folder


@contextmanager
def _serving(site: Path, backends: Path, repository: Path) -> Iterator[tuple[str, bool]]:
    """Address of a server of a repository, and whether all its models became ready."""
    ports = [_free_port() for _ in range(3)]
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(site / "nvidia_pytriton.libs"),
        "PATH": f"{site.parents[2] / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    environment.pop("PYTHONPATH", None)
    log = (repository.parent / "server.log").open("w")
    server = subprocess.Popen(
        [
            str(site / "pytriton" / "tritonserver" / "bin" / "tritonserver"),
            f"--model-repository={repository}", f"--backend-directory={backends}",
            f"--http-port={ports[0]}", f"--grpc-port={ports[1]}", f"--metrics-port={ports[2]}",
            "--exit-on-error=false",
        ],
        env=environment, stdout=log, stderr=subprocess.STDOUT,
    )  # fmt: skip
    address = f"http://localhost:{ports[0]}"
    try:
        yield address, _ready(address, server)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)
        log.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
    return port


def _ready(address: str, server: subprocess.Popen[bytes], patience_s: float = 60.0) -> bool:
    """Whether the server says that all models are ready; it is live before it knows."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until and server.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/v2/health/live", timeout=5)
            urllib.request.urlopen(f"{address}/v2/health/ready", timeout=5)
            return True
        except urllib.error.HTTPError:
            return False
        except OSError:
            time.sleep(0.5)
    return False


def _client() -> ModuleType:
    spec = importlib.util.spec_from_file_location("client", ROOT / "docs" / "serving" / "client.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _ask(site: Path, backends: Path, out: Path) -> dict[str, float]:
    import torch

    from vitpe_deploy.build_request import make_request
    from vitpe_deploy.export_steps import open_model

    client = _client()
    module = open_model(make_request(MODEL)).load().fresh()
    generator = np.random.default_rng(0)
    pictures = generator.standard_normal((8, 1, 1, 32, 32), dtype=np.float32)
    with torch.no_grad():
        wanted = [module(torch.from_numpy(p)).numpy() for p in pictures]
    names = sorted(path.name for path in out.iterdir() if path.is_dir())
    with _serving(site, backends, out) as (address, ready):
        if not ready:
            sys.exit((out.parent / "server.log").read_text()[-3000:])

        def error(job: tuple[str, int]) -> float:
            name, k = job
            answer = client.infer(address, name, "pixel_values", pictures[k])["logits"]
            return float(np.abs(answer - wanted[k]).max() / np.abs(wanted[k]).max())

        alone = max(error((name, k)) for name in names for k in range(3))
        (batched,) = (name for name in names if "dyn" in name)
        with ThreadPoolExecutor(8) as pool:
            joined = max(pool.map(error, [(batched, k % 8) for k in range(64)]))
        statistics = f"{address}/v2/models/{batched}/stats"
        with urllib.request.urlopen(statistics, timeout=10) as answer:
            batches = json.load(answer)["model_stats"][0]["batch_stats"]
    largest = max(int(b["batch_size"]) for b in batches)
    return {
        "models_ready": len(names), "max_rel": alone, "max_rel_joined": joined,
        "largest_batch": largest, "limit": LIMIT,
    }  # fmt: skip


def _wrong_dims(site: Path, backends: Path, out: Path, folder: Path) -> bool:
    """Whether a repository whose dims are not the model's becomes ready."""
    (model,) = (p for p in out.iterdir() if p.is_dir() and "dyn" not in p.name)
    shutil.copytree(model, folder / model.name)
    config = folder / model.name / "config.pbtxt"
    config.write_text(config.read_text().replace("32, 32 ]", "32, 40 ]"))
    with _serving(site, backends, folder) as (_, ready):
        return ready


if __name__ == "__main__":
    sys.exit(main())
