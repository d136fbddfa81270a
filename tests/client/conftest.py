"""Both clients behind one set of awaitable calls, so that each test is about both."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from allroads.client import Answer, AsyncClient, Client, Model, Piece, Retry

from ..gateway.conftest import Served, serve, tokenizer

__all__ = ["Asker", "Connect", "connect", "serve", "tokenizer"]

NO_RETRY = Retry(max_tries=1)


class Asker:
    """A client of either kind, whose calls are awaited. The kind without asyncio works in threads."""

    def __init__(self, client: Client | AsyncClient) -> None:
        self.client = client

    async def _ask(self, name: str, *args: Any, **kwargs: Any) -> Any:
        method = getattr(self.client, name)
        if isinstance(self.client, AsyncClient):
            return await method(*args, **kwargs)
        return await asyncio.to_thread(method, *args, **kwargs)

    async def generate(self, *args: Any, **kwargs: Any) -> Answer:
        answer: Answer = await self._ask("generate", *args, **kwargs)
        return answer

    async def generate_batch(self, *args: Any, **kwargs: Any) -> list[Any]:
        answers: list[Any] = await self._ask("generate_batch", *args, **kwargs)
        return answers

    async def tokenize(self, *args: Any, **kwargs: Any) -> list[int]:
        token_ids: list[int] = await self._ask("tokenize", *args, **kwargs)
        return token_ids

    async def detokenize(self, *args: Any, **kwargs: Any) -> str:
        return str(await self._ask("detokenize", *args, **kwargs))

    async def list_models(self) -> list[Model]:
        models: list[Model] = await self._ask("list_models")
        return models

    async def pieces(self, *args: Any, most: int | None = None, **kwargs: Any) -> tuple[list[Piece], Answer]:
        """Pieces of a stream that is left after `most` of them, and what it says that came."""
        pieces: list[Piece] = []
        if isinstance(self.client, AsyncClient):
            async with self.client.stream(*args, **kwargs) as stream:
                async for piece in stream:
                    pieces.append(piece)
                    if len(pieces) == most:
                        break
                return pieces, stream.answer
        client = self.client

        def read() -> Answer:
            with client.stream(*args, **kwargs) as stream:
                for piece in stream:
                    pieces.append(piece)
                    if len(pieces) == most:
                        break
                return stream.answer

        return pieces, await asyncio.to_thread(read)

    async def close(self) -> None:
        if isinstance(self.client, AsyncClient):
            await self.client.close()
        else:
            self.client.close()


Connect = Callable[..., Awaitable[Asker]]


@pytest.fixture(params=[Client, AsyncClient], ids=["sync", "async"])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Connect]:
    """Make clients of a gateway, or of an address; they are closed with the test."""
    async with AsyncExitStack() as stack:

        async def make(to: Served | str, **options: Any) -> Asker:
            address = to if isinstance(to, str) else f"127.0.0.1:{to.running.grpc_port}"
            asker = Asker(request.param(address, **options))
            stack.push_async_callback(asker.close)
            return asker

        yield make
