"""A request's trace: its span at the gateway, the wait in line as a child of that, and what goes on to the home."""

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar, Token
from dataclasses import replace
from types import TracebackType
from typing import Self

from ..errors import AllroadsError, Code
from ..mesh.trace_context import TraceContext
from ..mesh.tracing import FAULTS, Attributes, OpenSpan, Tracer
from .generation import Generation

_current: "ContextVar[RequestTrace | None]" = ContextVar("trace of the request in hand", default=None)


def follow(generations: Sequence[Generation]) -> None:
    """Have the trace of the request in hand, if it has one, go on with these generations, which have not started."""
    if (trace := _current.get()) is not None:
        trace.follow(generations)


class RequestTrace:
    """The trace of the request in whose context this is entered; the end of that ends the request's span.

    Where tracing is off, what a client sent goes on to services where it may be on.
    """

    def __init__(self, tracer: Tracer, name: str, traceparents: Sequence[str], attributes: Attributes) -> None:
        """`traceparents`: what the client sent, which counts only if it is right and came once."""
        parent = TraceContext.read(traceparents[0]) if len(traceparents) == 1 else None
        self._tracer = tracer
        self._span = tracer.begin(name, parent)
        self._passed_on = parent if self._span is None else self._span.context
        self._attributes = dict(attributes)
        self._generations: list[Generation] = []
        self._token: Token[RequestTrace | None] | None = None
        self.failure: Code | None = None
        """Why the request as a whole failed, where nothing is raised that says so."""

    @property
    def is_recorded(self) -> bool:
        """Whether a span will come of this."""
        return self._span is not None and self._span.is_recorded

    def __enter__(self) -> Self:
        if self._passed_on is not None:
            self._token = _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            _current.reset(self._token)
        if self._span is not None and self._span.is_recorded:
            self._end(self._span, self.failure or _code_of(error))

    def follow(self, generations: Sequence[Generation]) -> None:
        """Go on with generations that have not started."""
        self._generations += generations
        if self._passed_on is not None:
            for generation in generations:
                generation.plan.open_request.traceparent = self._passed_on.traceparent

    def add(self, attributes: Attributes) -> None:
        """Say more of the request."""
        self._attributes.update(attributes)

    def _end(self, span: OpenSpan, failure: Code | None) -> None:
        if failure is Code.RESOURCE_EXHAUSTED and not self._generations:
            # Who is refused at the door is to cost next to nothing.
            return
        # What has its place at the doorstep has it before the request is read.
        arrived_ns = min((_ns(generation.arrived_s) for generation in self._generations), default=span.started_ns)
        span = replace(span, started_ns=min(span.started_ns, arrived_ns))
        for generation in self._generations:
            self._end_wait(span, generation)
        codes = [code for generation in self._generations if (code := generation.failure) is not None]
        fault = next((code for code in (failure, *codes) if code in FAULTS), None)
        self._tracer.end(span, {**self._attributes, **attributes_of(self._generations)}, fault=fault)

    def _end_wait(self, span: OpenSpan, generation: Generation) -> None:
        waited = self._tracer.begin("queue", span.context, started_ns=_ns(generation.arrived_s), is_server=False)
        if waited is not None:
            until_s = generation.waited_until_s
            # Who has left was in line until now.
            self._tracer.end(waited, {}, ended_ns=None if until_s is None else _ns(until_s))


def attributes_of(generations: Sequence[Generation]) -> Attributes:
    """What a request's generations came to: counts, and words of ours."""
    if not generations:
        return {}
    tokens = [sum(counts) for counts in zip(*(generation.tier_counts for generation in generations), strict=False)]
    num_tokens = sum(tokens)
    found: dict[str, str | int | float | Sequence[str] | Sequence[int]] = {
        "gen_ai.usage.input_tokens": sum(g.plan.num_prompt_tokens for g in generations if not g.plan.is_copy),
        "gen_ai.usage.output_tokens": num_tokens,
        "gen_ai.response.finish_reasons": [generation.ended_as for generation in generations],
        "allroads.policy": generations[0].plan.policy,
        "allroads.tokens": tokens,
    }
    if num_tokens:
        found["allroads.llm_share"] = sum(tokens[1:]) / num_tokens
    if waits := [g.waited_until_s - g.arrived_s for g in generations if g.waited_until_s is not None]:
        found["allroads.queue_wait_s"] = max(waits)
    if firsts := [g.first_token_s - g.arrived_s for g in generations if g.first_token_s is not None]:
        found["allroads.time_to_first_token_s"] = min(firsts)
    return found


def _code_of(error: BaseException | None) -> Code | None:
    if error is None or isinstance(error, GeneratorExit):
        return None
    if isinstance(error, AllroadsError):
        return error.code
    return Code.CANCELLED if isinstance(error, asyncio.CancelledError) else Code.INTERNAL


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
