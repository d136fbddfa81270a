"""One model in several processes, each with a part of its matrices and the KV of its part of the heads.

transformers cuts the model and adds up the parts inside each layer. What is said here: how the processes meet, and how
each finds its device. The first one alone has the scheduler, samples and serves; the others follow it (`leading.py`).
"""

import os
import sys
from dataclasses import replace
from datetime import timedelta
from importlib.util import find_spec

import torch
import torch.distributed as dist
from transformers import PretrainedConfig

from ..config import ModelSettings
from ..errors import Internal, StartupError
from .attention import KvShape
from .place import Place
from .rank_link import LIMIT_S, FollowerLink, GlooChannel, LeaderLink
from .rank_orders import Begin

_MEET_LIMIT_S = 300.0
"""For all processes to start, which import torch first."""
_LOAD_LIMIT_S = 3600.0
"""For all of them to read the weights, perhaps one after the other from a slow disk; and until they are told to."""
_FIELD = "tensor_parallel"


class Member:
    """This process, among those of its model."""

    def __init__(self, place: Place, loading: dist.ProcessGroup) -> None:
        """`loading`: a group whose limit is that of loading. gloo heeds no other but in the first process."""
        self.rank, self.size = place.rank, place.size
        self._loading = loading

    def meet(self) -> None:
        """Wait until all processes have come this far.

        Raises:
            Internal: one of them is gone.
        """
        try:
            self._await_all()
        except RuntimeError as error:
            raise Internal(f"a process of this model ended while it was loaded: {error}") from error

    def _await_all(self) -> None:
        dist.monitored_barrier(self._loading, timeout=timedelta(seconds=_LOAD_LIMIT_S))


class Leader(Member):
    """The first process."""

    def __init__(self, place: Place, loading: dist.ProcessGroup, group: dist.ProcessGroup) -> None:
        super().__init__(place, loading)
        self.link = LeaderLink(GlooChannel(group, self._await_all))

    def begin(self, num_kv_tokens: int) -> None:
        """Let the others load. `num_kv_tokens`: of the pool, which is of one size in all processes."""
        self.link.send(Begin(num_kv_tokens))


class Follower(Member):
    """Any other process."""

    def __init__(self, place: Place, loading: dist.ProcessGroup, group: dist.ProcessGroup) -> None:
        super().__init__(place, loading)
        self.link = FollowerLink(GlooChannel(group, self._await_all))


def join(place: Place, settings: ModelSettings) -> Leader | Follower:
    """Meet the other processes of a model. Once in a process, which belongs to that model from then on.

    Raises:
        StartupError: something that this needs is not there, or the others do not come.
    """
    if place.size != settings.tensor_parallel or not 0 <= place.rank < place.size:
        raise StartupError(
            f"this is process {place.rank} of {place.size}, but tensor_parallel is {settings.tensor_parallel}: start "
            "as many processes, or let `allroads serve` start them",
            field=_FIELD,
        )
    device = torch.device(device_of(settings, place.rank))
    _require_backends(device, settings)
    loopback = "lo" if sys.platform == "linux" else "lo0"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback)
    if device.type == "cuda":
        # transformers takes the GPU of this number, and nothing else can tell it which.
        os.environ["LOCAL_RANK"] = str(device.index)
        torch.cuda.set_device(device)
    store = None if place.directory is None else dist.FileStore(str(place.directory / "ranks"), place.size)  # type: ignore[attr-defined]
    try:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method="env://" if store is None else None,
            store=store,
            rank=place.rank,
            world_size=place.size,
            timeout=timedelta(seconds=_MEET_LIMIT_S),
            device_id=device if device.type == "cuda" else None,
        )
        loading, group = (
            dist.new_group(backend="gloo", timeout=timedelta(seconds=limit_s)) for limit_s in (_LOAD_LIMIT_S, LIMIT_S)
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise StartupError(f"the {place.size} processes of this model do not meet: {error}", field=_FIELD) from error
    if not isinstance(loading, dist.ProcessGroup) or not isinstance(group, dist.ProcessGroup):
        raise StartupError(f"process {place.rank} is no part of the group of {place.size}", field=_FIELD)
    return Leader(place, loading, group) if place.rank == 0 else Follower(place, loading, group)


def device_of(settings: ModelSettings, rank: int) -> str:
    """The device of one of a model's processes: GPUs in a row from the one that the settings name, or the CPU."""
    device = torch.device(settings.device)
    return f"cuda:{(device.index or 0) + rank}" if device.type == "cuda" else settings.device


def split(shape: KvShape, count: int) -> KvShape:
    """The KV of one of `count` processes.

    Raises:
        StartupError: the heads cannot be shared out evenly.
    """
    if shape.num_heads % count or shape.num_kv_heads % count:
        raise StartupError(
            f"tensor_parallel is {count}, but the model has {shape.num_heads} heads and {shape.num_kv_heads} KV heads, "
            "which must both be multiples of it",
            field=_FIELD,
        )
    return replace(shape, num_heads=shape.num_heads // count, num_kv_heads=shape.num_kv_heads // count)


def require_plan(config: PretrainedConfig) -> None:
    """Refuse a model of which transformers does not know how to cut it by heads.

    Raises:
        StartupError: it does not.
    """
    plan = getattr(config, "base_model_tp_plan", None) or {}
    projections = [f"layers.*.self_attn.{name}_proj" for name in ("q", "k", "v")]
    if any(plan.get(name) != "colwise" for name in projections):
        raise StartupError(
            f"tensor_parallel: transformers has no plan that cuts a {config.model_type} by its attention heads; set it "
            "to 1, or choose another model",
            field=_FIELD,
        )


def _require_backends(device: torch.device, settings: ModelSettings) -> None:
    def refuse(missing: str) -> StartupError:
        return StartupError(f"tensor_parallel is {settings.tensor_parallel}, but {missing}", field=_FIELD)

    if not dist.is_available() or not dist.is_gloo_available():
        raise refuse("this torch was built without torch.distributed and gloo; install one that has them")
    if dist.is_initialized():
        raise refuse("this process is part of another group of processes already; give the service its own process")
    if find_spec("accelerate") is None:
        raise refuse("transformers cuts models only with accelerate at hand: pip install accelerate")
    if device.type == "cuda":
        if not dist.is_nccl_available():
            raise refuse("this torch was built without nccl; install one that has it")
        if (device.index or 0) >= torch.cuda.device_count():
            raise refuse(f"there is no {device}: {torch.cuda.device_count()} GPU(s) can be seen")
    elif (found := torch.accelerator.current_accelerator()) is not None:
        raise refuse(f"transformers would cut the model for {found.type}, not for the CPU: install torch for the CPU")
