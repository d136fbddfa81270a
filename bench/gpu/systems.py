"""The systems that are compared, one on the device at a time, and what each of them is asked.

The mesh's settings are taken away one after the other in the order of the TokenRouter paper (arXiv 2610.12242): each
row lacks what the rows before it lack, too.
"""

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from allroads.config import MeshSettings, load_settings, save_settings
from allroads.engine.loading import DTYPES

from ..mesh import MODEL, Mesh, running_mesh
from .made_up import MADE_UP, ROUTER_FILE, write_pair
from .measure import Texts
from .plugin import DRAFTED, ROUTED, write_plugin
from .shapes import RouterShape, Shape

_REPOSITORY = Path(__file__).resolve().parents[2]
_READY_TIMEOUT_S = 900
"""Kernels that were not compiled before are compiled now."""

_LINE = re.compile(r'service=(\S+) .*message="(.*)"')
_TELLING = ("tensors to ", "forward pass", "graph")
"""In messages of services that say how they work."""

_TAKEN_AWAY: dict[str, dict[str, str]] = {
    "full": {},
    "no_delayed_batching": {"ALLROADS_GATEWAY__ADMISSION__DELAYED_BATCHING": "off"},
    "no_async": {
        "ALLROADS_SLM__MAX_UNJUDGED": "0",
        "ALLROADS_SLM__MAX_AHEAD": "0",
        "ALLROADS_LLM__CATCH_UP": "off",
    },
    "no_router_graph": {"ALLROADS_ROUTER__GRAPHS": "off"},
    "no_llm_graph": {"ALLROADS_LLM__GRAPHS": "off"},
    "no_slm_graph": {"ALLROADS_SLM__GRAPHS": "off"},
}
ABLATION = dict(zip(_TAKEN_AWAY, accumulate(_TAKEN_AWAY.values(), lambda more, less: more | less), strict=True))
"""Environment of each row."""
SINGLE_PROCESS = "single_process"
MESHES = (*ABLATION, SINGLE_PROCESS)


@dataclass(frozen=True, slots=True)
class Pair:
    """What is served, and where."""

    slm: Shape
    llm: Shape
    router: RouterShape
    dtype: str
    slm_device: str
    llm_device: str


def routed(share: float) -> dict[str, Any]:
    """The `routing` of a request whose tokens are the large model's with this probability."""
    return {"policy": ROUTED, "share": share}


def drafted(acceptance: float) -> dict[str, Any]:
    """The `routing` of a request whose drafts stand with this probability."""
    return {"policy": DRAFTED, "acceptance": acceptance}


def prepare(directory: Path, pair: Pair, texts: Texts, max_requests: int) -> None:
    """Write the models, the router, the plug-in and the configuration of all meshes below a directory."""
    write_pair(
        directory,
        pair.slm,
        pair.llm,
        pair.router,
        dtype=DTYPES[pair.dtype],
        slm_device=pair.slm_device,
        llm_device=pair.llm_device,
    )
    write_plugin(directory)
    save_settings(_settings(directory, pair, texts, max_requests), directory / "mesh.yaml")


@asynccontextmanager
async def mesh_of(name: str, directory: Path) -> AsyncIterator[Mesh]:
    """A mesh of `MESHES`, running.

    Raises:
        RuntimeError: it did not become ready, or its large model was not made up; its log is in the message.
    """
    options = ["--config", str(directory / "mesh.yaml"), "--ready-timeout", str(_READY_TIMEOUT_S)]
    if name == SINGLE_PROCESS:
        options.append("--single-process")
    path = os.pathsep.join(filter(None, (str(directory), str(_REPOSITORY), os.environ.get("PYTHONPATH"))))
    environment = ABLATION.get(name, {}) | {"PYTHONPATH": path}
    async with running_mesh(*options, **environment) as mesh:
        if MADE_UP not in mesh.read_log():
            raise RuntimeError(f"the large model was not made up, so its weights are zeros:\n{mesh.read_log()}")
        yield mesh


def ways(log: str) -> list[str]:
    """How tensors travel, how attention is computed and how steps are run, in the words of the services."""
    lines = (f"{service}: {message}" for service, message in _LINE.findall(log))
    return sorted({line for line in lines if any(word in line for word in _TELLING)})


def _settings(directory: Path, pair: Pair, texts: Texts, max_requests: int) -> MeshSettings:
    # Room for what is proposed ahead, too, and for a half more, so that nobody waits for KV.
    num_kv_tokens = max_requests * (texts.prompt_tokens + texts.answer_tokens + 64) * 3 // 2
    model = {"dtype": pair.dtype, "num_kv_tokens": num_kv_tokens}
    if pair.slm_device != "cpu":
        model["max_step_tokens"] = 2048
    return load_settings(
        overrides={
            "model_name": MODEL,
            "slm": {"path": directory / "slm", "device": pair.slm_device, **model},
            "llm": {"path": directory / "llm", "device": pair.llm_device, **model},
            "router": {"path": directory / ROUTER_FILE, "device": pair.slm_device},
        }
    )
