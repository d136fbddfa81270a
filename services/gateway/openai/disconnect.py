"""Ends work for a client that has left."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

from ...errors import Cancelled

ResultT = TypeVar("ResultT")


async def unless_gone(request: Request, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """The result of the work, which is cancelled at once when the client leaves. Its body must be read before.

    Raises:
        Cancelled: the client left first.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_wait_until_gone(request))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Cancelled("the client has left")
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _wait_until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
