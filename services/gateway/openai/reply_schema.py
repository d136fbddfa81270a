"""What replies look like, as types: for the OpenAPI document, which the tests hold to what is really sent."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

FinishReason = Literal["stop", "length", "tool_calls"]


class Told(BaseModel):
    """A reply or a part of one: these fields and no others."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class ErrorDetail(Told):
    """What went wrong."""

    message: str
    """What is wrong and what to do, for a person."""
    type: str
    """OpenAI's kind of error."""
    param: str | None
    """The request's field at fault."""
    code: str | None
    """What a program can tell the error by."""


class ErrorReply(Told):
    """Any reply that is no success."""

    error: ErrorDetail
    """What went wrong."""


class PromptTokensDetails(Told):
    """More about the prompt's tokens."""

    cached_tokens: int
    """Those whose KV the small model had from an earlier request."""


class Usage(Told):
    """Tokens of all choices together; stop tokens count, and a prompt of several choices counts once."""

    prompt_tokens: int
    """Tokens of the prompts."""
    completion_tokens: int
    """Tokens of the answers."""
    total_tokens: int
    """Both."""
    prompt_tokens_details: PromptTokensDetails
    """More about the prompt's tokens."""


class Opinions(Told):
    """Tokens that the small model wrote alone and the large one read later."""

    seen: int
    """How many."""
    agreed: int
    """Those that the large one would have written too."""


class Drafts(Told):
    """Drafts of the small model that a larger one judged."""

    judged: int
    """How many."""
    accepted: int
    """Those that stood."""


class RoutingReport(Told):
    """Who wrote the answer, and what that took. Null is what the home gave no account of."""

    policy: str
    """The policy that was asked for."""
    mode: str | None
    """What became of the request: `on`, `off` or `audit`."""
    tokens: dict[str, int]
    """Tokens by the name of the tier that wrote them."""
    llm_share: float
    """The share of them that the small model did not write."""
    computed_tokens: list[int] | None
    """Token positions that each tier computed."""
    scored_tokens: int | None
    """Proposals that the router saw."""
    rejected_tokens: int | None
    """Proposals that were turned down."""
    opinions: Opinions | None
    """What the large model thought of the small one's tokens."""
    drafts: Drafts | None
    """What became of drafts."""
    hand_offs: int | None
    """Hand-offs to larger models."""
    confirmed_hand_offs: int | None
    """Those where one wrote just what the small one had proposed."""
    ahead_tokens: int | None
    """Proposals that the small model made while a larger one was at work."""
    degraded: bool
    """Whether the small model finished alone because something was out of reach."""
    token_ids: list[int] = []
    """With `report_tokens`: each token."""
    tiers: list[int] = []
    """With `report_tokens`: the number of the tier that wrote each, 0 being the small model's."""
    scores: list[float | None] = []
    """With `report_scores`: the router's score at each token; null where there is none."""


class TopLogprob(Told):
    """A token that might have stood here."""

    token: str
    """Its text."""
    logprob: float
    """Natural logarithm of its probability."""
    bytes: list[int]
    """Its bytes."""


class TokenLogprob(TopLogprob):
    """A token of the answer."""

    top_logprobs: list[TopLogprob]
    """The likeliest tokens in its place, likeliest first."""


class ChatLogprobs(Told):
    """Log-probabilities of a chat's choice."""

    content: list[TokenLogprob]
    """Of each token."""
    refusal: None
    """Always null."""


class CompletionLogprobs(Told):
    """Log-probabilities of a completion's choice: parallel lists; with `echo` the prompt comes first."""

    tokens: list[str]
    """The text of each token."""
    token_logprobs: list[float | None]
    """Its log-probability; null for the first token of a prompt."""
    top_logprobs: list[dict[str, float] | None]
    """The likeliest tokens in its place."""
    text_offset: list[int]
    """Characters of the text before it."""


class CalledFunction(Told):
    """A function and what it is called with."""

    name: str
    """Of a function in `tools`."""
    arguments: str
    """JSON."""


class ToolCallReply(Told):
    """A call of a function."""

    id: str
    """To be named by the message with its result."""
    type: Literal["function"]
    """Always so."""
    function: CalledFunction
    """What is called."""


class ChatMessage(Told):
    """The assistant's message."""

    role: Literal["assistant"]
    """Always so."""
    content: str | None
    """Its text; null where there are only calls."""
    refusal: None
    """Always null."""
    tool_calls: list[ToolCallReply] = []
    """Functions that are to be called."""


class ChatChoice(Told):
    """One answer."""

    index: int
    """Its place among the choices."""
    message: ChatMessage
    """The answer."""
    logprobs: ChatLogprobs | None
    """For those who ask."""
    finish_reason: FinishReason
    """Why it ended."""
    token_ids: list[int] = []
    """With `return_token_ids`: its tokens."""
    routing: RoutingReport | None = None
    """Of this choice alone, where there are several."""


class ChatCompletion(Told):
    """A whole reply to a chat."""

    id: str
    """The reply's own."""
    object: Literal["chat.completion"]
    """Always so."""
    created: int
    """Unix time in seconds."""
    model: str
    """Name of the served model."""
    choices: list[ChatChoice]
    """The answers."""
    usage: Usage
    """What it cost."""
    routing: RoutingReport
    """Who wrote it."""
    prompt_token_ids: list[int] = []
    """With `return_token_ids`: the prompt's tokens."""


class CompletionChoice(Told):
    """One answer."""

    index: int
    """Its place among the choices: those of the first prompt come first."""
    text: str
    """The answer."""
    logprobs: CompletionLogprobs | None
    """For those who ask."""
    finish_reason: Literal["stop", "length"]
    """Why it ended."""
    token_ids: list[int] = []
    """With `return_token_ids`: its tokens."""
    prompt_token_ids: list[int] = []
    """With `return_token_ids`: the prompt's tokens."""
    routing: RoutingReport | None = None
    """Of this choice alone, where there are several."""


class Completion(Told):
    """A whole reply to a prompt."""

    id: str
    """The reply's own."""
    object: Literal["text_completion"]
    """Always so."""
    created: int
    """Unix time in seconds."""
    model: str
    """Name of the served model."""
    choices: list[CompletionChoice]
    """The answers."""
    usage: Usage
    """What it cost."""
    routing: RoutingReport
    """Who wrote it."""


class ModelCard(Told):
    """The served model."""

    id: str
    """Its name."""
    object: Literal["model"]
    """Always so."""
    created: int
    """Unix time in seconds at which the gateway started."""
    owned_by: str
    """Always `allroads`."""
    max_model_len: int | None
    """Tokens of the context window; null until the mesh was met."""
    allroads: dict[str, Any] | None
    """The mesh's tiers, and the policies that are served with their parameters."""


class ModelList(Told):
    """The served models, of which there is one."""

    object: Literal["list"]
    """Always so."""
    data: list[ModelCard]
    """The models."""


class Tokenized(Told):
    """A text as tokens."""

    count: int
    """How many there are."""
    max_model_len: int | None
    """Tokens of the context window; null until the mesh was met."""
    tokens: list[int]
    """Their ids."""
    token_strs: list[str] | None
    """With `return_token_strs`: each as the vocabulary spells it."""


class Detokenized(Told):
    """Tokens as text."""

    prompt: str
    """The text, special tokens too."""


class Status(Told):
    """How a service is."""

    status: Literal["ok", "ready"]
    """One word."""


class Version(Told):
    """What is running."""

    version: str
    """Of allroads."""
