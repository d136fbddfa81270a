"""Log-probabilities of a token on the wire and back; float32 on both sides, so nothing is lost."""

from ..engine.logprobs import TokenLogprobs
from ..mesh.wire import common_pb2 as pb


def to_wire(logprobs: TokenLogprobs) -> pb.TokenLogprobs:
    """One token's entry."""
    return pb.TokenLogprobs(
        logprob=logprobs.logprob, top_token_ids=logprobs.top_token_ids, top_logprobs=logprobs.top_logprobs
    )


def from_wire(wire: pb.TokenLogprobs) -> TokenLogprobs:
    """One token's entry, as a larger tier sent it."""
    return TokenLogprobs(wire.logprob, tuple(wire.top_token_ids), tuple(wire.top_logprobs))
