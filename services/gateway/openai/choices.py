"""The choices of one reply: one generation, or several that run side by side."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Self

from ..generation import Generation, Piece

_QUEUED_PER_CHOICE = 2
"""Pieces that may wait for a slow reader; beyond, tokens gather in the mailboxes and come as one piece."""

NumberedPiece = tuple[int, Piece]


class Choices:
    """Pieces of all choices as they come, each with its choice's index. Always close it."""

    def __init__(self, generations: Sequence[Generation]) -> None:
        self.generations = list(generations)
        self._tasks: list[asyncio.Task[None]] = []
        self._pieces = self._one() if len(self.generations) == 1 else self._merged()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> NumberedPiece:
        return await anext(self._pieces)

    async def close(self) -> None:
        """End what is not finished. May be called again."""
        for generation in self.generations:
            generation.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _one(self) -> AsyncIterator[NumberedPiece]:
        generation = self.generations[0]
        await generation.start()
        async for piece in generation:
            yield 0, piece

    async def _merged(self) -> AsyncIterator[NumberedPiece]:
        queue: asyncio.Queue[NumberedPiece | Exception] = asyncio.Queue(_QUEUED_PER_CHOICE * len(self.generations))
        self._tasks = [
            asyncio.create_task(_forward(index, generation, queue), name=f"choice {index}")
            for index, generation in enumerate(self.generations)
        ]
        num_open = len(self._tasks)
        while num_open:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            num_open -= item[1].finish_reason is not None
            yield item


async def _forward(index: int, generation: Generation, queue: "asyncio.Queue[NumberedPiece | Exception]") -> None:
    try:
        await generation.start()
        async for piece in generation:
            await queue.put((index, piece))
    except Exception as error:  # whatever it is, it belongs to the reader, who would wait for ever
        await queue.put(error)
