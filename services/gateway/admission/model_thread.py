"""A thread for questions to the model of throughput, so that a slow answer holds nothing up, not even a stop."""

import asyncio
import queue
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Generic, TypeVar

from ...errors import DeadlineExceeded, ResourceExhausted

AnswerT = TypeVar("AnswerT")


class ModelThread(Generic[AnswerT]):
    """Answers one question at a time. Belongs to one event loop; the thread is there from the first question on."""

    def __init__(self) -> None:
        # One question, and the word that it was the last.
        self._questions: queue.Queue[Callable[[], None] | None] = queue.Queue(2)
        self._thread: Thread | None = None
        self._answer: asyncio.Future[AnswerT] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a question is unanswered, though nobody waits for it any more."""
        return self._answer is not None and not self._answer.done()

    async def ask(self, question: Callable[[], AnswerT], limit_s: float) -> AnswerT:
        """What the question returns, or raises.

        Raises:
            DeadlineExceeded: it took too long; its answer will be dropped.
            ResourceExhausted: another one is still unanswered.
        """
        if self.is_busy:
            raise ResourceExhausted("the model of throughput is at work on an earlier question")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[AnswerT] = loop.create_future()
        self._answer = answer

        def work() -> None:
            try:
                result = question()
            except Exception as error:
                _tell(loop, answer.set_exception, error)
            else:
                _tell(loop, answer.set_result, result)

        if self._thread is None:
            self._thread = Thread(target=self._run, name="throughput model", daemon=True)
            self._thread.start()
        self._questions.put_nowait(work)
        # Whoever waits may be cancelled; an error that comes after that is nobody's.
        answer.add_done_callback(_look_at)
        done, _ = await asyncio.wait({answer}, timeout=limit_s)
        if not done:
            raise DeadlineExceeded(f"the model of throughput gave no answer within {limit_s:g} s")
        return answer.result()

    def close(self) -> None:
        """Let the thread end, after the question that it is at."""
        with suppress(queue.Full):
            self._questions.put_nowait(None)

    def _run(self) -> None:
        while (question := self._questions.get()) is not None:
            question()


def _tell(loop: asyncio.AbstractEventLoop, take: Callable[..., None], value: object) -> None:
    # A loop that has ended has nobody who waits.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(take, value)


def _look_at(answer: "asyncio.Future[AnswerT]") -> None:
    if not answer.cancelled():
        answer.exception()
