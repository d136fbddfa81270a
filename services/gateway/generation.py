"""One request's life, the same for REST and gRPC: a place, a sequence at the home, text, and an end.

However it ends (answer complete, stop string, deadline, client gone), `close` gives everything back.
"""

import time
from dataclasses import dataclass
from typing import Literal, Self

from ..errors import AllroadsError, Code, DeadlineExceeded
from ..mesh.wire import common_pb2
from .admission.refusal import reason_of
from .admission.ticket import Ticket
from .echo import EchoedPrompt
from .home import HomeClient
from .metrics import Metrics
from .request import Plan
from .sequence import Batch, Sequence
from .text.answer import AnswerText

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Piece:
    """What came at once: text that is certain, tokens, and the finish reason in the last piece."""

    text: str
    token_ids: list[int]
    tiers: list[int]
    """Parallel to `token_ids`: the tier that wrote each."""
    logprobs: list[common_pb2.TokenLogprobs]
    """Parallel to `token_ids` where the request asks for them, else empty."""
    scores: list[float]
    """The same: the router's; NaN where there is none."""
    text_offsets: list[int]
    """Parallel to `logprobs`: characters of the answer's text that were certain before each token."""
    finish_reason: FinishReason | None
    prompt: EchoedPrompt | None = None
    """In the first piece of an answer that begins with its prompt; then there is nothing else in it."""


class Generation:
    """An answer being written. Start it, iterate over its pieces, and always close it."""

    def __init__(self, plan: Plan, ticket: Ticket, home: HomeClient, metrics: Metrics, text: AnswerText) -> None:
        self.plan = plan
        self.finish_reason: FinishReason | None = None
        self.tier_counts = [0] * len(plan.tier_names)
        """Committed tokens by tier."""
        self.usage: common_pb2.Usage | None = None
        """The home's account; None where the gateway ended the answer itself."""
        self._ticket, self._home, self._metrics, self._text = ticket, home, metrics, text
        self.arrived_s = ticket.entered_s
        """When it got in line. Of the monotonic clock, as are all times here."""
        self.waited_until_s: float | None = None
        """When it got its place, or was refused one."""
        self.first_token_s: float | None = None
        self.failure: Code | None = None
        """What ended it, where that was a failure; of an answer that is given up nobody says so."""
        self._sequence: Sequence | None = None
        self._last_token_s = self.arrived_s
        self._is_closed = False
        self._has_echoed = False

    @property
    def num_tokens(self) -> int:
        """Committed tokens, a stop token included."""
        return sum(self.tier_counts)

    @property
    def ended_as(self) -> str:
        """Why it ended, one of `FINISH_REASONS`."""
        return self.finish_reason or (self.failure or Code.CANCELLED).value

    async def start(self) -> None:
        """Wait for a place, then open the sequence.

        Raises:
            ResourceExhausted, DeadlineExceeded, Unavailable: there was no place in time.
        """
        try:
            await self._ticket.wait(self._time_left_s())
            if self._time_left_s() <= 0:
                raise DeadlineExceeded("the time for this request was over before it could start")
        except AllroadsError as error:
            self.failure, self.waited_until_s = error.code, time.monotonic()
            if (reason := reason_of(error)) is not None:
                self._metrics.queue.count_refusal(reason)
            raise
        self.waited_until_s = time.monotonic()
        self._metrics.queue.observe_wait(self.waited_until_s - self.arrived_s)
        if self.plan.open_request.max_tokens:
            self._sequence = self._home.open(self.plan.open_request, self._time_left_s())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        if self.finish_reason is not None or self._is_closed:
            raise StopAsyncIteration
        try:
            piece = await self._next()
        except AllroadsError as error:
            self.failure = error.code
            raise
        if piece.finish_reason is not None:
            self.finish_reason = piece.finish_reason
            self.close()
        return piece

    def close(self) -> None:
        """Give back place and sequence, which aborts what is not finished. May be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._sequence is not None:
            self._home.close(self._sequence)
        self._ticket.release()
        self._metrics.observe_end(
            self.ended_as,
            time.monotonic() - self.arrived_s,
            num_prompt_tokens=self.plan.num_prompt_tokens,
            tier_counts=self.tier_counts,
        )
        if self.usage is not None:
            self._metrics.observe_usage(self.usage, self.plan.tier_names)

    async def _next(self) -> Piece:
        """What comes now: first the prompt for those who ask for it, then what is written."""
        if (prompt := await self._echo()) is not None:
            return _piece_of(prompt, None)
        if self._sequence is None:
            return _piece_of(None, "length")
        batch = await self._sequence.take()
        piece = self._read(batch)
        self._account(piece)
        if piece.finish_reason is not None and batch.ending is not None:
            self.usage = batch.ending.usage
        return piece

    async def _echo(self) -> EchoedPrompt | None:
        """The prompt, once, if the answer is to begin with it."""
        echo = self.plan.echo
        if echo is None or self._has_echoed:
            return None
        token_ids = list(self.plan.open_request.prompt_token_ids)
        logprobs = None
        if echo.num_logprobs is not None:
            traceparent = self.plan.open_request.traceparent
            logprobs = await self._home.prompt_logprobs(token_ids, echo.num_logprobs, self._time_left_s(), traceparent)
        self._has_echoed = True
        return EchoedPrompt(echo.text, token_ids, logprobs, echo.text_offsets)

    def _read(self, batch: Batch) -> Piece:
        """Text of a batch. A stop token counts, and is not shown."""
        token_ids, ending = batch.token_ids, batch.ending
        is_stop = ending is not None and ending.is_stop
        ends_here = bool(token_ids) and (is_stop or token_ids[-1] in self.plan.stop_token_ids)
        shown = self._text.push(token_ids, last_is_hidden=ends_here)
        text = shown.text
        finish_reason: FinishReason | None = "stop" if self._text.is_cut else None
        if finish_reason is None and ending is not None:
            text += self._text.finish()
            finish_reason = "stop" if is_stop or self._text.is_cut else "length"
        end = shown.num_tokens
        return Piece(
            text=text,
            token_ids=token_ids[:end],
            tiers=batch.tiers[:end],
            logprobs=batch.logprobs[:end],
            scores=batch.scores[:end],
            text_offsets=shown.offsets,
            finish_reason=finish_reason,
        )

    def _account(self, piece: Piece) -> None:
        if not piece.tiers:
            return
        now_s = time.monotonic()
        if self.num_tokens == 0:
            self.first_token_s = now_s
            self._metrics.observe_first_token(now_s - self.arrived_s)
        else:
            self._metrics.observe_gap((now_s - self._last_token_s) / len(piece.tiers))
        self._last_token_s = now_s
        for tier in piece.tiers:
            if tier >= len(self.tier_counts):
                self.tier_counts.extend([0] * (tier + 1 - len(self.tier_counts)))
            self.tier_counts[tier] += 1
        self._metrics.count_tokens(piece.tiers, self.plan.tier_names)

    def _time_left_s(self) -> float:
        return self.arrived_s + self.plan.timeout_s - time.monotonic()


def _piece_of(prompt: EchoedPrompt | None, finish_reason: FinishReason | None) -> Piece:
    """A piece without any token of the answer."""
    return Piece("", [], [], [], [], [], finish_reason, prompt)
