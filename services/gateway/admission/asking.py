"""Questions to the model of throughput: whatever goes wrong with an answer is counted, and told of once."""

import logging
import time
from collections.abc import Callable

from ...errors import DeadlineExceeded
from ...throughput.setting import Prediction
from ..admission_metrics import AdmissionMetrics
from .model_thread import ModelThread
from .throughput_model import Fault, fault_of

logger = logging.getLogger(__name__)


class ModelFailed(Exception):
    """There is no sound answer, for a reason that was counted."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


class Asking:
    """One question at a time. Belongs to one event loop."""

    def __init__(self, metrics: AdmissionMetrics, limit_s: float) -> None:
        self._metrics = metrics
        self._limit_s = limit_s
        self._thread: ModelThread[list[Prediction]] = ModelThread()
        self._is_faulty = False

    @property
    def is_busy(self) -> bool:
        """Whether a late question is still unanswered."""
        return self._thread.is_busy

    def close(self) -> None:
        """Ask no more."""
        self._thread.close()

    async def ask(
        self, question: Callable[[], list[Prediction]], num_requests: int, num_larger: int
    ) -> list[Prediction]:
        """Predictions for so many requests in a mesh of so many larger tiers; `question` runs in a thread.

        Raises:
            ModelFailed: it raised, took too long, or gave what no mesh can do.
        """
        began_s = time.perf_counter()
        try:
            answers = await self._thread.ask(question, self._limit_s)
            faults = [fault_of(answer, num_requests, num_larger) for answer in answers]
        except DeadlineExceeded:
            raise self.failure("slow") from None
        except Exception as error:
            raise self.failure("error", error) from error
        finally:
            self._metrics.observe_answer(time.perf_counter() - began_s)
        for fault in faults:
            if fault is not None:
                raise self.failure(fault)
        if self._is_faulty:
            logger.info("the model of throughput answers again")
        self._is_faulty = False
        return answers

    def failure(self, fault: Fault, cause: Exception | None = None) -> ModelFailed:
        """Count a failure, and warn if it is the first since all was well."""
        self._metrics.count_fallback(fault)
        if not self._is_faulty:
            logger.warning("the model of throughput failed (%s): larger tiers launch at once", fault, exc_info=cause)
        self._is_faulty = True
        return ModelFailed(fault)
