"""Sends spans to a collector, in a thread of its own. Needs the extra `telemetry`.

Nobody waits for a collector: what it does not take in time is dropped and counted.
"""

import logging
import threading
import time
from collections import deque

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation import set_span_in_context

from .. import __version__
from .trace_context import TraceContext
from .tracing import EndedSpan

logger = logging.getLogger(__name__)

MAX_QUEUED = 4096
"""Spans that wait for the collector; more are dropped."""
_MAX_BATCH = 512
_INTERVAL_S = 1.0
_CLOSE_S, _ABANDON_S = 0.8, 0.2
"""For the last spans to be sent at a stop, and for a call to end that is broken off then."""
_CLOCK_SET_NS = 1_000_000
"""By less the two clocks do not part in earnest, and spans that follow each other must stay in order."""
_SCOPE = InstrumentationScope("allroads", __version__)


class SpanExport:
    """A queue of spans, and the thread that empties it."""

    def __init__(
        self, exporter: SpanExporter, service: str, endpoint: str = "", *, max_queued: int = MAX_QUEUED
    ) -> None:
        """`endpoint` is for the log. OpenTelemetry's variables say which traces are sampled."""
        # Of the provider's own, and never the process's: other libraries would add spans that say what clients sent.
        provider = TracerProvider(
            resource=Resource.create({"service.name": f"allroads-{service}", "service.version": __version__}),
            shutdown_on_exit=False,
        )
        self._sampler, self._resource = provider.sampler, provider.resource
        self._exporter = exporter
        self._endpoint = endpoint
        self._max_queued = max_queued
        self._queue: deque[EndedSpan] = deque()
        self._wakes = threading.Event()
        self._offset_ns = _offset_ns()
        self._is_closing = False
        self._is_failing = False
        self._num_overflown = self._num_failed = 0
        self._thread = threading.Thread(target=self._run, name=f"spans of {service}", daemon=True)
        self._thread.start()

    @property
    def num_dropped(self) -> int:
        """Spans that the collector did not get."""
        return self._num_overflown + self._num_failed

    def samples(self, name: str, trace_id: int, parent: TraceContext | None) -> bool:
        """Whether a span is to be recorded."""
        context = None if parent is None else set_span_in_context(NonRecordingSpan(_wire(parent, is_remote=True)))
        return self._sampler.should_sample(context, trace_id, name).decision is Decision.RECORD_AND_SAMPLE

    def put(self, ended: EndedSpan) -> None:
        """Have a span sent. Never waits."""
        if len(self._queue) >= self._max_queued:
            self._num_overflown += 1
            return
        self._queue.append(ended)
        if len(self._queue) >= _MAX_BATCH:
            self._wakes.set()

    def close(self) -> None:
        """Send what waits, for about a second at most; what is left then is dropped."""
        self._is_closing = True
        self._wakes.set()
        self._thread.join(_CLOSE_S)
        self._exporter.shutdown()
        self._thread.join(_ABANDON_S)
        self._num_overflown += len(self._queue)
        if self.num_dropped:
            logger.warning("%d spans did not reach the collector", self.num_dropped)

    def _run(self) -> None:
        while not self._is_closing:
            self._wakes.wait(_INTERVAL_S)
            self._wakes.clear()
            self._drain()
        # What came while the last batch was on its way.
        self._drain()

    def _drain(self) -> None:
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), _MAX_BATCH))]
            if self._send(batch):
                self._tell(is_failing=False)
                continue
            self._num_failed += len(batch)
            self._tell(is_failing=True)
            if self._is_closing:
                return

    def _send(self, batch: list[EndedSpan]) -> bool:
        """Whether the collector has them."""
        offset_ns = _offset_ns()
        if abs(offset_ns - self._offset_ns) > _CLOCK_SET_NS:
            self._offset_ns = offset_ns
        try:
            result = self._exporter.export([self._span(ended) for ended in batch])
        except Exception:  # whatever the library raises, the thread must live
            logger.exception("spans cannot be sent")
            return False
        return result is SpanExportResult.SUCCESS

    def _tell(self, *, is_failing: bool) -> None:
        """One line when the collector is lost, and one when it is back."""
        if is_failing and not self._is_failing:
            logger.warning("the collector of traces at %s takes none: they are dropped until it does", self._endpoint)
        elif self._is_failing and not is_failing:
            logger.info("the collector of traces is back; %d spans were dropped", self.num_dropped)
        self._is_failing = is_failing

    def _span(self, ended: EndedSpan) -> ReadableSpan:
        span = ended.span
        return ReadableSpan(
            name=span.name,
            context=_wire(span.context),
            parent=None if span.parent is None else _wire(span.parent, is_remote=span.is_server),
            resource=self._resource,
            attributes=ended.attributes,
            kind=SpanKind.SERVER if span.is_server else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, ended.fault) if ended.fault else Status(),
            start_time=span.started_ns + self._offset_ns,
            end_time=ended.ended_ns + self._offset_ns,
            instrumentation_scope=_SCOPE,
        )


def _offset_ns() -> int:
    """What the time of day is ahead of the monotonic clock."""
    return time.time_ns() - time.monotonic_ns()


def _wire(context: TraceContext, *, is_remote: bool = False) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if context.is_sampled else TraceFlags.DEFAULT)
    return SpanContext(context.trace_id, context.span_id, is_remote=is_remote, trace_flags=flags)


def collector_export(service: str, endpoint: str) -> SpanExport:
    """Sends to the collector that OpenTelemetry's variables name, by OTLP over gRPC."""
    # It says of each try that it failed; we say it once.
    logging.getLogger(OTLPSpanExporter.__module__.rpartition(".")[0]).setLevel(logging.CRITICAL)
    return SpanExport(OTLPSpanExporter(endpoint=endpoint), service, endpoint)
