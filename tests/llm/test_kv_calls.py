"""The calls by which KV is lent, over a socket: what is answered, what is refused, who has left meanwhile."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import pytest
import torch
from allroads.engine.block_pool import BlockPool
from allroads.engine.kv_blocks import KvBlocks, KvIdentity
from allroads.engine.kv_lending import KvLending
from allroads.engine.kv_peer import Offer
from allroads.engine.thread import IDLE_S
from allroads.llm.adoption import RemoteLender
from allroads.llm.lending import KvLender
from allroads.llm.service import TierServicer
from allroads.llm.tier import Call, Command
from allroads.mesh.server import ServiceServer
from allroads.mesh.wire import model_pb2, model_pb2_grpc
from allroads.model.decode_host import DecodeHost

BLOCK, NUM_BLOCKS = 2, 8
TOKENS = (3, 4, 5, 6, 7, 8, 9)
IDENTITY = KvIdentity("tiny", "abc", "sdpa", "float32", 1, 1, 4, BLOCK)


@dataclass(eq=False)
class Keeper:
    """A pool that knows the beginning of `TOKENS`, without a model."""

    pool: BlockPool = field(default_factory=lambda: BlockPool(NUM_BLOCKS, BLOCK))

    def __post_init__(self) -> None:
        blocks = self.pool.allocate(3)
        self.pool.register(blocks, TOKENS[:6])
        self.pool.free(blocks)

    def give_up(self, blocks: Sequence[int]) -> None:
        self.pool.free(blocks)

    def spoil(self, blocks: Sequence[int]) -> None:
        raise AssertionError("nothing is copied here")


class LendingAlone(TierServicer):
    """A tier's service without a model; of its calls only those for KV are made."""

    def __init__(self, lender: KvLender | None) -> None:
        self._lender = lender


@dataclass(eq=False)
class Told:
    """Stands for an adoption: what it was told, in the decode thread."""

    loop: asyncio.AbstractEventLoop
    answers: asyncio.Queue[tuple[Any, ...]] = field(default_factory=asyncio.Queue)

    def _put(self, *answer: object) -> None:
        self.loop.call_soon_threadsafe(self.answers.put_nowait, answer)

    def offered(self, number: int, offer: Offer) -> None:
        self._put("offered", number, offer)

    def refused(self, number: int) -> None:
        self._put("refused", number)

    def failed(self, number: int, reason: str) -> None:
        self._put("failed", number, reason)

    def released(self, number: int, *, was_good: bool) -> None:
        self._put("released", number, was_good)


def _turn(commands: list[Command]) -> float:
    for command in commands:
        assert isinstance(command, Call)
        command.run()
    return IDLE_S


@dataclass
class Ends:
    keeper: Keeper
    lending: KvLending
    lender: KvLender
    remote: RemoteLender
    told: Told
    address: str
    host: DecodeHost[Command]


@contextlib.asynccontextmanager
async def _ends(*, serves: bool = True, lends: bool = True, identity: KvIdentity = IDENTITY) -> AsyncIterator[Ends]:
    """Both ends, of one decode thread. `identity`: the borrower's."""
    host: DecodeHost[Command] = DecodeHost()
    keeper = Keeper()
    lending = KvLending(keeper)
    told = model_pb2.KvPool(generation=lending.generation, num_blocks=NUM_BLOCKS)
    lender = KvLender(lending, IDENTITY, told, 100, host)
    server = ServiceServer([], max_message_bytes=1 << 20)
    if serves:
        servicer = LendingAlone(lender if lends else None)
        model_pb2_grpc.add_TierServiceServicer_to_server(servicer, server.grpc)
    own = KvBlocks("sdpa", torch.zeros(1, 1, NUM_BLOCKS, 4 * BLOCK), 2)
    with tempfile.TemporaryDirectory(prefix="roads-") as directory:
        address = f"unix:{directory}/llm.sock"
        await server.start(address)
        host.start(_turn)
        remote = RemoteLender(address, identity, own, host, max_message_bytes=1 << 20)
        adoption: Any = Told(asyncio.get_running_loop())
        remote.answer_to(adoption)
        try:
            async with asyncio.timeout(20):
                yield Ends(keeper, lending, lender, remote, adoption, address, host)
        finally:
            await remote.close()
            host.stop()
            await server.stop(0)


async def test_a_loan_over_a_socket() -> None:
    async with _ends() as ends:
        ends.remote.ask(7, TOKENS, 1)
        kind, number, offer = await ends.told.answers.get()
        assert (kind, number) == ("offered", 7)
        assert (offer.generation, offer.blocks) == (ends.lending.generation, (1, 2))
        assert ends.lending.num_loans == 1
        ends.remote.release(7, offer.generation, offer.loan_id)
        assert await ends.told.answers.get() == ("released", 7, True)
        ends.remote.release(7, offer.generation, offer.loan_id)
        assert await ends.told.answers.get() == ("released", 7, False)
        assert ends.keeper.pool.num_used == 0


async def test_nothing_known_is_nothing_lent() -> None:
    async with _ends() as ends:
        ends.remote.ask(1, (9, 9, 9), 0)
        assert await ends.told.answers.get() == ("refused", 1)
        ends.remote.ask(2, TOKENS, 3)
        assert await ends.told.answers.get() == ("refused", 2)
        assert ends.lending.num_loans == 0


async def test_another_models_kv_is_refused_by_name() -> None:
    async with _ends(identity=replace(IDENTITY, attention="flashinfer-nhd")) as ends:
        ends.remote.ask(1, TOKENS, 0)
        reason = "KV of another model, or kept in another way: attention is 'sdpa' here and 'flashinfer-nhd' there"
        assert await ends.told.answers.get() == ("failed", 1, f"it answers: {reason}")
        assert ends.lending.num_loans == 0


async def test_who_does_not_lend_says_so() -> None:
    async with _ends(lends=False) as ends:
        ends.remote.ask(1, TOKENS, 0)
        assert await ends.told.answers.get() == ("failed", 1, "it answers: no KV is lent here; set lends_kv")


async def test_a_service_of_another_version_has_no_such_call() -> None:
    async with _ends(serves=False) as ends:
        ends.remote.ask(1, TOKENS, 0)
        kind, _, reason = await ends.told.answers.get()
        assert (kind, reason) == ("failed", "it answers: Method not found!")


async def test_nobody_there() -> None:
    async with _ends() as ends:
        nobody = RemoteLender(ends.address + "x", IDENTITY, ends.remote._own, ends.host, max_message_bytes=1 << 20)
        nobody.answer_to(ends.told)  # type: ignore[arg-type]
        nobody.ask(1, TOKENS, 0)
        kind, number, _ = await ends.told.answers.get()
        assert (kind, number) == ("failed", 1)
        await nobody.close()


async def test_who_has_left_gets_no_loan() -> None:
    async with _ends() as ends:
        posted: list[Command] = []
        idle: Any = type("Host", (), {"post": posted.append, "in_loop": ends.host.in_loop})
        lender = KvLender(ends.lending, IDENTITY, model_pb2.KvPool(), 100, idle)
        request = model_pb2.MoveSequenceRequest(token_ids=TOKENS, kv=ends.remote._identity)
        asked = asyncio.create_task(lender.move(request))
        await asyncio.sleep(0)
        assert len(posted) == 1
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        _turn(posted)
        assert ends.lending.num_loans == 0


async def test_calls_end_with_the_service() -> None:
    async with _ends() as ends:
        async with grpc.aio.insecure_channel(ends.address) as channel:
            await model_pb2_grpc.TierServiceStub(channel).ReleaseLoan(model_pb2.ReleaseLoanRequest(loan_id=1))
        ends.remote.ask(1, TOKENS, 0)
        await ends.remote.close()
        assert not ends.remote._calls
