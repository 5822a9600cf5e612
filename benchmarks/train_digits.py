"""Train the embedded models ``digits-<encoding>`` and write their weights and logs.

    python benchmarks/train_digits.py                        # all of them
    python benchmarks/train_digits.py --only digits-rope-2d  # one; repeat the flag for more

A run repeats itself bit by bit: the seed is fixed, torch uses one thread and its deterministic
algorithms, pictures are moved and resized by Pillow in whole numbers. Two threads add in another
order and give other weights. So may another release of torch or another kind of processor; the log
beside the weights says what these were made with. Needs scikit-learn.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitpe_deploy import digits
from vitpe_deploy.digits import dataset
from vitpe_deploy.errors import UsageError, VitpeError
from vitpe_deploy.models.networks import native_size, network_of
from vitpe_deploy.models.presets import VideoConfig
from vitpe_deploy.request import closest

LIBRARIES = ("torch", "numpy", "pillow", "scikit-learn", "safetensors")

EPOCHS = {"window-bias": 30, "log-cpb": 30, "relative-1d": 40, "relative-2d": 40}
"""By encoding; 20 for the others."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a network is trained.

    Attributes:
        max_shift: of a digit, in pixels of the 8x8 picture, each axis; 0.5 is 2 pixels of 32.
        max_zoom: a digit is drawn between 1 - this and 1 + this times its size.
    """

    seed: int = 0
    epochs: int = 20
    batch: int = 32
    learning_rate: float = 2e-3
    weight_decay: float = 0.05
    warmup_epochs: int = 2
    label_smoothing: float = 0.1
    max_grad_norm: float = 1.0
    max_shift: float = 0.5
    max_zoom: float = 0.3


def recipe_for(model: str) -> Recipe:
    """The recipe of one model; those that know positions from a bias alone learn more slowly."""
    return replace(Recipe(), epochs=EPOCHS.get(digits.PRESETS[model].encoding, Recipe().epochs))


@contextmanager
def repeatable(seed: int) -> Iterator[None]:
    """One thread, deterministic algorithms and a seeded generator; everything is put back."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.use_deterministic_algorithms(strict)
        torch.set_num_threads(threads)


def inputs(config: Any, pixels: dataset.Pixels) -> Tensor:
    """Digits at the native size, as pictures or as clips, unchanged."""
    size = native_size(config)
    if isinstance(config, VideoConfig):
        return torch.from_numpy(dataset.clips(pixels, size, config.frames))
    return torch.from_numpy(dataset.pictures(pixels, size))


def augmented(
    config: Any, pixels: dataset.Pixels, recipe: Recipe, generator: np.random.Generator
) -> Tensor:
    """Every digit once, moved and zoomed at random; the digit of a clip goes anywhere."""
    size, count = native_size(config), len(pixels)
    shifts = generator.uniform(-recipe.max_shift, recipe.max_shift, (count, 2))
    zooms = generator.uniform(1 - recipe.max_zoom, 1 + recipe.max_zoom, count)
    if not isinstance(config, VideoConfig):
        drawn = [
            dataset.displaced(digit, (float(y), float(x)), float(zoom), size)
            for digit, (y, x), zoom in zip(pixels, shifts, zooms, strict=True)
        ]
        return torch.from_numpy(dataset.normalise(np.stack(drawn))[:, None])
    velocities = generator.uniform(-dataset.STEP, dataset.STEP, (count, 2))
    times = np.arange(config.frames) - (config.frames - 1) / 2
    films = [
        np.stack(
            [
                dataset.displaced(digit, (float(y + t * dy), float(x + t * dx)), float(zoom), size)
                for t in times
            ]
        )
        for digit, (y, x), (dy, dx), zoom in zip(pixels, shifts, velocities, zooms, strict=True)
    ]
    return torch.from_numpy(dataset.normalise(np.stack(films))[:, None])


def accuracy(network: nn.Module, pictures: Tensor, labels: Tensor) -> float:
    """Share of pictures whose largest logit is the right one."""
    network.eval()
    with torch.no_grad():
        right = 0
        for start in range(0, len(labels), 128):
            here = slice(start, start + 128)
            right += int((network(pictures[here]).argmax(dim=1) == labels[here]).sum())
    network.train()
    return right / len(labels)


def train(
    model: str, recipe: Recipe, *, steps: int | None = None
) -> tuple[nn.Module, list[dict[str, float]]]:
    """Train one embedded model from its seed.

    Args:
        model: its name.
        recipe: how.
        steps: stop after so many updates; all epochs for None.

    Returns:
        The network, and loss, rate and test accuracy per epoch. The last epoch's weights are kept
        whatever the test accuracy says, which is only recorded.
    """
    config = digits.PRESETS[model]
    data, held_out = dataset.load("train"), dataset.load("test")
    labels = torch.from_numpy(data.labels)
    test = inputs(config, held_out.pixels), torch.from_numpy(held_out.labels)
    history: list[dict[str, float]] = []
    with repeatable(recipe.seed):
        generator = np.random.Generator(np.random.PCG64(recipe.seed))
        network = network_of(config).build(config).train()
        optimiser = torch.optim.AdamW(_parameter_groups(network, recipe), lr=recipe.learning_rate)
        per_epoch = -(-len(labels) // recipe.batch)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimiser,
            recipe.learning_rate,
            total_steps=recipe.epochs * per_epoch,
            pct_start=recipe.warmup_epochs / recipe.epochs,
            cycle_momentum=False,
        )
        done = 0
        for epoch in range(recipe.epochs):
            pictures = augmented(config, data.pixels, recipe, generator)
            order = torch.from_numpy(generator.permutation(len(labels)))
            total = 0.0
            for start in range(0, len(order), recipe.batch):
                chosen = order[start : start + recipe.batch]
                if done == steps:
                    return network.eval(), history
                logits = network(pictures[chosen])
                loss = F.cross_entropy(
                    logits, labels[chosen], label_smoothing=recipe.label_smoothing
                )
                optimiser.zero_grad()
                torch.autograd.backward(loss)
                nn.utils.clip_grad_norm_(network.parameters(), recipe.max_grad_norm)
                optimiser.step()
                schedule.step()
                total += loss.item() * len(chosen)
                done += 1
            history.append(
                {
                    "epoch": epoch + 1,
                    "loss": round(total / len(labels), 4),
                    "test_accuracy": round(accuracy(network, *test), 4),
                }
            )
    return network.eval(), history


def _parameter_groups(network: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Matrices of layers decay; vectors and everything that belongs to positions do not."""
    named = list(network.named_parameters())
    decays = [p for n, p in named if p.ndim > 1 and "encoding" not in n]
    others = [p for n, p in named if p.ndim < 2 or "encoding" in n]
    return [
        {"params": decays, "weight_decay": recipe.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]


def environment() -> dict[str, str]:
    """What decides the bits besides the seed."""
    return {
        **{name: version(name) for name in LIBRARIES},
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": "1",
    }


def write(model: str, recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Train one model, write ``<model>.safetensors`` and ``<model>.json``; gives the log."""
    from safetensors.torch import save

    start = time.perf_counter()
    network, history = train(model, recipe)
    content = save({name: value.contiguous() for name, value in network.state_dict().items()})
    log = {
        "schema": "vitpe.digits-training/1",
        "model": model,
        "weights_sha256": hashlib.sha256(content).hexdigest(),
        "size_bytes": len(content),
        "parameters": sum(p.numel() for p in network.parameters()),
        "test_accuracy": history[-1]["test_accuracy"],
        "config": asdict(digits.PRESETS[model]),
        "recipe": asdict(recipe),
        "environment": environment(),
        "epochs": history,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{model}.safetensors").write_bytes(content)
    (folder / f"{model}.json").write_text(_as_json(log), encoding="utf-8")
    seconds = time.perf_counter() - start
    sys.stderr.write(
        f"{model:22} accuracy {log['test_accuracy']:.2%}  {log['parameters']} parameters  "
        f"{len(content)} bytes  {seconds:.0f} s\n"
    )
    return log


def _as_json(log: dict[str, Any]) -> str:
    """Indented, with one line per epoch."""
    rows = ",\n".join(f"    {json.dumps(row)}" for row in log["epochs"])
    head = json.dumps({**log, "epochs": []}, indent=2)
    return head.replace('"epochs": []', f'"epochs": [\n{rows}\n  ]') + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="a model; repeatable")
    parser.add_argument(
        "--output",
        type=Path,
        default=digits.weights_path("").parent,
        help="folder for weights and logs (default: the package's own)",
    )
    chosen = parser.parse_args(arguments)
    names = chosen.only or list(digits.PRESETS)
    try:
        for name in names:
            if name not in digits.PRESETS:
                raise UsageError(
                    f"--only {name!r} is not an embedded model",
                    hint=f"{closest(name, digits.PRESETS)}"
                    f"Choose from: {', '.join(digits.PRESETS)}.",
                )
        for name in names:
            write(name, recipe_for(name), chosen.output)
    except VitpeError as problem:
        sys.stderr.write(f"error: {problem.message}\n{problem.hint}\n")
        return problem.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
