"""A collector of traces that keeps what it gets, over a real gRPC server with threads of its own."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status


@dataclass(frozen=True)
class Seen:
    """A span as the collector got it."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    kind: "Span.SpanKind.ValueType"
    is_fault: bool
    attributes: dict[str, Any]


@dataclass
class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps all spans."""

    spans: list[Seen] = field(default_factory=list)
    url: str = ""

    def Export(  # noqa: N802
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: object
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        for group in request.resource_spans:
            service = _values(group.resource.attributes)["service.name"]
            self.spans += [_seen(service, span) for scope in group.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def of(self, trace_id: str) -> list[Seen]:
        """Spans of a trace, in the order of their starts."""
        return sorted((span for span in self.spans if span.trace_id == trace_id), key=lambda span: span.start_ns)


@contextmanager
def collector() -> Iterator[Collector]:
    """Listen on a port of loopback."""
    double = Collector()
    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(double, server)  # type: ignore[no-untyped-call]
    double.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield double
    finally:
        server.stop(None).wait()


def _seen(service: str, span: Span) -> Seen:
    return Seen(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.kind,
        span.status.code == Status.STATUS_CODE_ERROR,
        _values(span.attributes),
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {attribute.key: _value(attribute.value) for attribute in attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, str(kind))
