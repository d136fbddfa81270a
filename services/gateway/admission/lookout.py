"""Predictions for other numbers of requests than there are, a few at a time, for those who admit."""

from collections.abc import Callable
from functools import partial

from ...throughput.setting import Prediction, Setting
from .asking import Asking
from .outlook import OUTLOOK_SIZES, PredictedService

_AT_ONCE = 2
_STANDS_FOR_S = 30.0
"""How long what was expected stands though answers are late: a machine that is busy for a moment breaks no promise."""


class Lookout:
    """Keeps an outlook up to date. Belongs to one event loop."""

    def __init__(
        self,
        outlook: PredictedService,
        asking: Asking,
        best: Callable[[Setting, int], Prediction],
        max_running: int,
        now_s: float,
    ) -> None:
        """Begin without knowing anything.

        Args:
            outlook: told what to expect, once all of it is known.
            asking: asks the questions.
            best: predicts for a number of requests; called in a thread.
            max_running: the largest number of interest.
            now_s: of the clock that later calls tell.
        """
        self._outlook, self._asking, self._best = outlook, asking, best
        self._sizes = (*(size for size in OUTLOOK_SIZES if size < max_running), max_running)
        self._expected: dict[int, tuple[Setting, float]] = {}
        """Tokens a second by the number of requests, with what they were predicted from; the latest last."""
        self._renewed_s = now_s

    async def renew(self, setting: Setting, num_requests: int, now_s: float) -> None:
        """Predict for a few numbers, those longest ago first; none where all are from this very setting.

        Raises:
            ModelFailed: there is no sound answer.
        """
        unknown = [size for size in self._sizes if size not in self._expected]
        old = [size for size, (predicted_from, _) in self._expected.items() if predicted_from is not setting]
        for size in (unknown or old)[:_AT_ONCE]:
            question = partial(self._predict, setting, size)
            (answer,) = await self._asking.ask(question, size, len(setting.larger))
            self._expected.pop(size, None)
            self._expected[size] = setting, answer.tokens_per_s
        if len(self._expected) == len(self._sizes):
            tokens_per_s = {size: value for size, (_, value) in self._expected.items()}
            self._outlook.learn(tokens_per_s, num_requests, setting)
        self._renewed_s = now_s

    def forget_if_old(self, now_s: float) -> None:
        """Know nothing any more where answers have not come for too long."""
        if now_s - self._renewed_s > _STANDS_FOR_S:
            self.forget()

    def forget(self) -> None:
        """Know nothing."""
        self._outlook.forget()
        self._expected.clear()

    def _predict(self, setting: Setting, num_requests: int) -> list[Prediction]:
        return [self._best(setting, num_requests)]
