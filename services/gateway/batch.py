"""Many generations of one call, side by side: each starts, runs and fails for itself."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Self

from ..errors import AllroadsError, Internal
from .generation import Generation, Piece

logger = logging.getLogger(__name__)

_QUEUED_PER_GENERATION = 2
"""Pieces that may wait for a slow reader; beyond, tokens gather in the mailboxes and come as one piece."""

Outcome = Piece | AllroadsError
"""What came of a generation; an error ends it."""


class Batch:
    """Outcomes of all generations as they come, each with its generation's key. Always close it."""

    def __init__(self, generations: Mapping[int, Generation]) -> None:
        self._generations = dict(generations)
        self._queue: asyncio.Queue[tuple[int, Outcome]] = asyncio.Queue(_QUEUED_PER_GENERATION * len(generations))
        self._num_open = len(generations)
        self._tasks = [
            asyncio.create_task(self._run(index, generation), name=f"request {index} of a batch")
            for index, generation in self._generations.items()
        ]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, Outcome]:
        if not self._num_open:
            raise StopAsyncIteration
        index, outcome = await self._queue.get()
        self._num_open -= isinstance(outcome, AllroadsError) or outcome.finish_reason is not None
        return index, outcome

    async def close(self) -> None:
        """End what is not finished. May be called again."""
        for generation in self._generations.values():
            generation.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, index: int, generation: Generation) -> None:
        try:
            await generation.start()
            async for piece in generation:
                await self._queue.put((index, piece))
        except AllroadsError as error:
            await self._fail(index, generation, error)
        except Exception:  # the reader, who waits for an end, must learn of it, and nothing of what it was
            logger.exception("a request of a batch failed")
            await self._fail(index, generation, Internal("internal error; the gateway's log says more"))

    async def _fail(self, index: int, generation: Generation, error: AllroadsError) -> None:
        # Its place and KV are free at once, however long the others take.
        generation.close()
        await self._queue.put((index, error))
