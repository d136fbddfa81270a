"""What the event loop tells the decode thread."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import AllroadsError
from ..mesh.tracing import OpenSpan
from ..mesh.wire import model_pb2, router_pb2
from ..model.step_clock import Arrival


@dataclass(frozen=True, slots=True)
class Open(Arrival):
    """A client's new request."""

    stream_id: int
    request: model_pb2.OpenRequest
    span: OpenSpan | None = None
    """The request's here, where there are traces; `request.traceparent` then names it."""


@dataclass(frozen=True, slots=True)
class Abort(Arrival):
    """End a request. With an error it is told to the client, without one nobody listens any more."""

    stream_id: int
    sequence_id: int
    error: AllroadsError | None = None


@dataclass(frozen=True, slots=True)
class StreamClosed(Arrival):
    """A client's stream is gone, and all its requests with it."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class WishLaunches(Arrival):
    """When a client wants larger tiers to launch."""

    stream_id: int
    launches: Sequence[model_pb2.LaunchThreshold]


@dataclass(frozen=True, slots=True)
class RouterUp(Arrival):
    """The router answers, and its scorers fit."""

    scorers: Mapping[str, router_pb2.ScorerDescription]
    """By name."""


@dataclass(frozen=True, slots=True)
class RouterDown(Arrival):
    """The router is out of reach; verdicts asked for will not come."""

    error: AllroadsError


@dataclass(frozen=True, slots=True)
class Scored(Arrival):
    """The router's answer to a batch."""

    scores: router_pb2.Scores


@dataclass(frozen=True, slots=True)
class TierUp(Arrival):
    """A larger model answers, and holds nothing of ours yet."""

    tier: int
    max_context: int
    eos_token_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class TierDown(Arrival):
    """A larger model is out of reach, and what it held is lost."""

    tier: int
    error: AllroadsError


@dataclass(frozen=True, slots=True)
class Visited(Arrival):
    """Tokens and errors from a larger model."""

    tier: int
    response: model_pb2.VisitResponse


Command = Open | Abort | StreamClosed | WishLaunches | RouterUp | RouterDown | Scored | TierUp | TierDown | Visited
