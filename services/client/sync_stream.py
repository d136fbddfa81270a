"""The answer of one call as it comes."""

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol, Self, TypeVar

import grpc

from ..errors import AllroadsError
from ..mesh.wire import gateway_pb2 as pb
from .answers import Answer, Piece, joined, piece_of
from .batch import unfinished
from .faults import error_of_call
from .tries import Tries

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


class _Call(Protocol[_T_co]):
    """A call whose messages come one by one."""

    def __next__(self) -> _T_co: ...
    def cancel(self) -> bool: ...


class Stream:
    """Pieces of one answer. Iterate over it; leaving its context before the end ends the request on every tier."""

    def __init__(self, messages: "Messages[pb.GenerateTextResponse]") -> None:
        self._messages = messages
        self._pieces: list[Piece] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Piece:
        try:
            piece = piece_of(next(self._messages))
        except StopIteration:
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

    def close(self) -> None:
        """End the request if it is not finished. May be called again."""
        self._messages.close()


class Messages(Iterator[_T]):
    """Messages of one call. As long as none has come, it is made again where that may help."""

    def __init__(self, send: Callable[[float], _Call[_T]], tries: Tries) -> None:
        self._send, self._tries = send, tries
        self._call: _Call[_T] | None = None
        self.is_closed = False
        """By the caller, or by the error that ended it."""

    def __next__(self) -> _T:
        while not self.is_closed:
            try:
                if self._call is None:
                    self._call = self._send(self._tries.time_left_s())
                message = next(self._call)
            except grpc.RpcError as error:
                time.sleep(self._pause_s(error_of_call(error)))
            else:
                self._tries.begin()
                return message
        raise StopIteration

    def close(self) -> None:
        """End the call. May be called again."""
        self.is_closed = True
        if self._call is not None:
            self._call.cancel()

    def _pause_s(self, fault: AllroadsError) -> float:
        """Before the call is made again; raises the fault where it is not."""
        self._call = None
        try:
            return self._tries.pause_s(fault)
        except AllroadsError:
            self.is_closed = True
            raise
