"""The router as it is served: a real Unix socket, inline and through shared memory."""

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import torch
from allroads.config import HomeSettings, MeshSettings, RouterSettings, TierSettings
from allroads.errors import CheckpointError, StartupError
from allroads.mesh.channels import open_channel
from allroads.mesh.regions import DIRECTORY
from allroads.mesh.server import ServiceServer
from allroads.mesh.shared_memory import SharedMemoryTransport
from allroads.mesh.tensor_sender import TensorSender
from allroads.mesh.wire import common_pb2, router_pb2_grpc
from allroads.mesh.wire import router_pb2 as pb
from allroads.router.checkpoint import load_router
from allroads.router.head_checkpoint import load_head
from allroads.router.head_scorer import HeadScorer
from allroads.router.r2r_scorer import R2RScorer
from allroads.router.scorer import Scorer
from allroads.router.service import SERVICE_NAME, run
from grpc_health.v1 import health_pb2, health_pb2_grpc
from safetensors.torch import load_file, save_file
from torch import Tensor

from .test_head_checkpoint import NAMES
from .test_head_scorer import head_batch
from .test_scorer import batch

Call = grpc.aio.StreamStreamCall[pb.ScoreRequest, pb.ScoreResponse]


@pytest.fixture
def settings(models: Path) -> Iterator[MeshSettings]:
    directory = Path(tempfile.mkdtemp(prefix="roads-"))
    yield MeshSettings(
        slm=HomeSettings(path=models / "slm"),
        llm=TierSettings(path=models / "llm"),
        router=RouterSettings(
            path=models / "router",
            scorers={name: models / name for name in NAMES},
            address=f"unix:{directory}/router.sock",
        ),
        grace_s=1,
    )
    shutil.rmtree(directory)


@asynccontextmanager
async def served(settings: MeshSettings) -> AsyncIterator[grpc.aio.Channel]:
    """The service, ready."""
    stop = asyncio.Event()
    service = asyncio.create_task(run(settings, stop))
    async with open_channel(settings.router.address, settings.max_message_bytes) as channel:
        await wait_until_ready(channel, service)
        yield channel
        stop.set()
        await asyncio.wait_for(service, 10)


async def wait_until_ready(channel: grpc.aio.Channel, service: "asyncio.Task[None]") -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(
        health_pb2.HealthCheckRequest(service=SERVICE_NAME), wait_for_ready=True
    )
    async with asyncio.timeout(20):
        async for answer in watch:
            if service.done():
                service.result()
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                break
    watch.cancel()


def request(
    batch_id: int, features: tuple[Tensor, Tensor, Tensor], sender: TensorSender | None = None, scorer: str = "r2r"
) -> pb.ScoreRequest:
    sender = sender or TensorSender("router", slot_bytes=1)
    top, hidden, tokens = sender.pack(batch_id, features)
    return pb.ScoreRequest(
        batch=pb.ScoreBatch(batch_id=batch_id, scorer=scorer, top_logits=top, hidden_states=hidden, token_ids=tokens)
    )


async def answer_of(call: Call) -> pb.Scores:
    response = await asyncio.wait_for(call.read(), 10)
    assert isinstance(response, pb.ScoreResponse)
    return response.scores


def open_stream(channel: grpc.aio.Channel) -> Call:
    return router_pb2_grpc.RouterServiceStub(channel).Score()


async def test_it_tells_what_it_was_made_for(settings: MeshSettings, models: Path) -> None:
    async with served(settings) as channel:
        described = await router_pb2_grpc.RouterServiceStub(channel).DescribeRouter(pb.DescribeRouterRequest())
    scorer, *others = described.scorers
    manifest = load_router(models / "router", models / "slm").manifest
    assert (scorer.name, scorer.slm_id, scorer.llm_id) == ("r2r", manifest.slm.model_id, manifest.llm.model_id)
    assert scorer.tokenizer_hash == manifest.slm.tokenizer_hash
    assert (scorer.hidden_size, scorer.num_top_logits, scorer.threshold) == (16, 8, 0.5)
    for other, name in zip(others, NAMES, strict=True):
        assert (other.name, other.slm_id, other.llm_id) == (name, scorer.slm_id, scorer.llm_id)
        assert (other.tokenizer_hash, other.hidden_size) == (scorer.tokenizer_hash, 16)
        assert (other.num_top_logits, other.threshold) == (0, 0.5)
        assert other.num_parameters > 0


@pytest.mark.parametrize("shared", [False, True])
async def test_scores_equal_those_of_the_scorer(settings: MeshSettings, models: Path, shared: bool) -> None:
    if shared and not DIRECTORY.is_dir():
        pytest.skip("no /dev/shm here")
    scorer = R2RScorer(load_router(models / "router", models / "slm"))
    sender = TensorSender("router", slot_bytes=16 * 1024, num_slots=2, transports=[SharedMemoryTransport()])
    async with served(settings) as channel:
        call = open_stream(channel)
        if shared:
            await call.write(pb.ScoreRequest(register=sender.open()))
            registered = await call.read()
            assert isinstance(registered, pb.ScoreResponse)
            assert registered.registered.transport == common_pb2.TRANSPORT_SHARED_MEMORY
            sender.on_registered(registered.registered)
        for batch_id, rows in enumerate([1, 7, 64, 0, 2, 3]):
            features = batch(rows)
            message = request(batch_id, features, sender)
            assert message.batch.hidden_states.HasField("slice") == (shared and rows > 0)
            await call.write(message)
            scores = await answer_of(call)
            sender.release(batch_id)
            assert (scores.batch_id, scores.HasField("error")) == (batch_id, False)
            torch.testing.assert_close(torch.tensor(scores.scores), scorer.score(*features))
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
    sender.close()


@pytest.mark.parametrize("shared", [False, True])
async def test_each_batch_is_scored_by_the_scorer_that_it_names(
    settings: MeshSettings, models: Path, shared: bool
) -> None:
    if shared and not DIRECTORY.is_dir():
        pytest.skip("no /dev/shm here")
    scorers: dict[str, Scorer] = {
        name: HeadScorer(load_head(name, models / name, models / "slm")) for name in NAMES
    } | {"r2r": R2RScorer(load_router(models / "router", models / "slm"))}
    sender = TensorSender("router", slot_bytes=16 * 1024, num_slots=16, transports=[SharedMemoryTransport()])
    async with served(settings) as channel:
        call = open_stream(channel)
        if shared:
            await call.write(pb.ScoreRequest(register=sender.open()))
            registered = await call.read()
            assert isinstance(registered, pb.ScoreResponse)
            sender.on_registered(registered.registered)
        asked = {}
        for batch_id, (rows, name) in enumerate(itertools.product((1, 7, 0, 3), scorers)):
            features = batch(rows) if name == "r2r" else head_batch(rows)
            asked[batch_id] = scorers[name].score(*features)
            message = request(batch_id, features, sender, name)
            assert message.batch.hidden_states.HasField("slice") == (shared and rows > 0)
            await call.write(message)
        for _ in range(len(asked)):
            scores = await answer_of(call)
            assert not scores.HasField("error")
            torch.testing.assert_close(torch.tensor(scores.scores), asked.pop(scores.batch_id))
        assert not asked
    sender.close()


async def test_logits_that_a_scorer_does_not_read_are_refused(settings: MeshSettings) -> None:
    async with served(settings) as channel:
        call = open_stream(channel)
        await call.write(request(1, batch(2), scorer="citer"))
        assert (await answer_of(call)).error.field == "top_logits"
        await call.write(request(2, head_batch(2), scorer="citer"))
        assert len((await answer_of(call)).scores) == 2


async def test_nan_in_one_row_is_nan_there_alone(settings: MeshSettings) -> None:
    top, hidden, tokens = batch(8)
    hidden[3] = float("nan")
    async with served(settings) as channel:
        call = open_stream(channel)
        await call.write(request(1, (top, hidden, tokens)))
        scores = torch.tensor((await answer_of(call)).scores)
    assert scores.isnan().tolist() == [False, False, False, True, False, False, False, False]


async def test_a_bad_batch_fails_alone(settings: MeshSettings) -> None:
    good = batch(2)
    top, hidden, tokens = good
    slice_of_nothing = request(5, good)
    slice_of_nothing.batch.top_logits.slice.CopyFrom(
        common_pb2.RegionSlice(region_id=9, offset_bytes=2**63, size_bytes=64)
    )
    bad = [
        (request(1, (top[:, :3], hidden, tokens)), common_pb2.ERROR_CODE_INVALID_ARGUMENT, "top_logits"),
        (request(2, (top, hidden, tokens + 1000)), common_pb2.ERROR_CODE_INVALID_ARGUMENT, "token_ids"),
        (request(3, good, scorer="other"), common_pb2.ERROR_CODE_NOT_FOUND, "scorer"),
        (pb.ScoreRequest(batch=pb.ScoreBatch(batch_id=4, scorer="r2r")), common_pb2.ERROR_CODE_INVALID_ARGUMENT, ""),
        (slice_of_nothing, common_pb2.ERROR_CODE_INVALID_ARGUMENT, ""),
    ]
    async with served(settings) as channel:
        call = open_stream(channel)
        for message, code, field in bad:
            await call.write(message)
            scores = await answer_of(call)
            assert (scores.batch_id, scores.error.code, scores.error.field) == (message.batch.batch_id, code, field)
        await call.write(request(6, good))
        assert len((await answer_of(call)).scores) == 2


async def test_a_registration_that_no_peer_of_ours_would_send_ends_its_stream_only(settings: MeshSettings) -> None:
    region = common_pb2.Region(
        region_id=1, size_bytes=100, probe=b"x" * 64, shared_memory=common_pb2.SharedMemoryRegion(name="../x")
    )
    async with served(settings) as channel:
        call, other = open_stream(channel), open_stream(channel)
        await call.write(pb.ScoreRequest(register=region))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        await other.write(request(1, batch(2)))
        assert len((await answer_of(other)).scores) == 2


async def test_many_streams_at_once(settings: MeshSettings, models: Path) -> None:
    scorer = R2RScorer(load_router(models / "router", models / "slm"))
    async with served(settings) as channel:

        async def one(number: int) -> None:
            call = open_stream(channel)
            for batch_id in range(5):
                await call.write(request(batch_id, batch(number + 1)))
            for batch_id in range(5):
                scores = await answer_of(call)
                assert scores.batch_id == batch_id
                torch.testing.assert_close(torch.tensor(scores.scores), scorer.score(*batch(number + 1)))

        await asyncio.gather(*(one(number) for number in range(6)))


async def test_a_damaged_router_does_not_start(settings: MeshSettings) -> None:
    (settings.router.path / "router.safetensors").write_bytes(b"no")
    with pytest.raises(CheckpointError, match="damaged"):
        await run(settings, asyncio.Event())


@pytest.mark.parametrize("name", NAMES)
async def test_a_damaged_scorer_does_not_start_and_is_named(settings: MeshSettings, name: str) -> None:
    path = settings.router.scorers[name] / "scorer.safetensors"
    tensors = load_file(path)
    key = next(key for key in tensors if key.endswith("weight"))
    save_file(tensors | {key: tensors[key].half()}, path)
    with pytest.raises(CheckpointError, match=rf"router\.scorers\.{name}: .*tensor {key} is torch.float16") as caught:
        await run(settings, asyncio.Event())
    assert caught.value.field == f"router.scorers.{name}"


async def test_a_scorer_under_the_name_of_another_does_not_start(settings: MeshSettings, models: Path) -> None:
    for name, message in (("citer", "of another kind: format"), ("other", "not known; there are citer, co-llm")):
        router = settings.router.model_copy(update={"scorers": {name: models / "co-llm"}})
        with pytest.raises(CheckpointError, match=rf"router\.scorers\.{name}: .*{message}"):
            await run(settings.model_copy(update={"router": router}), asyncio.Event())


async def test_without_further_scorers_there_is_one(settings: MeshSettings) -> None:
    router = settings.router.model_copy(update={"scorers": {}})
    async with served(settings.model_copy(update={"router": router})) as channel:
        described = await router_pb2_grpc.RouterServiceStub(channel).DescribeRouter(pb.DescribeRouterRequest())
    assert [scorer.name for scorer in described.scorers] == ["r2r"]


async def test_an_address_in_use_does_not_start(settings: MeshSettings) -> None:
    other = ServiceServer([], max_message_bytes=1024)
    await other.start(settings.router.address)
    with pytest.raises(StartupError, match="another process"):
        await run(settings, asyncio.Event())
    await other.stop(0)
