"""A gateway reduced to its stream: opens requests at a home and collects what comes back."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from types import TracebackType
from typing import Self

import grpc
from allroads.mesh.channels import open_channel
from allroads.mesh.routing import routing_to_wire
from allroads.mesh.wire import common_pb2 as pb
from allroads.mesh.wire import model_pb2, model_pb2_grpc


@dataclass
class Reply:
    token_ids: list[int] = field(default_factory=list)
    tiers: list[int] = field(default_factory=list)
    logprobs: list[pb.TokenLogprobs] = field(default_factory=list)
    wants_logprobs: bool = False
    finished: model_pb2.Finished | None = None
    error: pb.Error | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)
    progress: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with each token; whoever waits clears it."""


class HomeClient:
    def __init__(self, address: str) -> None:
        self._channel = open_channel(address, 64 << 20)
        self.stub = model_pb2_grpc.HomeServiceStub(self._channel)
        self._numbers = count(1)
        self.replies: dict[int, Reply] = {}
        self.load = model_pb2.Load()

    async def __aenter__(self) -> Self:
        self._writing = asyncio.Lock()
        self._call = self.stub.Generate(wait_for_ready=True)
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._channel.close()

    async def open(self, *requests: model_pb2.OpenRequest) -> list[Reply]:
        """Open requests in one message; each gets a number of its own."""
        replies = []
        for request in requests:
            request.sequence_id = next(self._numbers)
            wants_logprobs = request.sampling.HasField("num_logprobs")
            replies.append(self.replies.setdefault(request.sequence_id, Reply(wants_logprobs=wants_logprobs)))
        async with self._writing:
            await self._call.write(model_pb2.GenerateRequest(opens=requests))
        return replies

    async def abort(self, *sequence_ids: int) -> None:
        async with self._writing:
            await self._call.write(model_pb2.GenerateRequest(aborted_sequence_ids=sequence_ids))

    async def answer(self, *requests: model_pb2.OpenRequest) -> list[Reply]:
        """Open requests and wait for their ends."""
        replies = await self.open(*requests)
        async with asyncio.timeout(90):
            for reply in replies:
                await reply.done.wait()
        return replies

    async def _read(self) -> None:
        try:
            while isinstance(response := await self._call.read(), model_pb2.GenerateResponse):
                self._take(response)
        except grpc.aio.AioRpcError:
            for reply in self.replies.values():
                reply.done.set()

    def _take(self, response: model_pb2.GenerateResponse) -> None:
        self.load = response.load
        begin = 0
        logprobs = iter(response.logprobs)
        for number, num_tokens in zip(response.sequence_ids, response.num_tokens, strict=True):
            reply = self.replies[number]
            reply.token_ids += response.token_ids[begin : begin + num_tokens]
            reply.tiers += response.tiers[begin : begin + num_tokens]
            begin += num_tokens
            if reply.wants_logprobs:
                reply.logprobs += islice(logprobs, num_tokens)
            reply.progress.set()
        for finished in response.finished:
            self.replies[finished.sequence_id].finished = finished
            self.replies[finished.sequence_id].done.set()
        for failure in response.errors:
            self.replies[failure.sequence_id].error = failure.error
            self.replies[failure.sequence_id].done.set()


def request(
    prompt: list[int], policy: str, *, max_tokens: int = 32, temperature: float = 0.0, seed: int | None = None,
    ignore_eos: bool = False, given: Mapping[str, float | Sequence[float]] | None = None,
    **parameters: float | Sequence[float] | None,
) -> model_pb2.OpenRequest:  # fmt: skip
    """An open message; `parameters` are the policy's, None for absent ones."""
    named = {name: value for name, value in {**parameters, **(given or {})}.items() if value is not None}
    return model_pb2.OpenRequest(
        request_id="test",
        prompt_token_ids=prompt,
        max_tokens=max_tokens,
        sampling=pb.SamplingParams(temperature=temperature, seed=seed, ignore_eos=ignore_eos),
        routing=routing_to_wire(policy, named),
    )
