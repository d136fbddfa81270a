"""What a client asks for, the same over REST and gRPC, and what it becomes once it was found right."""

from dataclasses import dataclass

from ..mesh.wire import model_pb2 as pb


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """How to continue a prompt. None and "" mean the default."""

    max_tokens: int | None = None
    """Tokens at most; None for all that fit the context window."""
    temperature: float | None = None
    """0 is greedy; None is 1, as in OpenAI's API."""
    top_p: float | None = None
    top_k: int | None = None
    """0 and -1 mean all."""
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    policy: str = ""
    threshold: float | None = None
    share: float | None = None
    request_id: str = ""
    """For traces and logs only."""
    timeout_s: float | None = None
    """What the client gives; the gateway's own limit holds too."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A request that was found right. Nothing in it can be refused any more but for lack of room."""

    open_request: pb.OpenRequest
    """Without sequence id and time-out, which are known when it is sent."""
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    """Every id that ends the answer; its text is not shown."""
    policy: str
    timeout_s: float
    """From the request's arrival."""

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.open_request.prompt_token_ids)
