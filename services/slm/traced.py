"""What the span of a request at its home says of it: counts, and words of ours."""

from ..errors import Code
from ..mesh.tracing import Attributes, OpenSpan
from ..mesh.wire import common_pb2 as pb
from .request import Request

_REASONS = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}


def attributes_of(
    request: Request, span: OpenSpan, reason: "pb.FinishReason.ValueType | None", error: Code | None
) -> Attributes:
    """Of a request that is over. `reason` is that of an answer which is complete; without either it was given up."""
    usage = request.usage
    found: dict[str, str | int | float | list[int]] = {
        "allroads.finish_reason": (error or Code.CANCELLED).value if reason is None else _REASONS[reason],
        "gen_ai.usage.input_tokens": usage.num_prompt_tokens,
        "gen_ai.usage.output_tokens": sum(usage.num_committed_tokens),
        "allroads.policy": request.policy.name,
        "allroads.mode": usage.mode,
        "allroads.tokens": list(usage.num_committed_tokens),
        "allroads.cached_tokens": request.sequence.num_cached,
        "allroads.positions": request.sequence.num_positions,
        "allroads.steps": request.num_steps,
        "allroads.scored_tokens": usage.num_scored_tokens,
        "allroads.rejected_tokens": usage.num_rejected_tokens,
        "allroads.score_wait_s": request.score_wait_ns / 1e9,
        "allroads.hand_offs": usage.num_hand_offs,
    }
    if request.started_ns:
        found["allroads.start_wait_s"] = (request.started_ns - span.started_ns) / 1e9
    return found
