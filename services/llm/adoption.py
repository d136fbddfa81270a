"""Asks another service of the same model for KV, on behalf of the decode thread, which never waits for it."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial

import grpc

from ..config import MeshTlsSettings
from ..engine.kv_adoption import LIMIT_S, KvAdoption
from ..engine.kv_blocks import KvBlocks, KvIdentity
from ..engine.kv_peer import Offer
from ..errors import AllroadsError, InvalidArgument
from ..mesh.channels import open_channel
from ..mesh.status import from_rpc
from ..mesh.wire import model_pb2, model_pb2_grpc
from ..model.decode_host import DecodeHost
from .kv_memory import open_peer_pool
from .lending import identity_to_wire
from .tier import Call, Command

Tell = Callable[[KvAdoption], None]
"""Tells of an answer, in the decode thread."""


class RemoteLender:
    """The service that this one adopts from. `Lender` for the decode thread; the rest belongs to the event loop."""

    def __init__(
        self,
        address: str,
        identity: KvIdentity,
        own: KvBlocks,
        host: DecodeHost[Command],
        *,
        max_message_bytes: int,
        tls: MeshTlsSettings | None = None,
    ) -> None:
        """`own`: where copies go.

        Raises:
            StartupError: a file of TLS cannot be read.
        """
        self.name = address
        self._identity = identity_to_wire(identity)
        self._own = own
        self._host = host
        self._channel = open_channel(address, max_message_bytes, tls)
        self._stub: model_pb2_grpc.TierServiceAsyncStub = model_pb2_grpc.TierServiceStub(self._channel)
        self._calls: set[asyncio.Task[None]] = set()
        self._adoption: KvAdoption | None = None

    def answer_to(self, adoption: KvAdoption) -> None:
        """Whom to tell what the service answers. Before anything is asked."""
        self._adoption = adoption

    def ask(self, number: int, tokens: tuple[int, ...], num_known_blocks: int) -> None:
        """See `Lender`."""
        request = model_pb2.MoveSequenceRequest(token_ids=tokens, num_known_blocks=num_known_blocks, kv=self._identity)
        self._host.in_loop(self._start, number, partial(self._ask, number, request))

    def release(self, number: int, generation: int, loan_id: int) -> None:
        """See `Lender`."""
        request = model_pb2.ReleaseLoanRequest(generation=generation, loan_id=loan_id)
        self._host.in_loop(self._start, number, partial(self._release, number, request))

    async def close(self) -> None:
        """End all calls."""
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._channel.close()

    def _start(self, number: int, call: Callable[[], Coroutine[None, None, Tell]]) -> None:
        task = asyncio.create_task(self._call(number, call), name=f"adoption {number}")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _call(self, number: int, call: Callable[[], Coroutine[None, None, Tell]]) -> None:
        """Make a call and tell the decode thread what came of it."""
        try:
            tell = await call()
        except grpc.aio.AioRpcError as error:
            tell = partial(_failed, number, from_rpc(error, "it answers").message)
        except AllroadsError as error:
            tell = partial(_failed, number, error.message)
        if self._adoption is not None:
            self._host.post(Call(partial(tell, self._adoption)))

    async def _ask(self, number: int, request: model_pb2.MoveSequenceRequest) -> Tell:
        response = await self._stub.MoveSequence(request, timeout=LIMIT_S)
        offer = read_offer(response, request, self._own)
        if offer is None:
            return lambda adoption: adoption.refused(number)
        return lambda adoption: adoption.offered(number, offer)

    async def _release(self, number: int, request: model_pb2.ReleaseLoanRequest) -> Tell:
        response = await self._stub.ReleaseLoan(request, timeout=LIMIT_S)
        return lambda adoption: adoption.released(number, was_good=response.was_good)


def _failed(number: int, reason: str, adoption: KvAdoption) -> None:
    adoption.failed(number, reason)


def read_offer(
    response: model_pb2.MoveSequenceResponse, request: model_pb2.MoveSequenceRequest, own: KvBlocks
) -> Offer | None:
    """What a lender has answered; None where it lends nothing. All of it is untrusted.

    Raises:
        InvalidArgument: no lender of ours would answer this.
    """
    if not response.loan_id:
        return None
    pool, blocks = response.pool, tuple(response.block_ids)
    num_whole = max(len(request.token_ids) - 1, 0) // request.kv.block_size_tokens
    is_right = 0 < len(blocks) <= num_whole - request.num_known_blocks and max(blocks) < pool.num_blocks
    if not is_right or len(set(blocks)) < len(blocks):
        raise InvalidArgument("the blocks that it lends are not valid")
    return Offer(pool.generation, response.loan_id, blocks, partial(open_peer_pool, pool, own))
