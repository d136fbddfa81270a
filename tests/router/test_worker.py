"""The scoring thread: order, merging, limits, and faults of one batch."""

import queue
from pathlib import Path
from threading import Event
from typing import cast

import pytest
import torch
from allroads.cuda.launch_counts import LaunchCounts
from allroads.errors import AllroadsError, Internal, ResourceExhausted
from allroads.router.checkpoint import load_router
from allroads.router.r2r_scorer import R2RScorer
from allroads.router.scorer import Scorer
from allroads.router.worker import Job, Scored, ScoringWorker
from torch import Tensor

from .test_scorer import batch

Result = Scored | AllroadsError


def direct(*values: float) -> Scored:
    return Scored(list(values), is_replayed=False)


class HeldScorer:
    """Waits until it is let go, then gives each row its token id as score; may be told to fail."""

    def __init__(self) -> None:
        self.go = Event()
        self.entered = Event()
        self.num_rows: list[int] = []
        self.fails = False
        self.counts = LaunchCounts()

    def score(self, top_logits: Tensor, hidden_states: Tensor, token_ids: Tensor) -> Tensor:
        self.entered.set()
        assert self.go.wait(10)
        self.num_rows.append(len(token_ids))
        if self.fails:
            raise RuntimeError("broken")
        return token_ids.float()


def job(scorer: HeldScorer, tokens: list[int], to: "queue.Queue[Result]") -> Job:
    features = (torch.zeros(len(tokens), 2), torch.zeros(len(tokens), 2), torch.tensor(tokens))
    return Job(cast("Scorer", scorer), features, to.put)


def test_batches_that_wait_are_scored_in_one_pass_and_answered_apart() -> None:
    scorer, worker = HeldScorer(), ScoringWorker(1)
    answers: queue.Queue[Result] = queue.Queue()
    worker.start()
    worker.submit(job(scorer, [1], answers))
    assert scorer.entered.wait(10)
    for tokens in ([2, 3], [4], [5, 6, 7]):
        worker.submit(job(scorer, tokens, answers))
    scorer.go.set()
    assert [answers.get(timeout=10) for _ in range(4)] == [direct(1), direct(2, 3), direct(4), direct(5, 6, 7)]
    assert scorer.num_rows == [1, 6]
    worker.stop()


def test_one_batch_too_many_is_refused_and_the_rest_is_done() -> None:
    scorer, worker = HeldScorer(), ScoringWorker(1, max_waiting=2)
    answers: queue.Queue[Result] = queue.Queue()
    worker.start()
    worker.submit(job(scorer, [1], answers))
    assert scorer.entered.wait(10)
    worker.submit(job(scorer, [2], answers))
    worker.submit(job(scorer, [3], answers))
    with pytest.raises(ResourceExhausted, match="2 batches wait"):
        worker.submit(job(scorer, [4], answers))
    scorer.go.set()
    worker.stop()
    assert [answers.get_nowait() for _ in range(3)] == [direct(1), direct(2), direct(3)]


def test_a_fault_fails_its_batches_and_not_the_thread() -> None:
    scorer, worker = HeldScorer(), ScoringWorker(1)
    answers: queue.Queue[Result] = queue.Queue()
    scorer.go.set()
    scorer.fails = True
    worker.start()
    worker.submit(job(scorer, [1], answers))
    assert isinstance(answers.get(timeout=10), Internal)
    scorer.fails = False
    worker.submit(job(scorer, [2], answers))
    assert answers.get(timeout=10) == direct(2)
    worker.stop()


def test_merging_does_not_change_scores(models: Path) -> None:
    scorer = R2RScorer(load_router(models / "router", models / "slm"))
    worker = ScoringWorker(1)
    answers: queue.Queue[Result] = queue.Queue()
    batches = [batch(rows) for rows in (1, 3, 2)]
    for features in batches:
        worker.submit(Job(scorer, features, answers.put))
    worker.start()
    for features in batches:
        answer = answers.get(timeout=10)
        assert isinstance(answer, Scored)
        torch.testing.assert_close(torch.tensor(answer.values), scorer.score(*features))
    worker.stop()
