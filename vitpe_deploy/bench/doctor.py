"""``vitpe-bench --doctor``: what this machine has, what would be used, and what is missing."""

from __future__ import annotations

import importlib
import importlib.util
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vitpe_deploy.bench import host
from vitpe_deploy.errors import VitpeError
from vitpe_deploy.runtimes.onnxruntime import import_onnxruntime
from vitpe_deploy.runtimes.openvino import shared_core
from vitpe_deploy.threads import available_cpus

_WORKSHOP = ("torch", "onnx", "onnx_ir", "onnxscript", "onnxsim", "safetensors")
_NODES = {"GPU": "/dev/dri/renderD*", "NPU": "/dev/accel/accel*"}


def examine() -> dict[str, Any]:
    """A ``vitpe.doctor/1`` document."""
    devices, problem = _openvino_devices()
    providers, ort_problem = _onnxruntime_providers()
    missing = [
        f"{name}: vitpe-export and agreement with PyTorch need it: "
        "pip install 'vitpe-deploy[export]'"
        for name in _WORKSHOP
        if importlib.util.find_spec(name) is None
    ]
    missing += [text for text in (problem, ort_problem) if text]
    for kind, pattern in _NODES.items():
        nodes = sorted(str(p) for p in Path("/").glob(pattern.lstrip("/")))
        if nodes and devices and not any(name.startswith(kind) for name in devices):
            missing.append(
                f"{kind}: {', '.join(nodes)} exists, but OpenVINO does not list it: "
                "its user-space driver is not installed, or this user may not open it"
            )
    return {
        "schema": "vitpe.doctor/1",
        "host": asdict(host.read_host()),
        "onnxruntime_providers": providers,
        "openvino_devices": devices,
        "used": _used(providers, devices),
        "missing": missing,
        "warnings": list(host.warnings(available_cpus())),
    }


def _used(providers: list[str], devices: dict[str, str]) -> dict[str, str]:
    threads = available_cpus()
    found = {}
    if "CPUExecutionProvider" in providers:
        found["--runtime ort"] = f"CPUExecutionProvider, {threads} threads"
    if "CPU" in devices:
        found["--runtime openvino"] = f"CPU: {devices['CPU']}, {threads} threads"
    for name, full in devices.items():
        if name != "CPU":
            static = ", static files alone" if name.startswith("NPU") else ""
            found[f"--runtime openvino --device {name}"] = f"{full}{static}"
    if "OpenVINOExecutionProvider" in providers:
        for name in devices:
            found[f"--runtime ort --device OPENVINO:{name}"] = "OpenVINOExecutionProvider"
    if importlib.util.find_spec("torch") is not None:
        found["--runtime torch"] = f"eager, CPU, {threads} threads"
    return found


def _openvino_devices() -> tuple[dict[str, str], str]:
    try:
        core = shared_core()
    except VitpeError as error:
        return {}, f"openvino: {error.message}"
    found: dict[str, str] = {}
    for name in core.available_devices:
        found[name] = name
        with suppress(RuntimeError):
            found[name] = str(core.get_property(name, "FULL_DEVICE_NAME"))
    return found, ""


def _onnxruntime_providers() -> tuple[list[str], str]:
    try:
        return list(import_onnxruntime().get_available_providers()), ""
    except VitpeError as error:
        return [], f"onnxruntime: {error.message}"


def as_text(document: dict[str, Any]) -> str:
    """For a bug report."""
    about = document["host"]
    memory = about["memory_bytes"]
    lines = [
        f"CPU          {about['cpu']}, {about['cores_used']} CPUs may be used"
        + ("" if about["cpu_quota"] is None else f", quota {about['cpu_quota']:g}"),
        f"ISA          {', '.join(about['isa']) or 'not known'}",
        f"memory       {'not known' if memory is None else f'{memory / 2**30:.1f} GiB'}",
        f"system       {about['os']}",
        f"versions     {', '.join(f'{k} {v}' for k, v in about['versions'].items())}",
        f"ORT          {', '.join(document['onnxruntime_providers']) or 'not installed'}",
    ]
    lines += [f"OpenVINO     {name}: {full}" for name, full in document["openvino_devices"].items()]
    lines += [f"would use    {flag}: {what}" for flag, what in document["used"].items()]
    lines += [f"missing      {text}" for text in document["missing"]]
    lines += [f"warning      {text}" for text in document["warnings"]]
    return "\n".join(lines)
