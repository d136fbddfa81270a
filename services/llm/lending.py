"""What a tier says to those who want to copy KV from it."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import TypeVar

from ..engine.kv_blocks import KvIdentity
from ..engine.kv_lending import LOAN_LIMIT_S, KvLending, Loan
from ..errors import AllroadsError, DeadlineExceeded, InvalidArgument
from ..mesh.wire import model_pb2
from ..model.decode_host import DecodeHost
from .tier import Call, Command

AnswerT = TypeVar("AnswerT")


def identity_to_wire(identity: KvIdentity) -> model_pb2.KvIdentity:
    """An identity as it travels."""
    return model_pb2.KvIdentity(**asdict(identity))


def identity_of(wire: model_pb2.KvIdentity) -> KvIdentity:
    """An identity as it came."""
    return KvIdentity(
        model_id=wire.model_id,
        weights_hash=wire.weights_hash,
        attention=wire.attention,
        dtype=wire.dtype,
        num_layers=wire.num_layers,
        num_kv_heads=wire.num_kv_heads,
        head_dim=wire.head_dim,
        block_size_tokens=wire.block_size_tokens,
    )


class KvLender:
    """Takes calls in the event loop, and has the decode thread answer them."""

    def __init__(
        self,
        lending: KvLending,
        identity: KvIdentity,
        pool: model_pb2.KvPool,
        max_tokens: int,
        host: DecodeHost[Command],
    ) -> None:
        """`pool`: how borrowers are told of it; `max_tokens`: of a sequence here."""
        self._lending = lending
        self._identity = identity
        self._pool = pool
        self._max_tokens = max_tokens
        self._host = host

    async def move(self, request: model_pb2.MoveSequenceRequest) -> model_pb2.MoveSequenceResponse:
        """Lend what is known of a sequence's beginning.

        Raises:
            InvalidArgument: it is another model's.
            ResourceExhausted: too many loans go on.
            DeadlineExceeded: the decode thread was busy for too long.
        """
        difference = self._identity.difference(identity_of(request.kv))
        if difference:
            raise InvalidArgument(f"KV of another model, or kept in another way: {difference}", field="kv")
        # Of what is longer than any sequence here the beginning may be known all the same.
        tokens, num_known = tuple(request.token_ids[: self._max_tokens]), request.num_known_blocks
        loan: Loan | None = await self._in_decode_thread(lambda: self._lending.lend(tokens, num_known))
        response = model_pb2.MoveSequenceResponse(pool=self._pool)
        if loan is not None:
            response.loan_id = loan.loan_id
            response.block_ids.extend(loan.blocks)
        return response

    async def release(self, request: model_pb2.ReleaseLoanRequest) -> model_pb2.ReleaseLoanResponse:
        """End a loan.

        Raises:
            DeadlineExceeded: the decode thread was busy for too long.
        """
        was_good = await self._in_decode_thread(lambda: self._lending.release(request.generation, request.loan_id))
        return model_pb2.ReleaseLoanResponse(was_good=was_good)

    async def _in_decode_thread(self, ask: Callable[[], AnswerT]) -> AnswerT:
        answered: asyncio.Future[AnswerT] = asyncio.get_running_loop().create_future()

        def run() -> None:
            # Who has left in the meantime would keep a loan until its end.
            if answered.cancelled():
                return
            try:
                answer = ask()
            except AllroadsError as error:
                self._host.in_loop(_refuse, answered, error)
            else:
                self._host.in_loop(_answer, answered, answer)

        self._host.post(Call(run))
        try:
            async with asyncio.timeout(LOAN_LIMIT_S):
                return await answered
        except TimeoutError as error:
            raise DeadlineExceeded(f"the tier was busy for {LOAN_LIMIT_S} s") from error


def _answer(answered: "asyncio.Future[AnswerT]", answer: AnswerT) -> None:
    if not answered.done():
        answered.set_result(answer)


def _refuse(answered: "asyncio.Future[AnswerT]", error: AllroadsError) -> None:
    if not answered.done():
        answered.set_exception(error)
