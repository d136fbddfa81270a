"""The answer of one call as it comes, for asyncio."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Protocol, Self, TypeVar

import grpc

from ..errors import AllroadsError, Cancelled
from ..mesh.wire import gateway_pb2 as pb
from .answers import Answer, Piece, joined, piece_of
from .batch import unfinished
from .faults import error_of_call
from .tries import Tries

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


class _Call(Protocol[_T_co]):
    """A call whose messages come one by one."""

    def __aiter__(self) -> AsyncIterator[_T_co]: ...
    def cancel(self) -> bool: ...
    def cancelled(self) -> bool: ...


class AsyncStream:
    """Pieces of one answer. Iterate over it; leaving its context before the end ends the request on every tier."""

    def __init__(self, messages: "AsyncMessages[pb.GenerateTextResponse]") -> None:
        self._messages = messages
        self._pieces: list[Piece] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        try:
            piece = piece_of(await anext(self._messages))
        except StopAsyncIteration:
            if not self._messages.is_closed and not self._is_finished:
                raise unfinished() from None
            raise
        self._pieces.append(piece)
        return piece

    @property
    def answer(self) -> Answer:
        """What has come so far."""
        return joined(self._pieces)

    @property
    def _is_finished(self) -> bool:
        return bool(self._pieces) and self._pieces[-1].finish_reason is not None

    async def close(self) -> None:
        """End the request if it is not finished. May be called again."""
        await self._messages.close()


class AsyncMessages(AsyncIterator[_T]):
    """Messages of one call. As long as none has come, it is made again where that may help."""

    def __init__(self, send: Callable[[float], _Call[_T]], tries: Tries) -> None:
        self._send, self._tries = send, tries
        self._call: _Call[_T] | None = None
        self._messages: AsyncIterator[_T] | None = None
        self.is_closed = False
        """By the caller, or by the error that ended it."""

    async def __anext__(self) -> _T:
        while not self.is_closed:
            try:
                message = await self._read()
            except grpc.RpcError as error:
                await asyncio.sleep(self._pause_s(error_of_call(error)))
            else:
                self._tries.begin()
                return message
        raise StopAsyncIteration

    async def close(self) -> None:
        """End the call. May be called again."""
        self.is_closed = True
        if self._call is not None:
            self._call.cancel()

    async def _read(self) -> _T:
        if self._call is None or self._messages is None:
            self._call = self._send(self._tries.time_left_s())
            self._messages = aiter(self._call)
        try:
            return await anext(self._messages)
        except asyncio.CancelledError:
            # The library says the same of a call that was ended as of a task that is being cancelled.
            if self._call.cancelled() and not _is_being_cancelled():
                self.is_closed = True
                raise Cancelled("the call was ended by its caller") from None
            raise

    def _pause_s(self, fault: AllroadsError) -> float:
        """Before the call is made again; raises the fault where it is not."""
        self._call = self._messages = None
        try:
            return self._tries.pause_s(fault)
        except AllroadsError:
            self.is_closed = True
            raise


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
