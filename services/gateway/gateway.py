"""The engine of requests behind both APIs: checks, plans, and starts them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ..config import MeshSettings
from ..errors import AllroadsError, NotFound, Unavailable
from ..mesh.tracing import OFF, Tracer
from ..mesh.wire import model_pb2
from .admission.controller import AdmissionController
from .admission.door import Door, Places
from .admission.refusal import reason_of
from .echo import echo_of
from .generation import Generation
from .grammar import GrammarCheck
from .home import HomeClient
from .metrics import Metrics
from .request import GenerationParams, Plan
from .request_trace import follow
from .security.prompt_size import TextLimit, check_prompt_size
from .text.answer import AnswerText
from .text.template import Message
from .text.template_options import TemplateOptions
from .text.token_text import TokenTexts
from .text.tokenizer import TextTokenizer
from .validation import check_params, check_prompt, make_plan, truncated

_AS_USUAL = TemplateOptions()
_MIN_COUNTED = 256 * 1024
"""Characters that may be tokenized for their own sake even where the context is small."""

Prompt = str | Sequence[int]
"""Raw text or token ids."""


class Gateway:
    """Turns checked requests into generations. Belongs to one event loop."""

    def __init__(
        self,
        settings: MeshSettings,
        tokenizer: TextTokenizer,
        home: HomeClient,
        door: Door,
        metrics: Metrics,
        controller: AdmissionController,
        tracer: Tracer = OFF,
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self._tokenizer = tokenizer
        self._home = home
        self.door = door
        self.controller = controller
        self.tracer = tracer
        self._grammars = GrammarCheck()
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
    def tokenizer(self) -> TextTokenizer:
        """The models'."""
        return self._tokenizer

    @property
    def token_texts(self) -> TokenTexts:
        """The text of each token of the vocabulary."""
        return self._tokenizer.token_texts

    @property
    def count_limit(self) -> TextLimit:
        """How much text is tokenized for its own sake: a prompt's, or more where that is little."""
        longest_token = self._tokenizer.longest_token
        window = 0 if self.mesh is None else self.mesh.max_context_tokens
        return TextLimit(max(window, _MIN_COUNTED // longest_token), longest_token)

    def check_model(self, name: str) -> None:
        """Only the served model's name is right.

        Raises:
            NotFound: another name.
        """
        if name != self.settings.model_name:
            served = self.settings.model_name
            raise NotFound(f"there is no model {name!r} here; {served!r} is served", field="model")

    async def plan_chat(
        self, messages: Sequence[Message], params: GenerationParams, options: TemplateOptions = _AS_USUAL
    ) -> Plan:
        """Check a conversation and plan its answer.

        Raises:
            InvalidArgument, ContextLengthExceeded, Unavailable: before any model works.
        """
        mesh = await self._checked(params)
        token_ids = await self._tokenizer.encode_chat(messages, options, limit=self._text_limit(params, mesh))
        return self._planned(params, token_ids, mesh, "messages")

    async def plan_prompt(self, prompt: Prompt, params: GenerationParams) -> Plan:
        """Check a raw prompt and plan its continuation.

        Raises:
            InvalidArgument, ContextLengthExceeded, Unavailable: before any model works.
        """
        mesh = await self._checked(params)
        if isinstance(prompt, str):
            prompt = self._text_limit(params, mesh).fit(prompt, "prompt")
        token_ids = await self._tokenizer.encode_prompt(prompt) if isinstance(prompt, str) else prompt
        plan = self._planned(params, token_ids, mesh, "prompt")
        if not params.echo:
            return plan
        # What was cut off is not shown either.
        is_whole = isinstance(prompt, str) and plan.num_prompt_tokens == len(token_ids)
        text = prompt if isinstance(prompt, str) and is_whole else None
        kept = list(plan.open_request.prompt_token_ids)
        return replace(plan, echo=await echo_of(self._tokenizer, text, kept, params.num_logprobs))

    def check_room(self, client: str) -> None:
        """Whether a request would be let in now. Costs next to nothing, so it may be asked before anything is read.

        Raises:
            Refusal, Unavailable: it would not; with a time to come back.
        """
        with self._refusing():
            self.door.check(client)

    def admit(self, client: str, num_places: int, timeout_s: float | None = None) -> Places:
        """Places in the mesh or in line, taken before the work of planning is done; see `Door.admit`.

        Raises:
            Refusal, Unavailable: there is no room for all of them; with a time to come back.
        """
        with self._refusing():
            return self.door.admit(client, num_places, timeout_s)

    def widen(self, places: Places, client: str, num_places: int) -> None:
        """As many places for a request that has some; see `Door.widen`.

        Raises:
            Refusal, Unavailable: there is no room for all of them; with a time to come back.
        """
        with self._refusing():
            self.door.widen(places, client, num_places)

    def prepare(self, plans: Sequence[Plan], places: Places) -> list[Generation]:
        """Generations that take over as many places. The caller must close each.

        Raises:
            Unavailable: the gateway began to stop after they were admitted.
        """
        if self._is_stopping:
            raise _stopping()
        generations = [
            Generation(
                plan,
                ticket,
                self._home,
                self.metrics,
                self._answer_text(plan),
            )
            for plan, ticket in zip(plans, places.take(), strict=True)
        ]
        follow(generations)
        return generations

    def stop_admitting(self) -> None:
        """Refuse new requests; open ones go on."""
        self._is_stopping = True

    async def wait_until_idle(self) -> None:
        """Return when no request is open."""
        await self.door.limiter.wait_until_idle()

    def end_open(self) -> None:
        """End what is still open, each with an error that its client sees."""
        error = _stopping()
        self.door.limiter.refuse_waiting(error)
        self._home.fail_all(error)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Refuses where the gateway is stopping, and counts who is refused."""
        if self._is_stopping:
            raise _stopping()
        try:
            yield
        except AllroadsError as error:
            self.metrics.count_refusal(error.code)
            if (reason := reason_of(error)) is not None:
                self.metrics.queue.count_refusal(reason)
            raise

    def _answer_text(self, plan: Plan) -> AnswerText:
        return AnswerText(
            self._tokenizer.decode_all if plan.shows_special_tokens else self._tokenizer.decode,
            plan.stop,
            has_offsets=plan.has_logprobs,
            shows_stop=plan.shows_stop,
            begins_at=0 if plan.echo is None else len(plan.echo.text),
        )

    async def _checked(self, params: GenerationParams) -> model_pb2.MeshDescription:
        if self._is_stopping:
            raise _stopping()
        mesh = self._home.describe()
        check_params(params, mesh, len(self._tokenizer.vocabulary))
        if params.grammar is not None:
            await self._grammars.check(params.grammar)
        return mesh

    def _text_limit(self, params: GenerationParams, mesh: model_pb2.MeshDescription) -> TextLimit:
        """What of a prompt's text can be of use: as much as the context may hold, or the operator allows."""
        window, longest_token = mesh.max_context_tokens, self._tokenizer.longest_token
        if params.truncate_prompt_tokens is not None:
            return TextLimit(window, longest_token, keeps_end=True)
        return TextLimit(min(self.settings.gateway.limits.max_prompt_tokens or window, window), longest_token)

    def _planned(
        self, params: GenerationParams, token_ids: Sequence[int], mesh: model_pb2.MeshDescription, field: str
    ) -> Plan:
        token_ids = truncated(token_ids, params, mesh)
        check_prompt_size(token_ids, self.settings.gateway.limits.max_prompt_tokens, field)
        check_prompt(token_ids, mesh, len(self._tokenizer.vocabulary), field)
        return make_plan(params, token_ids, mesh, self.settings.gateway.request_timeout_s)


def _stopping() -> Unavailable:
    return Unavailable("the gateway is stopping; try again", retry_after_s=1.0)
