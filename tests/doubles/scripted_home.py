"""A home that writes what a script says, over a real gRPC server. For tests about the wire and the text."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import Any

import grpc
from allroads.mesh.channels import server_options
from allroads.mesh.stream import Outbox, serve_stream
from allroads.mesh.wire import common_pb2, model_pb2, model_pb2_grpc

MAX_MESSAGE_BYTES = 64 * 1024 * 1024


def made_up_logprobs(index: int, token_id: int, count: int) -> common_pb2.TokenLogprobs:
    """An entry that tells by its numbers which token of an answer it belongs to."""
    logprob = -(index + 1) / 8
    likeliest = [token_id, *(other for other in range(count) if other != token_id)][:count]
    return common_pb2.TokenLogprobs(
        logprob=logprob,
        top_token_ids=likeliest,
        top_logprobs=[logprob - rank for rank in range(count)],
    )


@dataclass
class Script:
    """What one sequence's answer is, and how it comes."""

    token_ids: Sequence[int]
    tiers: Sequence[int] = ()
    """Parallel to token_ids; all 0 where empty."""
    groups: Sequence[int] = (1,)
    """Tokens per message, repeated as needed."""
    is_stop: bool = False
    """Whether the last token is a stop token; else the end is one of length."""
    error: common_pb2.Error | None = None
    """Sent in place of the end."""
    is_endless: bool = False
    """Repeat the tokens until max_tokens."""
    hold: asyncio.Event | None = None
    """Waited for after `num_before_hold` tokens."""
    num_before_hold: int = 0
    logprobs: Callable[[int, int, int], common_pb2.TokenLogprobs] | None = made_up_logprobs
    """Entry of a token by its index, its id, and how many of the likeliest are wanted; None leaves entries out."""
    scores: Sequence[float] = ()
    """Parallel to token_ids, for requests that ask for them; a home that tells none where empty."""
    usage: common_pb2.Usage = field(default_factory=common_pb2.Usage)
    """What the account of the end has besides the counts of tokens."""


@dataclass
class ScriptedHome:
    """Serves `HomeService` by scripts. `script` chooses one for each request."""

    tokenizer_hash: str
    mesh: model_pb2.MeshDescription
    script: Callable[[model_pb2.OpenRequest], Script]
    opens: list[model_pb2.OpenRequest] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    """Opens in each message that had any."""
    aborted: list[int] = field(default_factory=list)
    running: set[int] = field(default_factory=set)
    routing_state: model_pb2.RoutingState = field(default_factory=model_pb2.RoutingState)
    launches: list[list[model_pb2.LaunchThreshold]] = field(default_factory=list)
    """Of each message that had any."""
    prompts: list[model_pb2.PromptLogprobsRequest] = field(default_factory=list)
    """Those whose log-probabilities were asked for."""
    reports: Callable[[], Sequence[model_pb2.TierReport]] = tuple
    """What tiers tell, sent with each message of tokens."""

    def __post_init__(self) -> None:
        self._changed = asyncio.Condition()
        self._server: grpc.aio.Server | None = None
        self._notices: set[asyncio.Task[None]] = set()

    async def start(self, address: str) -> None:
        """Listen; may be called again after `die`."""
        self._server = grpc.aio.server(options=server_options(MAX_MESSAGE_BYTES))
        model_pb2_grpc.add_HomeServiceServicer_to_server(_Servicer(self), self._server)
        self._server.add_insecure_port(address)
        await self._server.start()

    async def die(self) -> None:
        """End at once, with every stream."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on this object holds."""
        async with self._changed:
            await self._changed.wait_for(condition)

    def notice(self) -> None:
        """Something changed: look at the conditions again."""
        task = asyncio.get_running_loop().create_task(self._notify())
        self._notices.add(task)
        task.add_done_callback(self._notices.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class _Servicer(model_pb2_grpc.HomeServiceServicer):
    def __init__(self, home: ScriptedHome) -> None:
        self._home = home

    async def Describe(  # noqa: N802
        self, request: model_pb2.DescribeRequest, context: object
    ) -> model_pb2.DescribeResponse:
        home = self._home
        return model_pb2.DescribeResponse(model_id="scripted", tokenizer_hash=home.tokenizer_hash, mesh=home.mesh)

    async def GetPromptLogprobs(  # noqa: N802
        self, request: model_pb2.PromptLogprobsRequest, context: object
    ) -> model_pb2.PromptLogprobsResponse:
        self._home.prompts.append(request)
        entries = [
            made_up_logprobs(index, token_id, request.num_logprobs)
            for index, token_id in enumerate(request.token_ids[1:], 1)
        ]
        return model_pb2.PromptLogprobsResponse(logprobs=entries)

    async def Generate(  # type: ignore[override]  # noqa: N802
        self, requests: AsyncIterator[model_pb2.GenerateRequest], context: Any
    ) -> None:
        outbox: Outbox[model_pb2.GenerateResponse] = Outbox()
        tasks: dict[int, asyncio.Task[None]] = {}

        def on_request(request: model_pb2.GenerateRequest) -> None:
            if request.launches:
                self._home.launches.append(list(request.launches))
            if request.opens:
                self._home.batches.append(len(request.opens))
            for opened in request.opens:
                self._home.opens.append(opened)
                self._home.running.add(opened.sequence_id)
                task = asyncio.create_task(self._play(self._home.script(opened), opened, outbox))
                # Not in the task itself, which never runs when the abort comes at once.
                task.add_done_callback(partial(self._on_end, opened.sequence_id))
                tasks[opened.sequence_id] = task
            for sequence_id in request.aborted_sequence_ids:
                self._home.aborted.append(sequence_id)
                if sequence_id in tasks:
                    tasks[sequence_id].cancel()
            self._home.notice()

        try:
            await serve_stream(context, requests, outbox, on_request)
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    def _on_end(self, sequence_id: int, _: "asyncio.Task[None]") -> None:
        self._home.running.discard(sequence_id)
        self._home.notice()

    async def _play(
        self, script: Script, request: model_pb2.OpenRequest, outbox: Outbox[model_pb2.GenerateResponse]
    ) -> None:
        token_ids = _repeated(script.token_ids, request.max_tokens) if script.is_endless else list(script.token_ids)
        is_stop = script.is_stop and len(token_ids) <= request.max_tokens
        token_ids = token_ids[: request.max_tokens]
        tiers = _repeated(script.tiers or (0,), len(token_ids))
        start = len(request.committed_token_ids)
        counts = [tiers.count(tier) for tier in range(len(self._home.mesh.tier_names))]
        for size in cycle(script.groups):
            if script.hold is not None and start >= script.num_before_hold:
                await script.hold.wait()
            end = min(start + size, len(token_ids))
            if script.hold is not None and start < script.num_before_hold:
                end = min(end, script.num_before_hold)
            message = model_pb2.GenerateResponse(
                sequence_ids=[request.sequence_id],
                num_tokens=[end - start],
                token_ids=token_ids[start:end],
                tiers=tiers[start:end],
                load=model_pb2.Load(
                    num_running=len(self._home.running),
                    num_free_kv_tokens=900,
                    num_kv_tokens=1000,
                    routing=self._home.routing_state,
                ),
                reports=self._home.reports(),
            )
            if request.report_scores:
                message.scores.extend(script.scores[start:end])
            if script.logprobs is not None and request.sampling.HasField("num_logprobs"):
                count = request.sampling.num_logprobs
                message.logprobs.extend(script.logprobs(i, token_ids[i], count) for i in range(start, end))
            start = end
            if start == len(token_ids):
                if script.error is not None:
                    message.errors.add(sequence_id=request.sequence_id, error=script.error)
                else:
                    message.finished.append(_finished(request, script.usage, counts, is_stop=is_stop))
            outbox.put(message)
            if start == len(token_ids):
                return
            # Others, and the network, come between two steps, as with a model.
            await asyncio.sleep(0)


def _finished(
    request: model_pb2.OpenRequest, more: common_pb2.Usage, counts: list[int], *, is_stop: bool
) -> model_pb2.Finished:
    usage = common_pb2.Usage(
        num_prompt_tokens=len(request.prompt_token_ids),
        num_committed_tokens=counts,
        num_computed_tokens=[len(request.prompt_token_ids) + sum(counts), *counts[1:]],
        num_scored_tokens=sum(counts),
        num_rejected_tokens=sum(counts[1:]),
    )
    usage.MergeFrom(more)
    reason = common_pb2.FINISH_REASON_STOP if is_stop else common_pb2.FINISH_REASON_LENGTH
    return model_pb2.Finished(sequence_id=request.sequence_id, reason=reason, usage=usage)


def _repeated(values: Sequence[int], count: int) -> list[int]:
    return [value for value, _ in zip(cycle(values), range(count), strict=False)]
