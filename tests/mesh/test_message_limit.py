"""One limit for messages at both ends (C19): what is under it travels, what is over it harms nobody else."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import torch
from allroads.cli.options import resolve_settings
from allroads.config import MeshSettings
from allroads.errors import AllroadsError, Code, InvalidArgument, ResourceExhausted, StartupError
from allroads.mesh.channels import channel_options, open_channel, server_options
from allroads.mesh.server import ServiceServer
from allroads.mesh.stream import MAX_QUEUED_MESSAGES, Outbox, PeerStream, serve_stream
from allroads.mesh.tensor_receiver import TensorReceiver
from allroads.mesh.tensor_sender import TensorSender
from allroads.mesh.wire import model_pb2, model_pb2_grpc, router_pb2_grpc
from allroads.mesh.wire import router_pb2 as pb
from allroads.slm.commands import Visited
from allroads.slm.peers import TierPeer
from allroads.vocabulary import Vocabulary
from torch import Tensor

from ..doubles.scripted_home import Script
from ..gateway.conftest import gateway_over

LIMIT = 100_000
DEFAULT = MeshSettings().max_message_bytes

Peer = PeerStream[pb.ScoreRequest, pb.ScoreResponse]


class EchoingRouter(router_pb2_grpc.RouterServiceServicer):
    """Keeps the hidden states of each batch and answers with a score for each row, and as many words as it is told."""

    def __init__(self) -> None:
        self.hidden_states: list[Tensor] = []
        self.words = ""

    async def DescribeRouter(self, request: pb.DescribeRouterRequest, context: object) -> pb.DescribeRouterResponse:  # noqa: N802
        raise NotImplementedError

    async def Score(  # type: ignore[override] # noqa: N802 (a stream that writes by its context)
        self,
        request_iterator: AsyncIterator[pb.ScoreRequest],
        context: "grpc.aio.ServicerContext[pb.ScoreRequest, pb.ScoreResponse]",
    ) -> None:
        outbox: Outbox[pb.ScoreResponse] = Outbox()
        receiver = TensorReceiver("home")

        def on_request(request: pb.ScoreRequest) -> None:
            (tensor,) = receiver.read([request.batch.hidden_states]).tensors
            self.hidden_states.append(tensor)
            scores = pb.Scores(batch_id=request.batch.batch_id, scores=[0.5] * len(tensor))
            scores.error.message = self.words
            outbox.put(pb.ScoreResponse(scores=scores))

        await serve_stream(context, request_iterator, outbox, on_request)


class Home:
    """The caller's end, with what it was told."""

    def __init__(self, address: str, channel_limit: int, checked_limit: int) -> None:
        self.channel = open_channel(address, channel_limit)
        self.stub = router_pb2_grpc.RouterServiceStub(self.channel)
        self.ups = 0
        self.losses: list[AllroadsError] = []
        self.scores: asyncio.Queue[pb.Scores] = asyncio.Queue()
        self.stream: Peer = PeerStream(
            "router",
            self.stub.Score,
            on_up=self._on_up,
            on_response=lambda response: self.scores.put_nowait(response.scores),
            on_down=self.losses.append,
            max_message_bytes=checked_limit,
        )
        self._is_up = asyncio.Event()

    async def until_up(self) -> None:
        await self._is_up.wait()
        self._is_up.clear()

    async def ask(self, message: pb.ScoreRequest) -> pb.Scores:
        self.stream.send(message)
        return await asyncio.wait_for(self.scores.get(), 60)

    def _on_up(self) -> None:
        self.ups += 1
        self._is_up.set()


@asynccontextmanager
async def served(limit: int) -> AsyncIterator[tuple[str, EchoingRouter]]:
    """The address of a router with that limit."""
    router = EchoingRouter()
    server = ServiceServer([], max_message_bytes=limit)
    router_pb2_grpc.add_RouterServiceServicer_to_server(router, server.grpc)
    with tempfile.TemporaryDirectory(prefix="roads-") as directory:
        address = f"unix:{directory}/router.sock"
        await server.start(address)
        try:
            yield address, router
        finally:
            await server.stop(0)


@asynccontextmanager
async def connected(address: str, *, channel_limit: int, checked_limit: int) -> AsyncIterator[Home]:
    home = Home(address, channel_limit, checked_limit)
    running = asyncio.create_task(home.stream.run())
    try:
        await home.until_up()
        yield home
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await home.channel.close()


def request(batch_id: int, hidden_states: Tensor) -> pb.ScoreRequest:
    """By value: this sender never registers a region."""
    (reference,) = TensorSender("router", slot_bytes=1).pack(batch_id, [hidden_states])
    return pb.ScoreRequest(batch=pb.ScoreBatch(batch_id=batch_id, hidden_states=reference))


def request_of(num_bytes: int) -> pb.ScoreRequest:
    """A right request of exactly that size."""
    message = request(7, torch.zeros(1))
    while missing := num_bytes - message.ByteSize():
        message.batch.scorer = "x" * (len(message.batch.scorer) + missing)
    return message


SMALL = request(1, torch.zeros(3))


def test_both_ends_have_the_same_limits() -> None:
    for options in (channel_options(LIMIT), server_options(LIMIT)):
        assert ("grpc.max_send_message_length", LIMIT) in options
        assert ("grpc.max_receive_message_length", LIMIT) in options


async def test_the_hidden_states_of_a_long_prefill_travel_by_value_both_ways() -> None:
    sent = torch.randn(4096, 5120).bfloat16()
    async with (
        served(DEFAULT) as (address, router),
        connected(address, channel_limit=DEFAULT, checked_limit=DEFAULT) as home,
    ):
        router.words = "x" * sent.nbytes
        scores = await home.ask(request(1, sent))
        assert torch.equal(router.hidden_states[0].view(torch.int16), sent.view(torch.int16))
        assert len(scores.scores) == 4096
        assert scores.error.message == router.words
        assert home.losses == []


async def test_a_message_over_the_limit_is_refused_before_it_is_sent() -> None:
    async with (
        served(LIMIT) as (address, _),
        connected(address, channel_limit=LIMIT, checked_limit=LIMIT) as home,
    ):
        assert (await home.ask(request_of(LIMIT))).batch_id == 7
        with pytest.raises(InvalidArgument, match=f"of {LIMIT + 1} bytes is over the limit of {LIMIT}; raise max_mess"):
            home.stream.send(request_of(LIMIT + 1))
        assert len((await home.ask(SMALL)).scores) == 3
        assert (home.ups, home.losses) == (1, [])


async def test_what_a_foreign_peer_sends_over_the_limit_ends_its_own_stream_only() -> None:
    async with (
        served(LIMIT) as (address, _),
        connected(address, channel_limit=2 * LIMIT, checked_limit=LIMIT) as home,
    ):
        call = home.stub.Score()
        await call.write(request_of(LIMIT + 1))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(LIMIT) in str(caught.value.details())
        again = home.stub.Score()
        await again.write(SMALL)
        assert isinstance(await again.read(), pb.ScoreResponse)
        again.cancel()
        assert len((await home.ask(SMALL)).scores) == 3
        assert home.losses == []


async def test_a_stream_that_is_lost_to_a_smaller_limit_of_its_peer_comes_back() -> None:
    async with (
        served(LIMIT) as (address, _),
        connected(address, channel_limit=2 * LIMIT, checked_limit=2 * LIMIT) as home,
    ):
        home.stream.send(request_of(LIMIT + 1))
        await home.until_up()
        (loss,) = home.losses
        assert loss.code == Code.RESOURCE_EXHAUSTED
        assert str(LIMIT) in loss.message
        assert len((await home.ask(SMALL)).scores) == 3
        assert home.ups == 2


async def test_a_prompt_that_fills_the_largest_body_reaches_the_home() -> None:
    settings = MeshSettings()
    head = '{"model": "allroads", "max_tokens": 1, "prompt": ['
    num_tokens = (settings.gateway.max_body_bytes - len(head) - 1) // len("300,")
    body = head + ",".join(["300"] * num_tokens) + "]}"
    assert settings.gateway.max_body_bytes - 8 < len(body) <= settings.gateway.max_body_bytes
    async with gateway_over(Script([5]), window=num_tokens + 1) as served:
        response = await served.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
        assert response.status_code == 200, response.text
        assert response.json()["usage"]["prompt_tokens"] == num_tokens
        (opened,) = served.home.opens
        assert set(opened.prompt_token_ids) == {300}


async def test_requests_that_are_too_big_together_travel_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    """Two bytes a token: both prompts fit by themselves, and another that does not is refused alone."""
    prompts = [[300] * 1000, [301] * 1000]
    async with gateway_over(Script([5]), window=4000, max_message_bytes=3000) as served:
        together = await served.complete(prompt=prompts, max_tokens=1)
        assert together.status_code == 200, together.text
        assert served.home.batches == [1, 1]
        mixed = await asyncio.gather(
            served.complete(prompt=prompts[0], max_tokens=1), served.complete(prompt=[300] * 2000, max_tokens=1)
        )
        assert [response.status_code for response in mixed] == [200, 400]
        assert "limit of 3000; raise max_message_bytes" in mixed[1].json()["error"]["message"]
        assert "lost" not in caplog.text


class ScriptedTier(model_pb2_grpc.TierServiceServicer):
    """Fits any home, and keeps what it is sent."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[model_pb2.VisitRequest] = asyncio.Queue()

    async def Describe(self, request: model_pb2.DescribeRequest, context: object) -> model_pb2.DescribeResponse:  # noqa: N802
        return model_pb2.DescribeResponse(tokenizer_hash=Vocabulary((), {}, ()).hash)

    async def GetVocabulary(  # noqa: N802
        self, request: model_pb2.GetVocabularyRequest, context: object
    ) -> model_pb2.GetVocabularyResponse:
        raise NotImplementedError

    async def GetPromptLogprobs(  # noqa: N802
        self, request: model_pb2.PromptLogprobsRequest, context: object
    ) -> model_pb2.PromptLogprobsResponse:
        raise NotImplementedError

    async def MoveSequence(  # noqa: N802
        self, request: model_pb2.MoveSequenceRequest, context: object
    ) -> model_pb2.MoveSequenceResponse:
        raise NotImplementedError

    async def ReleaseLoan(  # noqa: N802
        self, request: model_pb2.ReleaseLoanRequest, context: object
    ) -> model_pb2.ReleaseLoanResponse:
        raise NotImplementedError

    async def Visit(  # type: ignore[override] # noqa: N802 (a stream that writes by its context)
        self,
        request_iterator: AsyncIterator[model_pb2.VisitRequest],
        context: "grpc.aio.ServicerContext[model_pb2.VisitRequest, model_pb2.VisitResponse]",
    ) -> None:
        outbox: Outbox[model_pb2.VisitResponse] = Outbox()

        def take(request: model_pb2.VisitRequest) -> None:
            if not request.HasField("register"):
                self.requests.put_nowait(request)

        await serve_stream(context, request_iterator, outbox, take)


async def test_hand_offs_that_are_too_big_together_travel_one_by_one() -> None:
    posted: list[object] = []
    facts: Any = SimpleNamespace(vocabulary=Vocabulary((), {}, ()))
    tier = ScriptedTier()
    server = ServiceServer([], max_message_bytes=3000)
    model_pb2_grpc.add_TierServiceServicer_to_server(tier, server.grpc)
    with tempfile.TemporaryDirectory(prefix="roads-") as directory:
        await server.start(f"unix:{directory}/llm.sock")
        peer = TierPeer("llm", 1, f"unix:{directory}/llm.sock", 3000, facts, posted.append)
        running = asyncio.create_task(peer.run())
        await peer.until_fit()
        hand_offs = [
            model_pb2.HandOff(sequence_id=number, unseen_token_ids=[300] * length)
            for number, length in ((1, 1000), (2, 2000), (3, 1000))
        ]
        peer.visit(model_pb2.VisitRequest(hand_offs=hand_offs, closed_sequence_ids=[9]))
        arrived = [await tier.requests.get() for _ in range(3)]
        assert [[h.sequence_id for h in request.hand_offs] for request in arrived] == [[1], [3], []]
        assert list(arrived[2].closed_sequence_ids) == [9]
        (visited,) = [command for command in posted if isinstance(command, Visited)]
        (failed,) = visited.response.errors
        assert failed.sequence_id == 2
        assert "limit of 3000; raise max_message_bytes" in failed.error.message
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await peer.close()
        await server.stop(0)


def settings_with(directory: Path, **content: object) -> MeshSettings:
    path = directory / "mesh.yaml"
    path.write_text(json.dumps(content))
    return resolve_settings(path)


def test_limits_that_fit_each_other(tmp_path: Path) -> None:
    settings_with(tmp_path)
    settings_with(tmp_path, max_message_bytes=4_000_000, gateway={"max_body_bytes": 1_000_000})


@pytest.mark.parametrize(
    "content",
    [
        {"max_message_bytes": 3_999_999, "gateway": {"max_body_bytes": 1_000_000}},
        {"gateway": {"max_body_bytes": 2 * DEFAULT}},
        {"max_message_bytes": 1_000_000},
    ],
)
def test_limits_that_contradict_each_other_are_refused(tmp_path: Path, content: dict[str, object]) -> None:
    with pytest.raises(StartupError, match=r"^max_message_bytes is \d+, but a prompt of gateway\.max_body_") as caught:
        settings_with(tmp_path, **content)
    assert caught.value.field == "max_message_bytes"


async def test_a_peer_that_does_not_keep_up_loses_its_stream_and_gets_another() -> None:
    async with (
        served(DEFAULT) as (address, _),
        connected(address, channel_limit=DEFAULT, checked_limit=DEFAULT) as home,
    ):
        # All at once: nothing of it is written before the loop is given back.
        for batch_id in range(MAX_QUEUED_MESSAGES):
            home.stream.send(request(batch_id, torch.zeros(1)))
        with pytest.raises(ResourceExhausted, match="wait for a peer that does not read"):
            home.stream.send(request(0, torch.zeros(1)))
        await asyncio.wait_for(home.until_up(), 60)
        assert [str(loss.message) for loss in home.losses] == [
            f"router does not keep up: {MAX_QUEUED_MESSAGES} messages wait for a peer that does not read"
        ]
        scores = await home.ask(request(9_999, torch.zeros(2)))
        assert scores.batch_id == 9_999
