"""Asks a running mesh as a gateway does: one stream, many requests, tokens as they are committed."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import Self

import grpc

from ..errors import Code, Unavailable, error_of
from ..mesh.channels import open_channel
from ..mesh.status import from_rpc, to_wire
from ..mesh.wire import common_pb2 as pb
from ..mesh.wire import model_pb2, model_pb2_grpc
from .question import Answer, Question

_MAX_MESSAGE_BYTES = 64 << 20
_GRACE_S = 5.0
"""What a home may take to say that a request's time is over."""


@dataclass(slots=True)
class Asked:
    """A request on its way."""

    number: int
    answer: Answer = field(default_factory=Answer)
    is_done: asyncio.Event = field(default_factory=asyncio.Event)
    _progress: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, token_ids: Iterable[int], tiers: Iterable[int]) -> None:
        """Take committed tokens."""
        self.answer.token_ids += token_ids
        self.answer.tiers += tiers
        self._progress.set()

    def end(self, error: pb.Error | None = None) -> None:
        """Nothing follows."""
        self.answer.error = error
        self.is_done.set()
        self._progress.set()

    async def until_written(self, num_tokens: int) -> None:
        """Wait for so many tokens, or the end."""
        while len(self.answer.token_ids) < num_tokens and not self.is_done.is_set():
            self._progress.clear()
            await self._progress.wait()


class MeshClient:
    """A stream to a home, while the context is open."""

    def __init__(self, address: str, *, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        """For an answer."""
        self._channel = open_channel(address, _MAX_MESSAGE_BYTES)
        self._stub = model_pb2_grpc.HomeServiceStub(self._channel)
        self._numbers = count(1)
        self._open: dict[int, Asked] = {}
        self._writing = asyncio.Lock()
        self.load = model_pb2.Load()
        """The home's, as it was told last."""

    async def __aenter__(self) -> Self:
        self._call = self._stub.Generate(wait_for_ready=True)
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._channel.close()

    async def describe(self) -> model_pb2.DescribeResponse:
        """What the mesh serves.

        Raises:
            AllroadsError: the home does not answer.
        """
        try:
            return await self._stub.Describe(model_pb2.DescribeRequest(), timeout=self.timeout_s)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, "slm") from error

    async def open(self, questions: Iterable[Question]) -> list[Asked]:
        """Open requests in one message."""
        return await self.open_messages([question.to_wire(self.timeout_s) for question in questions])

    async def open_messages(self, messages: Iterable[model_pb2.OpenRequest]) -> list[Asked]:
        """The same for messages that no question makes."""
        asked = []
        request = model_pb2.GenerateRequest()
        for message in messages:
            one = Asked(next(self._numbers))
            asked.append(one)
            self._open[one.number] = one
            request.opens.append(message)
            request.opens[-1].sequence_id = one.number
        await self._write(request)
        return asked

    async def answers(self, asked: Sequence[Asked]) -> list[Answer]:
        """Wait for the ends of requests. One that does not end in time has an error that says so."""
        waits = [asyncio.create_task(one.is_done.wait()) for one in asked]
        _, late = await asyncio.wait(waits, timeout=self.timeout_s + _GRACE_S) if waits else (set(), set())
        for wait in late:
            wait.cancel()
        for one in asked:
            if not one.is_done.is_set():
                one.end(to_wire(error_of(Code.DEADLINE_EXCEEDED, f"no end within {self.timeout_s:g} s")))
        return [one.answer for one in asked]

    async def ask(self, questions: Iterable[Question]) -> list[Answer]:
        """Ask all at once."""
        return await self.answers(await self.open(questions))

    async def abort(self, asked: Iterable[Asked]) -> None:
        """End requests in the middle; nothing more is told of them."""
        numbers = [one.number for one in asked]
        for number in numbers:
            self._open.pop(number, None)
        await self._write(model_pb2.GenerateRequest(aborted_sequence_ids=numbers))

    async def _write(self, request: model_pb2.GenerateRequest) -> None:
        async with self._writing:
            try:
                await self._call.write(request)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                raise Unavailable("the small model's service has ended the stream; see its log above") from error

    async def _read(self) -> None:
        reason = Unavailable("the small model's service has ended the stream")
        try:
            while isinstance(response := await self._call.read(), model_pb2.GenerateResponse):
                self._take(response)
        except grpc.aio.AioRpcError as error:
            reason = Unavailable(from_rpc(error, "slm").message)
        finally:
            for asked in self._open.values():
                asked.end(to_wire(reason))

    def _take(self, response: model_pb2.GenerateResponse) -> None:
        if response.HasField("load"):
            self.load = response.load
        begin = 0
        for number, num_tokens in zip(response.sequence_ids, response.num_tokens, strict=True):
            end = begin + num_tokens
            if (asked := self._open.get(number)) is not None:
                asked.add(response.token_ids[begin:end], response.tiers[begin:end])
            begin = end
        for finished in response.finished:
            if (asked := self._open.pop(finished.sequence_id, None)) is not None:
                asked.answer.is_stopped = finished.reason == pb.FINISH_REASON_STOP
                asked.answer.usage = finished.usage
                asked.end()
        for failed in response.errors:
            if (asked := self._open.pop(failed.sequence_id, None)) is not None:
                asked.end(failed.error)
