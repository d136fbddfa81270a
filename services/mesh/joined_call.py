"""Trace context of calls that are about one request: it travels in their metadata. In streams each message has it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from ..errors import AllroadsError
from .tracing import Tracer

KEY = "traceparent"


def sent_with(context: "grpc.aio.ServicerContext[Any, Any]") -> list[str]:
    """What came with a call; it counts only if it came once."""
    return [str(value) for name, value in context.invocation_metadata() or () if name == KEY]


def metadata_of(traceparent: str) -> tuple[tuple[str, str], ...]:
    """What to call with."""
    return ((KEY, traceparent),) if traceparent else ()


@contextmanager
def joined_call(tracer: Tracer, name: str, context: "grpc.aio.ServicerContext[Any, Any]") -> Iterator[str]:
    """The span of a call, which ends with this; gives the context for what is called from here."""
    sent = sent_with(context)
    traceparent = sent[0] if len(sent) == 1 else ""
    span = tracer.join(name, traceparent)
    fault = None
    try:
        yield traceparent if span is None else span.context.traceparent
    except AllroadsError as error:
        fault = error.code
        raise
    finally:
        if span is not None:
            tracer.end(span, {}, fault=fault)
