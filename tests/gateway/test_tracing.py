"""C54: spans of requests at the gateway, what goes on to the home, and that nobody notices when no one takes them."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from allroads.errors import NotANumber
from allroads.gateway.text.tokenizer import TextTokenizer
from allroads.mesh.status import to_wire
from allroads.mesh.trace_context import TraceContext
from allroads.mesh.wire import gateway_pb2
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.doubles.collector import Collector, Seen, collector
from tests.doubles.scripted_home import Script
from tests.gateway.conftest import MODEL, Serve, Served, gateway_over

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
SENT = f"00-{TRACE}-{PARENT}-01"
SECRET = "Aya has a secret"
GRPC = "allroads.v1.GatewayService"


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector that the services send to."""
    with collector() as double:
        monkeypatch.setenv(ENDPOINT, double.url)
        yield double


async def script_of(tokenizer: TextTokenizer, **more: object) -> Script:
    return Script(await tokenizer.encode_prompt("It is 95."), tiers=(0, 1), **more)  # type: ignore[arg-type]


async def post(served: Served, path: str = "/v1/completions", sent: str | None = None, **fields: object) -> int:
    headers = {} if sent is None else {"traceparent": sent}
    asked = {"messages": [{"role": "user", "content": SECRET}]} if "chat" in path else {"prompt": SECRET}
    body = {"model": MODEL, "user": "someone", **asked, **fields}
    return (await served.http.post(path, json=body, headers=headers)).status_code


async def ask_by_grpc(served: Served, sent: str, method: str = "Generate") -> None:
    request = gateway_pb2.GenerateTextRequest(prompt=SECRET)
    if method == "GenerateBatch":
        batch = gateway_pb2.GenerateBatchRequest(requests=[request] * 2)
        call: Any = served.stub.GenerateBatch(batch, metadata=(("traceparent", sent),))
    else:
        call = served.stub.Generate(request, metadata=(("traceparent", sent),))
    try:
        async for _ in call:
            pass
    finally:
        # A task that is cancelled while its request is being sent does not cancel its call by itself.
        call.cancel()


def span_of(spans: list[Seen], name: str) -> Seen:
    (span,) = [span for span in spans if span.name == name]
    return span


async def test_each_request_has_a_span_below_its_clients_and_the_home_is_told(
    traces: Collector, tokenizer: TextTokenizer
) -> None:
    contexts = [TraceContext.new(number, is_sampled=True) for number in range(1, 6)]
    sent = [context.traceparent for context in contexts]
    async with gateway_over(await script_of(tokenizer)) as served:
        assert await post(served, "/v1/chat/completions", sent[0]) == 200
        assert await post(served, "/v1/completions", sent[1], stream=True) == 200
        await ask_by_grpc(served, sent[2])
        await ask_by_grpc(served, sent[3], "GenerateBatch")
        assert await post(served, "/v1/completions", sent[4], n=3) == 200
        assert await served.metric("allroads_spans_dropped") == 0
        told = [TraceContext.read(opened.traceparent) for opened in served.home.opens]
    names = (
        "POST /v1/chat/completions", "POST /v1/completions", f"{GRPC}/Generate", f"{GRPC}/GenerateBatch",
        "POST /v1/completions",
    )  # fmt: skip
    for context, name, num_answers in zip(contexts, names, (1, 1, 1, 2, 3), strict=True):
        spans = traces.of(f"{context.trace_id:032x}")
        span = span_of(spans, name)
        assert (span.service, span.kind) == ("allroads-gateway", Span.SPAN_KIND_SERVER)
        assert span.parent_id == f"{context.span_id:016x}"
        queues = [queue for queue in spans if queue is not span]
        assert [(queue.name, queue.parent_id) for queue in queues] == [("queue", span.span_id)] * num_answers
        assert all(span.start_ns <= queue.start_ns <= queue.end_ns <= span.end_ns for queue in queues)
        own = [one for one in told if one is not None and one.trace_id == context.trace_id]
        assert [(f"{one.span_id:016x}", one.is_sampled) for one in own] == [(span.span_id, True)] * num_answers
        num_tokens = num_answers * len(await tokenizer.encode_prompt("It is 95."))
        assert span.attributes["gen_ai.usage.output_tokens"] == sum(span.attributes["allroads.tokens"]) == num_tokens
        assert span.attributes["gen_ai.response.finish_reasons"] == ["length"] * num_answers
        assert span.attributes["allroads.policy"] == "r2r"
        assert 0 < span.attributes["allroads.llm_share"] < 1
        assert 0 <= span.attributes["allroads.queue_wait_s"] <= span.attributes["allroads.time_to_first_token_s"]
        assert not span.is_fault
    assert len(traces.spans) == 5 + 8


async def test_spans_hold_nothing_that_a_client_sent(traces: Collector, tokenizer: TextTokenizer) -> None:
    """C53: attributes take few values, all of ours."""
    async with gateway_over(await script_of(tokenizer)) as served:
        for fields in ({}, {"stream": True}, {"temperature": 9}, {"model": "made-up-model"}):
            await post(served, "/v1/chat/completions", None, **fields)
        names = {opened.request_id for opened in served.home.opens}
    assert len({span.trace_id for span in traces.spans}) == 4
    statuses = [span.attributes["http.response.status_code"] for span in traces.spans if span.name != "queue"]
    assert sorted(statuses) == [200, 200, 400, 404]
    text = repr(traces.spans)
    assert not [word for word in (SECRET, "someone", "made-up-model", "It is 95", *names) if repr(word)[1:-1] in text]


@pytest.mark.parametrize(
    "sent",
    [
        "",
        "00",
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE}-{PARENT}-01-more",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-0x",
    ],
)
def test_what_is_no_trace_context_is_ignored(sent: str) -> None:
    assert TraceContext.read(sent) is None


@pytest.mark.parametrize("sent", [SENT, SENT[:-2] + "ff", "01" + SENT[2:] + "-and-more", SENT[:-2] + "00"])
def test_what_is_one_goes_on(sent: str) -> None:
    context = TraceContext.read(sent)
    assert context is not None
    assert context.traceparent == SENT[:-2] + ("00" if sent.endswith("00") else "01")


async def test_wrong_and_repeated_contexts_begin_a_new_trace(traces: Collector, tokenizer: TextTokenizer) -> None:
    async with gateway_over(await script_of(tokenizer)) as served:
        await post(served, sent="00-nonsense")
        body = {"model": MODEL, "prompt": "x"}
        await served.http.post("/v1/completions", json=body, headers=[("traceparent", SENT), ("traceparent", SENT)])
    spans = [span for span in traces.spans if span.name != "queue"]
    assert [span.parent_id for span in spans] == ["", ""]
    assert len({span.trace_id for span in spans} - {TRACE}) == 2


async def test_without_tracing_only_what_clients_send_goes_on(
    serve: Serve, tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENDPOINT, "")
    served = await serve(await script_of(tokenizer))
    for sent in (None, SENT, "00-nonsense"):
        assert await post(served, sent=sent) == 200
    await ask_by_grpc(served, SENT)
    assert [opened.traceparent for opened in served.home.opens] == ["", SENT, "", SENT]


@pytest.mark.parametrize(
    ("sampler", "sent", "is_kept"),
    [
        ("", SENT, True),
        ("", SENT[:-2] + "00", False),
        ("always_off", SENT, False),
        ("always_on", SENT[:-2] + "00", True),
        ("parentbased_always_off", None, False),
        ("parentbased_always_off", SENT, True),
    ],
)
async def test_the_sampler_says_which_traces_are_kept(
    traces: Collector,
    tokenizer: TextTokenizer,
    monkeypatch: pytest.MonkeyPatch,
    sampler: str,
    sent: str | None,
    is_kept: bool,
) -> None:
    if sampler:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    async with gateway_over(await script_of(tokenizer)) as served:
        assert await post(served, sent=sent) == 200
        (told,) = [TraceContext.read(opened.traceparent) for opened in served.home.opens]
    assert told is not None
    assert told.is_sampled == is_kept
    assert bool(traces.spans) == is_kept


async def test_faults_show_and_refusals_cost_nothing(traces: Collector, tokenizer: TextTokenizer) -> None:
    hold, error = asyncio.Event(), to_wire(NotANumber("the model produced NaN"))
    script = await script_of(tokenizer, hold=hold, num_before_hold=1, error=error)
    async with gateway_over(script, max_running=1, max_waiting=1) as served:
        fails = [asyncio.create_task(post(served, sent=SENT)) for _ in range(2)]
        await served.home.until(lambda: len(served.home.opens) == 1)
        while await served.metric("allroads_requests_waiting") < 1:
            pass
        assert await post(served) == 429
        with pytest.raises(grpc.aio.AioRpcError):
            await ask_by_grpc(served, SENT)
        hold.set()
        assert await asyncio.gather(*fails) == [500, 500]
    assert sorted(span.name for span in traces.spans) == ["POST /v1/completions"] * 2 + ["queue"] * 2
    for span in traces.spans:
        assert span.is_fault == (span.name != "queue")
    for span in (span for span in traces.spans if span.name != "queue"):
        assert span.attributes["http.response.status_code"] == 500
        assert span.attributes["gen_ai.response.finish_reasons"] == ["not_a_number"]


@pytest.mark.parametrize("collector_is_there", [True, False])
async def test_leaving_clients_free_everything(
    tokenizer: TextTokenizer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    collector_is_there: bool,
) -> None:
    """As C16 says without tracing; a collector that is not there costs one line, and no more."""
    script = await script_of(tokenizer, hold=asyncio.Event(), num_before_hold=2)
    with collector() as traces, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        monkeypatch.setenv(ENDPOINT, traces.url if collector_is_there else away)
        with caplog.at_level(logging.INFO):
            async with gateway_over(script, max_running=6) as served:
                tasks: list[asyncio.Task[object]] = [
                    asyncio.create_task(post(served, stream=index % 2 == 0)) for index in range(4)
                ]
                tasks += [asyncio.create_task(ask_by_grpc(served, SENT, m)) for m in ("Generate", "GenerateBatch")]
                await served.home.until(lambda: len(served.home.opens) == 6)
                for task in tasks:
                    task.cancel()
                assert all(isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(
                    *tasks, return_exceptions=True
                ))  # fmt: skip
                await served.gateway.wait_until_idle()
                await served.home.until(lambda: not served.home.running)
                assert len(served.home.aborted) == len(served.home.opens)
    spans = [span for span in traces.spans if span.name != "queue"]
    assert len(spans) == (6 if collector_is_there else 0)
    for span in spans:
        assert set(span.attributes["gen_ai.response.finish_reasons"]) == {"cancelled"}
        assert not span.is_fault
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    lost = 0 if collector_is_there else 2
    assert len([record for record in told if "collector" in record.getMessage()]) <= lost, told
    assert not [record for record in told if record.name.startswith("opentelemetry")]
