"""The thread that scores. Batches that wait at the same time, of whatever stream, are scored in one pass."""

import logging
import queue
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from threading import Thread

import torch
from torch import Tensor

from ..cuda.stream import Surroundings
from ..errors import AllroadsError, Internal, ResourceExhausted
from .scorer import Scorer

logger = logging.getLogger(__name__)

MAX_WAITING_BATCHES = 1024
_MAX_MERGED_ROWS = 1024


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of a batch."""

    values: list[float]
    is_replayed: bool
    """Whether the pass ran as a recording."""


@dataclass(frozen=True, slots=True)
class Job:
    """A checked batch. `done` is called in the worker's thread with its scores or with what went wrong."""

    scorer: Scorer
    features: tuple[Tensor, Tensor, Tensor]
    """Top logits, hidden states, token ids, as `Scorer.score` takes them."""
    done: Callable[[Scored | AllroadsError], None]
    join: Callable[[], object] = lambda: None
    """Called in the worker's thread before it reads the features: lets its stream wait until they are there."""


class ScoringWorker:
    """Scores jobs in order of arrival, in one thread of its own."""

    def __init__(
        self,
        num_threads: int,
        max_waiting: int = MAX_WAITING_BATCHES,
        *,
        surroundings: Surroundings = nullcontext,
    ) -> None:
        """`surroundings`: what the thread works within, such as a stream of its own."""
        self._num_threads = num_threads
        self._surroundings = surroundings
        self._jobs: queue.Queue[Job | None] = queue.Queue(max_waiting)
        self._thread = Thread(target=self._run, name="score", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a batch; never blocks.

        Raises:
            ResourceExhausted: too many batches wait.
        """
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise ResourceExhausted(f"{self._jobs.maxsize} batches wait for the router already") from None

    def stop(self) -> None:
        """End the thread when what is queued is done."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        torch.set_num_threads(self._num_threads)
        with self._surroundings():
            self._work()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            jobs = [job]
            stopping = not self._take_waiting(jobs)
            for group in _by_scorer(jobs):
                _score(group)
            if stopping:
                return

    def _take_waiting(self, jobs: list[Job]) -> bool:
        """Add the jobs that wait now, up to a limit of rows. False when the worker is to stop."""
        num_rows = len(jobs[0].features[2])
        while num_rows < _MAX_MERGED_ROWS:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return True
            if job is None:
                return False
            jobs.append(job)
            num_rows += len(job.features[2])
        return True


def _by_scorer(jobs: list[Job]) -> list[list[Job]]:
    groups: dict[int, list[Job]] = {}
    for job in jobs:
        groups.setdefault(id(job.scorer), []).append(job)
    return list(groups.values())


def _score(jobs: list[Job]) -> None:
    scorer = jobs[0].scorer
    num_replayed = scorer.counts.num_replayed
    try:
        for job in jobs:
            job.join()
        scores: list[float] = scorer.score(*_merged(jobs)).tolist()
    except Exception:
        # Batches were checked, so this is a fault of ours, and must not end the thread that serves all.
        logger.exception("scoring failed")
        for job in jobs:
            job.done(Internal("the router could not score this batch; its log says why"))
        return
    begin = 0
    for job in jobs:
        end = begin + len(job.features[2])
        job.done(Scored(scores[begin:end], is_replayed=scorer.counts.num_replayed > num_replayed))
        begin = end


def _merged(jobs: list[Job]) -> tuple[Tensor, Tensor, Tensor]:
    """The features of all jobs. Some may have come through memory of a GPU and others not: they go where one is."""
    if len(jobs) == 1:
        return jobs[0].features
    top_logits, hidden_states, token_ids = (_joined(parts) for parts in zip(*(j.features for j in jobs), strict=True))
    return top_logits, hidden_states, token_ids


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    place = next((part.device for part in parts if part.is_cuda), parts[0].device)
    return torch.cat([part.to(place, non_blocking=True) for part in parts])
