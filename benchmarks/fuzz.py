"""Files that lie: damaged, hostile and random inputs through every command that reads one.

    python benchmarks/fuzz.py [--inputs 5000] [--seed 0] [--only onnx] [--keep DIR]

Good files are made once (a tiny export in both formats, its bundle, weights, a picture, an array, a
transformers folder). Each input is one of them with bytes flipped, cut, doubled or overwritten, a
field of its JSON or protobuf changed, or one of a list of hostile constructions. A command reads it
in a child process that is given many inputs, one after the other. Wanted every time: a documented
exit code, one error block without a traceback, within the time and the memory that are allowed, and
no file outside the folder of the input. Prints a table and exits 1 when anything else happened;
``--keep`` saves those inputs with their seeds.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

TIME_LIMIT_S = 10.0
MEMORY_LIMIT_BYTES = 3 << 30
"""Above what the child used when all its libraries were loaded and a good file had run."""

EXIT_CODES = frozenset({0, 1, 2, 3})


@dataclass(frozen=True)
class Kind:
    """One kind of file.

    Attributes:
        seed: path of the good file in the corpus; a folder is copied whole.
        target: the file in it that is changed.
        command: arguments with ``{}`` for the path of the seed's copy.
    """

    name: str
    seed: str
    target: str
    command: tuple[str, ...]


OPTIONS = {"depth": 1, "embed_dim": 16, "num_heads": 2, "image_size": 32, "num_classes": 5}
TINY = tuple(word for k, v in OPTIONS.items() for word in ("--model-kwarg", f"{k}={v}"))
MODEL = ("vit_tiny_patch16_224", *TINY)
ENGINE = ("--runtime", "ort", "--threads", "1")

KINDS = (
    Kind("onnx", "artifact", "m.onnx", ("run", "{}/m.onnx", "{}/picture.png", *ENGINE)),
    Kind("onnx in openvino", "artifact", "m.onnx",
         ("run", "{}/m.onnx", "{}/picture.png", "--runtime", "openvino", "--threads", "1")),
    Kind("onnx manifest", "artifact", "m.onnx.manifest.json",
         ("run", "{}/m.onnx", "{}/picture.png", *ENGINE)),
    Kind("onnx positions", "artifact", "m.onnx", ("plot", "{}/m.onnx", "-o", "{}/plot", "--force")),
    Kind("xml", "ir", "m.xml", ("run", "{}/m.xml", "{}/picture.png", "--threads", "1")),
    Kind("bin", "ir", "m.bin", ("run", "{}/m.xml", "{}/picture.png", "--threads", "1")),
    Kind("bundle", "m.bundle.zip", "", ("verify", "{}", *ENGINE)),
    Kind("safetensors", "weights.safetensors", "",
         ("plot", *MODEL, "--weights", "{}", "-o", "{}-plot", "--force")),
    Kind("checkpoint", "weights.pt", "",
         ("plot", *MODEL, "--weights", "{}", "-o", "{}-plot", "--force")),
    Kind("picture", "artifact", "picture.png", ("run", "{}/m.onnx", "{}/picture.png", *ENGINE)),
    Kind("array", "artifact", "batch.npy", ("run", "{}/m.onnx", "{}/batch.npy", *ENGINE)),
    Kind("calibration", "calibration.npz", "",
         ("export", *MODEL, "--precision", "int8", "--calibration", "{}", "--dry-run")),
    Kind("config.json", "hf", "config.json", ("export", "hf:{}", "--dry-run")),
    Kind("preprocessor", "hf", "preprocessor_config.json", ("export", "hf:{}", "--dry-run")),
)  # fmt: skip


def make_corpus(folder: Path) -> None:
    """Good files of every kind; each is checked to pass its own command."""
    import numpy as np
    import torch
    from PIL import Image
    from safetensors.torch import save_file

    from vitpe_deploy import cli

    def run(*arguments: str) -> None:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = cli.main(list(arguments))
        if code:
            raise SystemExit(
                f"the corpus cannot be made: {arguments} gave {code}:\n{said.getvalue()}"
            )

    out = folder / "made"
    run("export", *MODEL, "--format", "onnx,openvino", "-o", str(out))
    model = next(out.glob("*.onnx"))
    run("verify", str(model), "--bundle", *ENGINE)
    shutil.copy(next(out.glob("*.bundle.zip")), folder / "m.bundle.zip")
    for kind, suffixes in (("artifact", (".onnx",)), ("ir", (".xml", ".bin"))):
        (folder / kind).mkdir()
        for suffix in suffixes:
            shutil.copy(model.with_suffix(suffix), folder / kind / f"m{suffix}")
        main = model.with_suffix(suffixes[0])
        manifest = json.loads(main.with_name(f"{main.name}.manifest.json").read_text())
        manifest["files"] = [f"m{suffix}" for suffix in suffixes]
        text = json.dumps(manifest)
        (folder / kind / f"m{suffixes[0]}.manifest.json").write_text(text)
        pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / kind / "picture.png")
        np.save(folder / kind / "batch.npy", np.zeros((1, 3, 32, 32), np.float32))
    from vitpe_deploy.request import ModelRequest
    from vitpe_deploy.sources import open_source

    loaded = open_source(ModelRequest(MODEL[0], kwargs=OPTIONS)).load()
    state = {name: value.clone() for name, value in loaded.fresh().state_dict().items()}
    save_file(state, folder / "weights.safetensors")
    torch.save({"state_dict": state}, folder / "weights.pt")
    samples = np.random.default_rng(0).standard_normal((4, 3, 32, 32)).astype(np.float32)
    np.savez_compressed(folder / "calibration.npz", pixel_values=samples)
    (folder / "hf").mkdir()
    config = {"model_type": "vit", "image_size": 32, "patch_size": 16, "hidden_size": 16,
              "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
              "architectures": ["ViTModel"]}  # fmt: skip
    (folder / "hf" / "config.json").write_text(json.dumps(config))
    processor = {"size": {"height": 32, "width": 32}, "resample": 3, "image_mean": [0.5] * 3}
    (folder / "hf" / "preprocessor_config.json").write_text(json.dumps(processor))
    shutil.rmtree(out)
    for one in KINDS:
        run(*(a.replace("{}", str(folder / one.seed)) for a in one.command))


# ---------------------------------------------------------------- mutations


def mutate(data: bytes, generator: random.Random, name: str) -> bytes:
    """One changed copy of a file."""
    ways: list[Callable[[bytes, random.Random], bytes]] = [
        _flip, _flip, _cut, _overwrite, _insert, _repeat, _random_bytes, _numbers,
    ]  # fmt: skip
    if name.endswith(".json"):
        ways += [_json_value] * 8
    if name.endswith(".onnx"):
        ways += [_onnx_field] * 8
    return generator.choice(ways)(data, generator)


def _place(data: bytes, generator: random.Random) -> int:
    """Half of the places in the first kilobyte, where headers are."""
    end = min(len(data), 1024) if generator.random() < 0.5 else len(data)
    return generator.randrange(max(end, 1))


def _flip(data: bytes, generator: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(generator.choice((1, 1, 2, 8, 64))):
        if changed:
            changed[_place(data, generator)] ^= 1 << generator.randrange(8)
    return bytes(changed)


def _cut(data: bytes, generator: random.Random) -> bytes:
    return data[: generator.choice((0, 1, 4, len(data) // 2, _place(data, generator)))]


def _overwrite(data: bytes, generator: random.Random) -> bytes:
    at, length = _place(data, generator), generator.choice((1, 4, 8, 200))
    filler = generator.choice((b"\0", b"\xff", b"A", b"\x80"))
    return data[:at] + filler * length + data[at + length :]


def _insert(data: bytes, generator: random.Random) -> bytes:
    at = _place(data, generator)
    return data[:at] + generator.randbytes(generator.choice((1, 3, 100))) + data[at:]


def _repeat(data: bytes, generator: random.Random) -> bytes:
    start, end = sorted((_place(data, generator), _place(data, generator)))
    return data[:end] + data[start:end] * generator.choice((1, 5)) + data[end:]


def _random_bytes(data: bytes, generator: random.Random) -> bytes:
    return generator.randbytes(generator.choice((1, 16, 4096)))


def _numbers(data: bytes, generator: random.Random) -> bytes:
    """A length field that says something else."""
    at = _place(data, generator)
    value = generator.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 0x80000000)).to_bytes(4, "little")
    return data[:at] + value + data[at + 4 :]


_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**63, 1e308, float("nan"), "", "../../etc/passwd", "a\0b", "\u202e",
    [], [[]], {}, {"a": 1}, [None], [10**9, 10**9], "x" * 10_000, [-5, 3], ["\U0001f600"],
)  # fmt: skip


def _json_value(data: bytes, generator: random.Random) -> bytes:
    """Another value somewhere in a document, or one key fewer."""
    document = json.loads(data)
    spots: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)):
            spots.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    walk(document)
    node, key = generator.choice(spots)
    if generator.random() < 0.2 and isinstance(node, dict):
        del node[key]
    else:
        node[key] = generator.choice(_VALUES)
    return json.dumps(document).encode()


def _onnx_field(data: bytes, generator: random.Random) -> bytes:
    """A well-formed protobuf that is no sensible graph."""
    import onnx

    model = onnx.load_from_string(data)
    graph = model.graph
    node = generator.choice(graph.node)
    tensor = generator.choice(graph.initializer)
    name = generator.choice(("", "../x", "/etc/passwd", "a\0b", "\U0001f600", "x" * 5000, "a\nb"))
    dims = graph.input[0].type.tensor_type.shape.dim

    def cycle() -> None:
        first = graph.node[0]
        first.input[0] = graph.node[-1].output[0]

    def external() -> None:
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        places = ("../x", "/etc/passwd", "m.onnx", "none", "", "a" * 9999)
        for key, value in (
            ("location", generator.choice(places)),
            ("offset", generator.choice(("0", "-1", "99999999999", "x"))),
            ("length", generator.choice(("0", "4", "-4", "99999999999999"))),
        ):  # fmt: skip
            tensor.external_data.add(key=key, value=value)

    def deep() -> None:
        for k in range(3000):
            extra = graph.node.add(op_type="Identity", name=f"i{k}")
            extra.input.append(graph.input[0].name if k == 0 else f"deep{k - 1}")
            extra.output.append(f"deep{k}")

    ways: list[Callable[[], object]] = [
        cycle, external, external, deep,
        lambda: setattr(node, "op_type", generator.choice(("Nope", "", "Loop", "If", "Scan"))),
        lambda: setattr(node, "domain", generator.choice(("evil", "com.microsoft", "ai.onnx.ml"))),
        lambda: setattr(node, "name", name),
        lambda: node.input.append(generator.choice(("missing", name))),
        lambda: node.output.append(name),
        lambda: node.output.__setitem__(0, generator.choice(graph.node).output[0]),
        lambda: setattr(tensor, "name", name),
        lambda: tensor.dims.append(generator.choice((0, -1, 2**40, 2**62, 7))),
        lambda: setattr(tensor, "data_type", generator.randrange(0, 30)),
        lambda: setattr(tensor, "raw_data", tensor.raw_data[:3]),
        lambda: graph.initializer.remove(tensor),
        lambda: graph.initializer.append(tensor),
        lambda: setattr(generator.choice(dims), "dim_value", generator.choice((-1, 0, 2**40))),
        lambda: setattr(generator.choice(dims), "dim_param", name),
        lambda: setattr(graph.input[0], "name", name),
        lambda: setattr(graph.output[0], "name", name),
        lambda: graph.output.append(graph.output[0]),
        lambda: setattr(model, "ir_version", generator.choice((0, 1, 999, 2**40))),
        lambda: setattr(model.opset_import[0], "version", generator.choice((0, 1, 5, 999))),
        lambda: model.ClearField("graph"),
        lambda: [a.Clear() for a in node.attribute],
        lambda: [setattr(a, "i", generator.choice((-1, 0, 2**40))) for a in node.attribute],
        lambda: [setattr(p, "value", generator.choice(("", "{", "[[2,1,1,1,0]]", "[" * 3000)))
                 for p in model.metadata_props],
    ]  # fmt: skip
    generator.choice(ways)()
    return model.SerializeToString()


# ---------------------------------------------------------------- running


def _child(connection: Connection, corpus: str) -> None:
    """Run commands on inputs that the parent has laid out, until it hangs up."""
    from vitpe_deploy import cli

    os.environ["CI"] = "true"
    with contextlib.suppress(ValueError):
        for kind in KINDS:  # everything is imported and has run once
            _run(cli, [a.replace("{}", str(Path(corpus) / kind.seed)) for a in kind.command])
    rest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    connection.send(rest)
    while True:
        try:
            arguments = connection.recv()
        except EOFError:
            return
        start = time.monotonic()
        code, said = _run(cli, arguments)
        spent = time.monotonic() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        connection.send((code, said, spent, peak - rest))


def _run(cli: Any, arguments: list[str]) -> tuple[int | None, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: int | None = cli.main(arguments)
        except BaseException as problem:
            return None, f"raised {type(problem).__name__}: {problem}"
    return code, err.getvalue()


class Worker:
    """A child process, made anew when an input takes it down."""

    def __init__(self, corpus: Path) -> None:
        self._corpus = corpus
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_child, args=(other, str(self._corpus)), daemon=True)
        self._process.start()
        other.close()
        if not self._pipe.poll(180):
            raise SystemExit("the child did not start")
        self._pipe.recv()

    def close(self) -> None:
        """End the child."""
        self._pipe.close()
        self._process.kill()
        self._process.join()

    def verdict(self, arguments: list[str]) -> tuple[str, str]:
        """``ok:<code>``, or what went wrong; with what was said."""
        self._pipe.send(arguments)
        try:
            if not self._pipe.poll(TIME_LIMIT_S + 5):
                self.close()
                self._start()
                return "hang", f"over {TIME_LIMIT_S:.0f} s"
            code, said, spent, grown = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            status = self._process.exitcode
            self._start()
            return "crash", f"the process ended with {status}"
        if code is None:
            return "raised", said
        if code not in EXIT_CODES:
            return "exit code", f"{code}: {said}"
        if "Traceback" in said or "This is a defect" in said:
            return "traceback", said
        if code in (1, 2) and sum(li.startswith("error: ") for li in said.splitlines()) != 1:
            return "not one error", said
        if spent > TIME_LIMIT_S:
            return "slow", f"{spent:.1f} s"
        if grown > MEMORY_LIMIT_BYTES:
            self.close()
            self._start()
            return "memory", f"{grown >> 20} MiB"
        return f"ok:{code}", said


def fuzz(
    inputs: int, seed: int, *, only: str | None = None, keep: Path | None = None, say: bool = True
) -> tuple[dict[str, Counter[str]], list[str]]:
    """Try ``inputs`` changed files. Gives counts by kind, and a line for each failure."""
    kinds = [k for k in KINDS if only is None or only == k.name]
    if not kinds:
        raise SystemExit(f"--only: choose from {', '.join(k.name for k in KINDS)}")
    counts: dict[str, Counter[str]] = {kind.name: Counter() for kind in kinds}
    failures = []
    with tempfile.TemporaryDirectory(prefix="vitpe-fuzz-") as folder:
        corpus, work = Path(folder) / "corpus", Path(folder) / "work"
        corpus.mkdir()
        make_corpus(corpus)
        worker = Worker(corpus)
        last = time.monotonic()
        for number in range(inputs):
            kind = kinds[number % len(kinds)]
            generator = random.Random(f"{seed}-{kind.name}-{number}")
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            good, copy = corpus / kind.seed, work / kind.seed
            shutil.copytree(good, copy) if good.is_dir() else shutil.copy(good, copy)
            target = copy / kind.target if kind.target else copy
            target.write_bytes(mutate(target.read_bytes(), generator, target.name))
            verdict, said = worker.verdict([a.replace("{}", str(copy)) for a in kind.command])
            strays = [p.name for p in Path(folder).iterdir() if p not in (corpus, work)]
            if strays:
                verdict, said = "stray file", ", ".join(strays)
            counts[kind.name][verdict] += 1
            if not verdict.startswith("ok:"):
                failures.append(f"{kind.name} seed {seed} number {number}: {verdict}: {said[:300]}")
                if keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    shutil.copy(target, keep / f"{number}-{target.name}")
            if say and time.monotonic() - last > 10:
                last = time.monotonic()
                print(f"{number + 1} of {inputs}, {len(failures)} failed", file=sys.stderr)
        worker.close()
    return counts, failures


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--inputs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one kind of file")
    parser.add_argument("--keep", type=Path, help="folder for the inputs that failed")
    options = parser.parse_args(argv)
    start = time.monotonic()
    counts, failures = fuzz(options.inputs, options.seed, only=options.only, keep=options.keep)
    print("| file | inputs | accepted | refused | failed |")
    print("|---|---|---|---|---|")
    for name, found in counts.items():
        accepted = found["ok:0"] + found["ok:3"]
        refused = found["ok:1"] + found["ok:2"]
        total = sum(found.values())
        print(f"| {name} | {total} | {accepted} | {refused} | {total - accepted - refused} |")
    print(f"{options.inputs} inputs in {time.monotonic() - start:.0f} s, {len(failures)} failed")
    for line in failures:
        print(line, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
