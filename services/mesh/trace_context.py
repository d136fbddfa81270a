"""W3C trace context: which trace a request belongs to, and which span is the parent of its next one."""

import random
import re
from dataclasses import dataclass
from typing import Self

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 0x01
_NO_VERSION = "ff"

_ids = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span as others name it."""

    trace_id: int
    """128 bits, not 0."""
    span_id: int
    """64 bits, not 0."""
    is_sampled: bool

    @classmethod
    def read(cls, traceparent: str) -> Self | None:
        """What a `traceparent` says; None where it says nothing or is wrong."""
        match = _TRACEPARENT.fullmatch(traceparent)
        if match is None:
            return None
        version, trace_id, span_id, flags, more = match.groups()
        # Later versions may say more, the first one must not.
        if version == _NO_VERSION or (version == "00" and more is not None):
            return None
        context = cls(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED))
        return context if context.trace_id and context.span_id else None

    @classmethod
    def new(cls, trace_id: int, *, is_sampled: bool) -> Self:
        """A new span of a trace."""
        return cls(trace_id, _new_id(64), is_sampled)

    @property
    def traceparent(self) -> str:
        """As it goes on."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{_SAMPLED if self.is_sampled else 0:02x}"


def new_trace_id() -> int:
    """An id that no other trace has."""
    return _new_id(128)


def _new_id(num_bits: int) -> int:
    return _ids.randrange(1, 1 << num_bits)
