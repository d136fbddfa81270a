"""What a client asks for, the same over REST and gRPC, and what it becomes once it was found right."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..mesh.routing import Parameters
from ..mesh.wire import model_pb2 as pb
from .echo import Echo
from .grammar import Grammar


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
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids."""
    min_tokens: int = 0
    num_logprobs: int | None = None
    """How many of the likeliest tokens are told beside the one written; None tells no log-probabilities."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    grammar: Grammar | None = None
    """What the answer must be; None where it may be anything."""
    policy: str = ""
    parameters: Parameters = field(default_factory=dict)
    """The policy's, those that the client gave."""
    mode: str = ""
    """Whether what the policy decides is done; "" for the mesh's default."""
    key: str = ""
    """What a canary's requests have in common that are routed all or none."""
    report_scores: bool = False
    """Whether the router's score at each token is told."""
    request_id: str = ""
    """For traces and logs only."""
    timeout_s: float | None = None
    """What the client gives; the gateway's own limit holds too."""
    echo: bool = False
    """Whether the prompt is shown before the answer; only then may `max_tokens` be 0."""
    shows_special_tokens: bool = False
    shows_stop: bool = False
    """Whether the stop string or the stop token's text belongs to the answer."""
    truncate_prompt_tokens: int | None = None
    """So many of the prompt's last tokens are kept; -1 for all that leave room for the answer."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A request that was found right. Nothing in it can be refused any more but for lack of room."""

    open_request: pb.OpenRequest
    """Without sequence id and time-out, which are known when it is sent."""
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    """Every id that ends the answer; its text is not shown."""
    policy: str
    tier_names: tuple[str, ...]
    """Of the mesh, the small model's first."""
    timeout_s: float
    """From the request's arrival."""
    echo: Echo | None = None
    shows_special_tokens: bool = False
    shows_stop: bool = False
    is_copy: bool = False
    """Whether the same prompt is counted with another choice of the reply."""

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.open_request.prompt_token_ids)

    @property
    def has_logprobs(self) -> bool:
        """Whether log-probabilities are asked for."""
        return self.open_request.sampling.HasField("num_logprobs")

    def choices(self, count: int) -> "list[Plan]":
        """Plans of so many answers to the prompt, this one first. With a seed, each next has the next seed."""
        return [self, *(self._copy(index) for index in range(1, count))]

    def _copy(self, index: int) -> "Plan":
        request = pb.OpenRequest()
        request.CopyFrom(self.open_request)
        if request.sampling.HasField("seed"):
            request.sampling.seed = (request.sampling.seed + index) % 2**64
        return replace(self, open_request=request, is_copy=True)
