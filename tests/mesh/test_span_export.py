"""Spans on their way to a collector: which are sent, which are dropped, and that nobody waits for it."""

import logging
import sys
import threading
import time
from collections.abc import Sequence

import pytest
from allroads.errors import Code, StartupError
from allroads.mesh.span_export import SpanExport
from allroads.mesh.trace_context import TraceContext
from allroads.mesh.tracing import OFF, Tracer, open_tracer
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import get_tracer_provider

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
PARENT = TraceContext.new(7, is_sampled=True)


class Holding(SpanExporter):
    """Holds on to the first batch until it is shut down, then takes none."""

    def __init__(self) -> None:
        self.has_begun, self.ends = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.has_begun.set()
        self.ends.wait()
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self.ends.set()


class Failing(SpanExporter):
    """Raises."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise RuntimeError("broken")


def _end(tracer: Tracer, count: int = 1) -> None:
    for _ in range(count):
        span = tracer.begin("one", PARENT)
        assert span is not None
        tracer.end(span, {})


def test_a_span_is_what_was_told_of_it() -> None:
    exporter = InMemorySpanExporter()
    tracer = Tracer(SpanExport(exporter, "slm"))
    started_ns = time.monotonic_ns() - 3_000_000_000
    span = tracer.begin("slm", PARENT, started_ns=started_ns)
    assert span is not None
    tracer.end(span, {"allroads.tokens": [3, 4]}, ended_ns=started_ns + 2_000_000_000, fault=Code.INTERNAL)
    wrong = tracer.begin("slm", None)
    assert wrong is not None
    tracer.end(wrong, {}, fault=Code.INVALID_ARGUMENT)
    tracer.close()
    first, second = exporter.get_finished_spans()
    assert first.context is not None
    assert first.parent is not None
    assert first.context.trace_id == first.parent.trace_id == PARENT.trace_id
    assert (first.context.span_id, first.parent.span_id) == (span.context.span_id, PARENT.span_id)
    assert first.start_time is not None
    assert first.end_time == first.start_time + 2_000_000_000
    assert abs(first.start_time + 3_000_000_000 - time.time_ns()) < 60_000_000_000
    assert dict(first.attributes or {}) == {"allroads.tokens": [3, 4]}
    assert (first.status.is_ok, first.status.description, second.status.is_ok) == (False, "internal", True)
    assert first.resource.attributes["service.name"] == "allroads-slm"
    assert second.parent is None
    assert type(get_tracer_provider()).__module__.startswith("opentelemetry.trace"), "ours is nobody else's"


def test_services_join_traces_and_begin_none() -> None:
    tracer = Tracer(SpanExport(InMemorySpanExporter(), "slm"))
    joined = tracer.join("slm", PARENT.traceparent)
    assert joined is not None
    assert joined.parent == PARENT
    assert tracer.join("slm", "") is None
    tracer.close()


def test_a_collector_that_hangs_keeps_nobody_and_what_it_has_no_room_for_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exporter = Holding()
    tracer = Tracer(SpanExport(exporter, "slm", "nowhere", max_queued=600))
    _end(tracer, 600)
    exporter.has_begun.wait()
    # At most what was on its way has left the queue.
    _end(tracer, 1200)
    assert 600 <= tracer.num_dropped < 1200
    tracer.close()
    assert tracer.num_dropped == 1800
    assert [record.getMessage() for record in caplog.records] == [
        "the collector of traces at nowhere takes none: they are dropped until it does",
        "1800 spans did not reach the collector",
    ]


def test_an_exporter_that_raises_ends_nothing() -> None:
    tracer = Tracer(SpanExport(Failing(), "slm"))
    _end(tracer, 2)
    tracer.close()
    assert tracer.num_dropped == 2


def test_off_costs_nothing() -> None:
    assert OFF.begin("one", PARENT) is None
    assert OFF.join("one", PARENT.traceparent) is None
    OFF.close()


@pytest.mark.parametrize("value", [None, "", "  "])
def test_it_is_off_without_an_endpoint(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENDPOINT, raising=False)
    if value is not None:
        monkeypatch.setenv(ENDPOINT, value)
    assert open_tracer("slm") is OFF


def test_it_is_off_where_all_of_opentelemetry_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:4317")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "True")
    assert open_tracer("slm") is OFF


def test_without_the_extra_one_line_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:4317")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    monkeypatch.delitem(sys.modules, "allroads.mesh.span_export")
    assert open_tracer("slm") is OFF
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "pip install 'allroads[telemetry]'" in record.getMessage()


def test_a_variable_that_cannot_be_used_is_an_error_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:4317")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "made-up")
    with pytest.raises(StartupError, match="made-up") as raised:
        open_tracer("slm")
    assert raised.value.field == ENDPOINT
