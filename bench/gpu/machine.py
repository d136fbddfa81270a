"""The GPU and what drives it, for the report; and whether there is one."""

import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from allroads.cuda.sharing import detect_mps

from ..report import environment

_PACKAGES = ("flashinfer-python", "cuda-bindings", "torch", "transformers")


def why_not(devices: list[str]) -> str:
    """Why nothing can be measured on these devices; empty where something can."""
    needed = [torch.device(device).index or 0 for device in devices if torch.device(device).type == "cuda"]
    if not needed:
        return ""
    if not torch.cuda.is_available():
        return (
            "this machine has no GPU that torch can use; run it on one that has, or everything in small by "
            "--device cpu --shapes tiny, whose figures mean nothing"
        )
    if max(needed) >= torch.cuda.device_count():
        return f"{', '.join(devices)}: this machine has {torch.cuda.device_count()} GPU(s)"
    return ""


def machine(devices: list[str]) -> dict[str, Any]:
    """The environment of every bench, and beside it what the figures depend on here."""
    told = environment() | {"devices": devices, "cuda": torch.version.cuda}
    told["versions"] |= {name: _version(name) for name in _PACKAGES}
    if any(device != "cpu" for device in devices):
        told["gpus"] = _ask_driver("gpu_name,driver_version,memory.total,power.limit,clocks.max.memory")
        told["mps"] = detect_mps().reason
    return told


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _ask_driver(fields: str) -> list[str]:
    """A line for each GPU; only their names where the driver's program is missing or fails."""
    if shutil.which("nvidia-smi") is not None:
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            return answer.stdout.splitlines()
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
