"""A model in two processes of which this one is the first: the other is a service's own, started as it starts it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from allroads.config import MeshSettings, save_settings
from allroads.engine.engine import Engine
from allroads.engine.place import Place
from allroads.engine.tensor_parallel import Leader, join

from .forks import Fork, fork_server

_ENVIRONMENT = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "LOCAL_RANK")


def why_no_ranks() -> str:
    """Why a model cannot be cut over processes on this CPU; empty where it can."""
    if find_spec("accelerate") is None:
        return "needs accelerate"
    if torch.accelerator.current_accelerator() is not None:
        return "transformers cuts models for an accelerator where torch was built for one"
    return "needs a system that forks" if fork_server() is None else ""


needs_ranks = pytest.mark.skipif(bool(why_no_ranks()), reason=why_no_ranks())


@contextmanager
def leading(settings: MeshSettings, directory: Path) -> Iterator[tuple[Leader, Fork]]:
    """This process as the first of the large model's two, and the other, which must end well unless it has ended."""
    config = directory / "mesh.yaml"
    save_settings(settings.with_addresses(directory), config)
    server = fork_server()
    assert server is not None
    arguments = ["serve", "llm", "--config", str(config), "--rank", "1", "--meeting", str(directory)]
    before = {key: os.environ.get(key) for key in _ENVIRONMENT}
    with (directory / "rank1.log").open("ab") as log:
        other = server.start("allroads", arguments, os.environ | {"OMP_NUM_THREADS": "1"}, stdout=log, stderr=log)
    try:
        member = join(Place(0, 2, directory), settings.llm)
        assert isinstance(member, Leader)
        yield member, other
        if other.poll() is None:
            member.link.stop()
            assert other.wait(20) == 0, (directory / "rank1.log").read_text()
    finally:
        other.kill()
        if dist.is_initialized():
            dist.destroy_process_group()
        for key, value in before.items():
            os.environ.pop(key, None)
            os.environ |= {} if value is None else {key: value}


def led_engine(settings: MeshSettings, member: Leader) -> Engine:
    """The engine of the first process."""
    return Engine.load(settings.llm, member=member)
