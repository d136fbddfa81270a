"""KV between this service and others of the same model: the lending, the adopting, or both, as the settings say."""

import asyncio
from functools import partial

from ..config import MeshSettings, TierSettings
from ..engine.engine import Engine
from ..engine.kv_adoption import KvAdoption
from ..engine.kv_blocks import KvIdentity
from ..engine.kv_lending import KvLending
from ..engine.loading import load_config
from ..errors import StartupError
from ..mesh.wire import model_pb2
from ..model.decode_host import DecodeHost
from ..model_size import token_kv
from ..weights_hash import weights_hash
from .adoption import RemoteLender
from .kv_memory import OwnKvMemory, own_kv_memory
from .lending import KvLender
from .tier import Command


def memory_to_lend(own: TierSettings) -> OwnKvMemory | None:
    """Where the KV pool of a service lies from which others may copy; None where that is not wanted.

    Raises:
        StartupError: settings for lending or adopting KV do not go with others.
    """
    if not (own.lends_kv or own.adopts_from):
        return None
    key = "lends_kv" if own.lends_kv else "adopts_from"
    if not own.shares_prefixes:
        raise StartupError(f"{key} needs shares_prefixes: KV is found by the tokens that it is of", field=key)
    if own.tensor_parallel > 1:
        raise StartupError(
            f"{key} does not go with tensor_parallel: each of its processes holds a part of the KV", field=key
        )
    if own.adopts_from and own.adopts_from == own.address:
        raise StartupError("adopts_from is the service's own address; name another service", field="adopts_from")
    return own_kv_memory(own.device) if own.lends_kv else None


class KvSharing:
    """What a service has for it."""

    def __init__(
        self,
        memory: OwnKvMemory | None = None,
        lender: KvLender | None = None,
        remote: RemoteLender | None = None,
        adoption: KvAdoption | None = None,
    ) -> None:
        self.lender = lender
        """None where nothing is lent."""
        self._memory, self._remote, self._adoption = memory, remote, adoption

    @classmethod
    async def start(
        cls,
        engine: Engine,
        own: TierSettings,
        memory: OwnKvMemory | None,
        host: DecodeHost[Command],
        settings: MeshSettings,
    ) -> "KvSharing":
        """Have an engine lend from `memory`, where there is one, and adopt, where that is wanted. Before it runs.

        Raises:
            StartupError: the weights' files or those of TLS cannot be read.
        """
        if memory is None and not own.adopts_from:
            return cls()
        identity = await asyncio.to_thread(partial(identity_of_kv, engine, own))
        lending = lender = remote = adoption = None
        if memory is not None:
            lending = KvLending(engine, settle=memory.settle)
            pool = model_pb2.KvPool(
                generation=lending.generation, num_blocks=engine.kv_blocks.num_blocks, region=memory.describe()
            )
            lender = KvLender(lending, identity, pool, engine.facts.max_context, host)
        if own.adopts_from:
            remote = RemoteLender(
                own.adopts_from,
                identity,
                engine.kv_blocks,
                host,
                max_message_bytes=settings.max_message_bytes,
                tls=settings.tls,
            )
            adoption = KvAdoption(engine, remote)
            remote.answer_to(adoption)
        engine.share_kv(lending=lending, adoption=adoption)
        return cls(memory, lender, remote, adoption)

    async def close(self) -> None:
        """Lend and adopt no more. After the decode loop has ended."""
        if self._remote is not None:
            await self._remote.close()
        if self._adoption is not None:
            self._adoption.close()
        if self._memory is not None:
            self._memory.close()


def identity_of_kv(engine: Engine, own: TierSettings) -> KvIdentity:
    """Whose KV an engine holds, and how it lies.

    Raises:
        CheckpointError: the weights' files cannot be read.
    """
    kv, blocks = token_kv(load_config(own.path).to_dict(), own.path), engine.kv_blocks
    return KvIdentity(
        model_id=engine.facts.model_id,
        weights_hash=weights_hash(own.path),
        attention=blocks.layout,
        dtype=str(blocks.memory.dtype).removeprefix("torch."),
        num_layers=kv.num_layers,
        num_kv_heads=kv.num_kv_heads,
        head_dim=kv.head_dim,
        block_size_tokens=engine.pool.block_size,
    )
