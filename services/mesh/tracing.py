"""Spans of a service: where they begin and end. What becomes of them is `span_export`'s business.

Nothing is recorded unless OTEL_EXPORTER_OTLP_ENDPOINT names a collector. A span is put together once, at its end, from
numbers that are there; who ends it pays for one entry in a queue.
"""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import Code, StartupError
from .trace_context import TraceContext, new_trace_id

if TYPE_CHECKING:
    from .span_export import SpanExport

logger = logging.getLogger(__name__)

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"

Attributes = Mapping[str, str | int | float | Sequence[str] | Sequence[int]]
"""Numbers, and words of ours: never what a client sent."""
FAULTS = frozenset(
    {Code.INTERNAL, Code.NOT_A_NUMBER, Code.OUT_OF_STEP, Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED},
)
"""Ends for which a span counts as failed. That a client was wrong, or left, is no fault of ours."""


@dataclass(frozen=True, slots=True)
class OpenSpan:
    """A span that has begun."""

    name: str
    context: TraceContext
    parent: TraceContext | None
    started_ns: int
    """Of the monotonic clock."""
    is_server: bool

    @property
    def is_recorded(self) -> bool:
        """Whether anything is kept of it; one that is not says so to those that it calls."""
        return self.context.is_sampled


@dataclass(frozen=True, slots=True)
class EndedSpan:
    """A span that is over."""

    span: OpenSpan
    ended_ns: int
    """Of the monotonic clock."""
    attributes: Attributes
    fault: str
    """What kind of fault it ended by; empty where it did not."""


class Tracer:
    """Begins and ends spans of one service. Any thread may call it."""

    def __init__(self, export: "SpanExport | None" = None) -> None:
        """Without an export nothing is recorded."""
        self._export = export

    @property
    def num_dropped(self) -> int:
        """Spans that did not reach the collector."""
        return 0 if self._export is None else self._export.num_dropped

    def begin(
        self, name: str, parent: TraceContext | None, *, started_ns: int | None = None, is_server: bool = True
    ) -> OpenSpan | None:
        """A span begins, now or when it is said to have. None where tracing is off.

        Args:
            name: one of a few.
            parent: None for the first span of a new trace.
            started_ns: of the monotonic clock.
            is_server: whether it is the work of a service that was called.
        """
        if self._export is None:
            return None
        trace_id = new_trace_id() if parent is None else parent.trace_id
        is_sampled = self._export.samples(name, trace_id, parent)
        context = TraceContext.new(trace_id, is_sampled=is_sampled)
        return OpenSpan(name, context, parent, time.monotonic_ns() if started_ns is None else started_ns, is_server)

    def join(self, name: str, traceparent: str) -> OpenSpan | None:
        """The span of a service that was called. None where tracing is off, or the caller takes no part in a trace."""
        if self._export is None or (parent := TraceContext.read(traceparent)) is None:
            return None
        return self.begin(name, parent)

    def end(
        self, span: OpenSpan, attributes: Attributes, *, ended_ns: int | None = None, fault: Code | None = None
    ) -> None:
        """A span is over. It counts as failed where its end is one of FAULTS."""
        if self._export is not None and span.is_recorded:
            ended_ns = time.monotonic_ns() if ended_ns is None else ended_ns
            self._export.put(EndedSpan(span, ended_ns, attributes, fault.value if fault in FAULTS else ""))

    def close(self) -> None:
        """Send what waits, for about a second at most."""
        if self._export is not None:
            self._export.close()


OFF = Tracer()
"""Records nothing."""


def open_tracer(service: str) -> Tracer:
    """The tracer of a service, as the environment asks for it. Close it.

    Raises:
        StartupError: a variable of OpenTelemetry's cannot be used.
    """
    endpoint = os.environ.get(_ENDPOINT, "").strip()
    if not endpoint or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return OFF
    try:
        from .span_export import collector_export  # noqa: PLC0415 (an extra)
    except ImportError as error:
        logger.warning(
            "there are no traces: %s is set, and needs what is not installed (%s): pip install 'allroads[telemetry]'",
            _ENDPOINT,
            error.name,
        )
        return OFF
    try:
        export = collector_export(service, endpoint)
    except Exception as error:  # the library raises whatever a variable leads it to
        raise StartupError(
            f"traces cannot be sent to {endpoint!r}: {error}; correct the variables OTEL_*, or unset {_ENDPOINT}",
            field=_ENDPOINT,
        ) from error
    logger.info("traces go to %s", endpoint)
    return Tracer(export)
