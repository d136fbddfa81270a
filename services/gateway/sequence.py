"""One open request at the home, seen from the gateway: what is committed, and what nobody has read yet."""

import asyncio
import math
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from ..errors import AllroadsError
from ..mesh.wire import common_pb2, model_pb2
from .delivery import Delivery

_LONGEST_TIMEOUT_MS = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Ending:
    """How a sequence ended. `usage` is the home's account, None where the home could not give it."""

    is_stop: bool
    usage: common_pb2.Usage | None


@dataclass(frozen=True, slots=True)
class Batch:
    """All tokens that were committed since the last one, and the ending if they are the last."""

    token_ids: list[int]
    tiers: list[int]
    logprobs: list[common_pb2.TokenLogprobs]
    """Parallel to `token_ids` where the request asks for them, else empty."""
    scores: list[float]
    """The same; NaN where there is none."""
    ending: Ending | None


class Sequence:
    """A mailbox with one reader. Holds every committed token, which the context window bounds.

    A reader that comes seldom gets all that has gathered at once.
    """

    __slots__ = (
        "_error", "_num_read", "_waiter", "deadline_s", "ending", "logprobs", "request", "scores", "sequence_id",
        "tiers", "timers", "token_ids",
    )  # fmt: skip

    def __init__(self, sequence_id: int, request: model_pb2.OpenRequest, deadline_s: float) -> None:
        self.sequence_id = sequence_id
        self.request = request
        self.deadline_s = deadline_s
        """In the event loop's time."""
        self.token_ids: list[int] = []
        self.tiers: list[int] = []
        self.logprobs: list[common_pb2.TokenLogprobs] = []
        self.scores: list[float] = []
        self.ending: Ending | None = None
        self.timers: dict[str, asyncio.TimerHandle] = {}
        """What will fail the sequence unless it is cancelled, by reason."""
        self._error: AllroadsError | None = None
        self._num_read = 0
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.ending is not None or self._error is not None

    def deliver(self, delivery: Delivery) -> None:
        """Committed tokens came; the reader learns of it by `wake`."""
        self.token_ids.extend(delivery.token_ids)
        self.tiers.extend(delivery.tiers)
        self.logprobs.extend(delivery.logprobs)
        if self.request.report_scores:
            self.scores.extend(delivery.scores or [math.nan] * len(delivery.token_ids))

    def end(self, ending: Ending) -> None:
        """The last token has come."""
        self.ending = ending
        self.wake()

    def fail(self, error: AllroadsError) -> None:
        """No more will come, for a reason. Ignored once the sequence is over."""
        if not self.is_over:
            self._error = error
            self.wake()

    def end_if_complete(self, eos_token_ids: SequenceOf[int]) -> None:
        """End a sequence whose tokens are all here, though nobody said so: the home was lost between."""
        sampling = self.request.sampling
        if self.is_over or not self.token_ids:
            return
        last = self.token_ids[-1]
        is_stop = last in sampling.stop_token_ids or (not sampling.ignore_eos and last in eos_token_ids)
        if is_stop or len(self.token_ids) >= self.request.max_tokens:
            self.end(Ending(is_stop, None))

    def to_open(self) -> model_pb2.OpenRequest:
        """The request as it is sent now: with its id, its committed tokens, and the time that is left."""
        request = model_pb2.OpenRequest()
        request.CopyFrom(self.request)
        request.sequence_id = self.sequence_id
        request.committed_token_ids.extend(self.token_ids)
        request.committed_tiers.extend(self.tiers)
        left_s = self.deadline_s - asyncio.get_running_loop().time()
        request.timeout_ms = min(max(1, int(left_s * 1000)), _LONGEST_TIMEOUT_MS)
        return request

    def arm(self, reason: str, delay_s: float, error: AllroadsError) -> None:
        """Fail with the error after a delay, unless `disarm` comes first."""
        self.disarm(reason)
        self.timers[reason] = asyncio.get_running_loop().call_later(max(delay_s, 0.0), self.fail, error)

    def disarm(self, reason: str) -> None:
        """Do not fail for this reason."""
        if (timer := self.timers.pop(reason, None)) is not None:
            timer.cancel()

    async def take(self) -> Batch:
        """Everything that came since the last call; waits for something.

        Raises:
            AllroadsError: the sequence failed, and every token before that was taken.
        """
        while self._num_read == len(self.token_ids) and not self.is_over:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        start, self._num_read = self._num_read, len(self.token_ids)
        if self._error is not None and start == self._num_read:
            raise self._error
        return Batch(
            self.token_ids[start:], self.tiers[start:], self.logprobs[start:], self.scores[start:], self.ending
        )

    def wake(self) -> None:
        """Let the reader take what there is."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
