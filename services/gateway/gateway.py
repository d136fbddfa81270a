"""The engine of requests behind both APIs: checks, plans, and starts them."""

from collections.abc import Sequence

from ..config import MeshSettings
from ..errors import AllroadsError, NotFound, Unavailable
from ..mesh.wire import model_pb2
from .admission.limiter import Limiter, Ticket
from .generation import Generation
from .home import HomeClient
from .metrics import Metrics
from .request import GenerationParams, Plan
from .text.answer import AnswerText
from .text.template import Message
from .text.token_text import TokenTexts
from .text.tokenizer import TextTokenizer
from .validation import check_params, check_prompt, make_plan

Prompt = str | Sequence[int]
"""Raw text or token ids."""


class Gateway:
    """Turns checked requests into generations. Belongs to one event loop."""

    def __init__(
        self, settings: MeshSettings, tokenizer: TextTokenizer, home: HomeClient, limiter: Limiter, metrics: Metrics
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self._tokenizer = tokenizer
        self._home = home
        self._limiter = limiter
        self._is_stopping = False

    @property
    def is_ready(self) -> bool:
        """Whether requests may come."""
        return self._home.is_ready and not self._is_stopping

    @property
    def mesh(self) -> model_pb2.MeshDescription | None:
        """What the mesh can do, None while that is unknown."""
        return self._home.mesh

    @property
    def token_texts(self) -> TokenTexts:
        """The text of each token of the vocabulary."""
        return self._tokenizer.token_texts

    def check_model(self, name: str) -> None:
        """Only the served model's name is right.

        Raises:
            NotFound: another name.
        """
        if name != self.settings.model_name:
            served = self.settings.model_name
            raise NotFound(f"there is no model {name!r} here; {served!r} is served", field="model")

    async def plan_chat(self, messages: Sequence[Message], params: GenerationParams) -> Plan:
        """Check a conversation and plan its answer.

        Raises:
            InvalidArgument, ContextLengthExceeded, Unavailable: before any model works.
        """
        mesh = self._checked(params)
        return self._planned(params, await self._tokenizer.encode_chat(messages), mesh, "messages")

    async def plan_prompt(self, prompt: Prompt, params: GenerationParams) -> Plan:
        """Check a raw prompt and plan its continuation.

        Raises:
            InvalidArgument, ContextLengthExceeded, Unavailable: before any model works.
        """
        mesh = self._checked(params)
        token_ids = await self._tokenizer.encode_prompt(prompt) if isinstance(prompt, str) else prompt
        return self._planned(params, token_ids, mesh, "prompt")

    def prepare(self, plans: Sequence[Plan]) -> list[Generation]:
        """Generations that have their places in line. The caller must close each.

        Raises:
            ResourceExhausted: there is no room for all of them.
        """
        tickets: list[Ticket] = []
        try:
            tickets.extend(self._limiter.enter() for _ in plans)
        except AllroadsError as error:
            for ticket in tickets:
                ticket.release()
            self.metrics.count_refusal(error.code)
            raise
        return [
            Generation(
                plan,
                ticket,
                self._home,
                self.metrics,
                AnswerText(self._tokenizer.decode, plan.stop, has_offsets=plan.has_logprobs),
            )
            for plan, ticket in zip(plans, tickets, strict=True)
        ]

    def stop_admitting(self) -> None:
        """Refuse new requests; open ones go on."""
        self._is_stopping = True

    async def wait_until_idle(self) -> None:
        """Return when no request is open."""
        await self._limiter.wait_until_idle()

    def end_open(self) -> None:
        """End what is still open, each with an error that its client sees."""
        error = _stopping()
        self._limiter.refuse_waiting(error)
        self._home.fail_all(error)

    def _checked(self, params: GenerationParams) -> model_pb2.MeshDescription:
        if self._is_stopping:
            raise _stopping()
        mesh = self._home.describe()
        check_params(params, mesh, len(self._tokenizer.vocabulary))
        return mesh

    def _planned(
        self, params: GenerationParams, token_ids: Sequence[int], mesh: model_pb2.MeshDescription, field: str
    ) -> Plan:
        check_prompt(token_ids, mesh, len(self._tokenizer.vocabulary), field)
        return make_plan(params, token_ids, mesh, self.settings.gateway.request_timeout_s)


def _stopping() -> Unavailable:
    return Unavailable("the gateway is stopping; try again", retry_after_s=1.0)
