"""Answers a peer's offers of a region: at once, or by a thread where a device may have to be waited for."""

import asyncio
from collections.abc import Callable

from ..errors import AllroadsError, InvalidArgument
from .tensor_receiver import TensorReceiver
from .wire import common_pb2 as pb
from .wire.common_pb2 import Registered


class Registration:
    """That of one stream. Belongs to the event loop, which may read batches meanwhile: they come inline."""

    def __init__(
        self,
        receiver: TensorReceiver,
        answer: Callable[[Registered], None],
        fail: Callable[[AllroadsError], None],
    ) -> None:
        """`answer`: tells the peer. `fail`: ends the stream, for an offer that no peer of ours would make."""
        self._receiver, self._answer, self._fail = receiver, answer, fail
        self._under_way: asyncio.Task[None] | None = None

    def take(self, told: pb.Region) -> None:
        """Try a region and tell the peer of it, now or later.

        Raises:
            InvalidArgument: no peer of ours would ask for this.
            ResourceExhausted: the peer does not read answers.
        """
        if self._under_way is not None:
            raise InvalidArgument("a stream uses one region at a time")
        if self._receiver.may_wait(told):
            self._under_way = asyncio.create_task(self._take_later(told), name="register a region")
        else:
            self._answer(self._receiver.register(told))

    async def close(self) -> None:
        """Let go of the region, once it is known whether there is one."""
        task = self._under_way
        if task is None:
            self._receiver.close()
            return
        # Also if who waits here is cancelled.
        task.add_done_callback(lambda _: self._receiver.close())
        await asyncio.wait({task})

    async def _take_later(self, told: pb.Region) -> None:
        try:
            registered = await asyncio.to_thread(self._receiver.register, told)
            # Before the peer knows: it may offer another at once.
            self._under_way = None
            self._answer(registered)
        except AllroadsError as error:
            self._under_way = None
            self._fail(error)
