"""No command opens a connection unless its MODEL is on a hub, and nothing reports home.

All commands run in one process inside a network namespace without interfaces, where the kernel
counts every attempt, C++ libraries' included; in it and in its children, Python's own audit events
of sockets are kept as well. Where such namespaces are not allowed, the events alone have to do.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TINY = [w for k in ("depth=1", "embed_dim=16", "num_heads=2", "image_size=32", "num_classes=5")
        for w in ("--model-kwarg", k)]  # fmt: skip
MODEL = ["vit_tiny_patch16_224", *TINY]

# Imported by every Python process that finds it on its path, children included.
SITECUSTOMIZE = """
import os, sys

def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        if event == "socket.connect" and isinstance(arguments[1], (str, bytes)):
            return  # a Unix socket between processes of this machine
        with open(os.environ["WATCHED_SOCKETS"], "a") as log:
            log.write(f"{event} {arguments[1:] if event == 'socket.connect' else arguments}\\n")

sys.addaudithook(watch)
"""

# Packets that left, connections that were begun, and sends that found no route.
COUNT = """
from pathlib import Path

KEYS = {
    "Tcp:ActiveOpens", "Udp:OutDatagrams", "Ip:OutRequests", "Ip:OutNoRoutes", "Udp6OutDatagrams",
    "Ip6OutNoRoutes",
}

def attempts():
    counted = {}
    lines = Path("/proc/net/snmp").read_text().splitlines()
    for keys, values in zip(lines[::2], lines[1::2]):
        title, *words = keys.split()
        counted |= {title + w: int(v) for w, v in zip(words, values.split()[1:])}
    six = Path("/proc/net/snmp6").read_text() if Path("/proc/net/snmp6").exists() else ""
    counted |= {k: int(v) for k, v in map(str.split, six.splitlines())}
    return {key: number for key, number in counted.items() if key in KEYS and number}
"""

DRIVER = f"""{COUNT}
import contextlib, io, json, sys

from vitpe_deploy import cli

results = []
for main, *arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = getattr(cli, main)(arguments)
    results.append([code, err.getvalue(), attempts()])
print(json.dumps(results))
"""


@dataclass(frozen=True)
class Watched:
    """What a process with several commands did.

    Attributes:
        results: exit code and stderr of each command.
        events: socket calls of Python, in it and in its children.
        attempts: what the kernel had counted after each command; nothing where the network is
            not our own.
        home: files that were made in the home folder.
    """

    results: list[tuple[int, str]]
    events: list[str]
    attempts: list[dict[str, int]]
    home: list[str]


def isolated() -> list[str]:
    """What puts a process into a network of its own; empty where that is not allowed."""
    tool = shutil.which("unshare")
    if tool is None:
        return []
    for flags in (["-n"], ["-r", "-n"]):
        if subprocess.run([tool, *flags, "true"], capture_output=True).returncode == 0:
            return [tool, *flags]
    return []


def watched(commands: list[list[str]], folder: Path) -> Watched:
    """Run command lines in a process that has no network."""
    folder.mkdir()
    home, log = folder / "home", folder / "sockets"
    home.mkdir()
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    environment = {k: v for k, v in os.environ.items() if k not in ("CI", "HF_HUB_OFFLINE")}
    environment |= {
        "PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT))),
        "HOME": str(home),
        "WATCHED_SOCKETS": str(log),
    }
    wall = isolated()
    done = subprocess.run(
        [*wall, sys.executable, "-c", DRIVER, json.dumps(commands)],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    return Watched(
        [(code, err) for code, err, _ in results],
        log.read_text().splitlines() if log.exists() else [],
        [counted if wall else {} for *_, counted in results],
        sorted(str(p.relative_to(home)) for p in home.rglob("*") if p.is_file()),
    )


def test_no_command_needs_or_tries_the_network(tmp_path: Path) -> None:
    out = tmp_path / "out"
    config = {"model_type": "vit", "image_size": 32, "patch_size": 16, "hidden_size": 16,
              "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
              "architectures": ["ViTModel"]}  # fmt: skip
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    artifact = str(out / "vit_tiny_patch16_224-32x32-fp32.onnx")
    picture = tmp_path / "p.ppm"
    picture.write_bytes(b"P6 32 32 255\n" + bytes(range(256)) * 12)
    quick = ["--threads", "1"]
    commands = [
        ["export_main", *MODEL, "--format", "onnx,openvino", "-o", str(out), *quick],
        ["verify_main", artifact, *quick],
        ["verify_main", artifact, "--bundle", *quick],
        ["verify_main", f"{artifact}.bundle.zip", *quick],
        ["inspect_main", *MODEL],
        ["inspect_main", artifact],
        ["inspect_main", "timm:vit_tiny_patch16_224"],
        ["run_main", artifact, str(picture), *quick],
        ["plot_main", *MODEL, "-o", str(tmp_path / "plots")],
        ["export_main", f"hf:{tmp_path / 'hf'}", "--dry-run"],
        ["bench_main", artifact, "--runtime", "ort,openvino", "--rounds", "2", "--iters", "2",
         "--warmup", "1", "-o", str(tmp_path / "bench"), *quick],
    ]  # fmt: skip
    seen = watched(commands, tmp_path / "watched")
    for command, (code, err) in zip(commands, seen.results, strict=True):
        assert code == 0, (command, err)
    assert seen.events == []
    tried = {" ".join(c): n for c, n in zip(commands, seen.attempts, strict=True) if n}
    assert tried == {}
    # Telemetry would leave an identity in the home folder.
    assert [name for name in seen.home if "intel" in name.lower() or "telemetry" in name] == []


def test_a_hub_id_is_the_one_thing_that_does(tmp_path: Path) -> None:
    """And the watch above would have seen it."""
    seen = watched([["inspect_main", "hf:nobody/nothing"]], tmp_path / "watched")
    ((code, err),) = seen.results
    assert code == 1
    assert any("huggingface.co" in event for event in seen.events), (seen.events, err)
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "could not be fetched" in errors[0]


REPORTS = f"""{COUNT}
import importlib, sys, time

engine, how = sys.argv[1:]
if how == "ours":
    module = importlib.import_module("vitpe_deploy.runtimes." + engine)
    getattr(module, "import_" + engine)()
else:
    importlib.import_module(engine)
# ONNX Runtime 1.32 looks for its collector 10 s after it was imported.
until = time.monotonic() + (14 if engine == "onnxruntime" else 1)
while time.monotonic() < until and not attempts():
    time.sleep(0.2)
print(attempts())
"""


@pytest.mark.skipif(not isolated(), reason="network namespaces are not allowed here")
def test_engines_report_nothing_because_of_how_we_import_them(tmp_path: Path) -> None:
    """Imported as everybody does, both look for their collectors; imported by us neither does."""
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    started = {}
    for engine in ("onnxruntime", "openvino"):
        for how in ("ours", "plain"):
            home = tmp_path / f"{engine}-{how}"
            home.mkdir()
            environment = {k: v for k, v in os.environ.items() if k != "CI"}
            environment |= {
                "PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT))),
                "HOME": str(home),
                "WATCHED_SOCKETS": f"{home}.log",
            }
            started[engine, how] = home, subprocess.Popen(
                [*isolated(), sys.executable, "-c", REPORTS, engine, how],
                env=environment, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
    tried = {}
    for key, (home, process) in started.items():
        counted, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        log = Path(f"{home}.log")
        tried[key] = (counted.strip(), log.read_text() if log.exists() else "")
        if key[1] == "ours":
            assert list(home.iterdir()) == []
    assert tried["onnxruntime", "ours"] == ("{}", "")
    assert tried["openvino", "ours"] == ("{}", "")
    # Or this test has nothing to say any more.
    assert tried["onnxruntime", "plain"][0] != "{}"
    assert "google-analytics" in tried["openvino", "plain"][1]
