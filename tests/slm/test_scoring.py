"""Batches on their way to the router: one at a time, bounded, and without what was dropped since."""

from collections import deque

import torch
from allroads.engine.sampling import SamplingParams
from allroads.engine.sequence import Sequence
from allroads.mesh.tensor_sender import TensorSender
from allroads.mesh.wire import router_pb2
from allroads.policies.policy import RequestView
from allroads.policies.r2r import R2R
from allroads.slm.request import Place, Proposal, Request
from allroads.slm.scoring import ScoreBook


def _request(number: int) -> Request:
    return Request(
        stream_id=1,
        sequence_id=number,
        number=number,
        request_id="",
        traceparent="",
        sequence=Sequence([5, 6, 7], 64, SamplingParams(temperature=0.0), 2),
        policy=R2R(),
        view=RequestView(seed=0, parameters={"threshold": (0.5,)}, max_tokens=60),
        reach=frozenset({0, 1}),
        length=2,
        stop_token_ids=frozenset(),
        place=Place.HOME,
        suffix=deque([Proposal()]),
    )


def _book() -> ScoreBook:
    book = ScoreBook(TensorSender("router", slot_bytes=1024))
    book.router_up({"r2r": 4, "citer": 0})
    return book


def _next(book: ScoreBook) -> router_pb2.ScoreBatch | None:
    batches = book.next_batches()
    assert len(batches) <= 1
    return batches[0] if batches else None


def _ask(book: ScoreBook, requests: list[Request], scorer: str = "r2r") -> None:
    book.ask(scorer, requests, [7] * len(requests), torch.randn(len(requests), 9), torch.randn(len(requests), 3))


def test_one_batch_at_a_time_and_the_next_takes_what_came_meanwhile() -> None:
    book, requests = _book(), [_request(number) for number in range(5)]
    _ask(book, requests[:2])
    first = _next(book)
    assert first is not None
    _ask(book, requests[2:4])
    _ask(book, requests[4:])
    assert _next(book) is None
    scores, error = book.answered(router_pb2.Scores(batch_id=first.batch_id, scores=[0.1, 0.2]))
    assert error is None
    assert [score.request for score in scores] == requests[:2]
    second = _next(book)
    assert second is not None
    assert list(second.token_ids.shape) == [3]


def test_what_was_dropped_is_not_asked() -> None:
    book, requests = _book(), [_request(number) for number in range(3)]
    _ask(book, requests)
    requests[0].drop_suffix()
    requests[1].place = Place.DONE
    batch = _next(book)
    assert batch is not None
    scores, _ = book.answered(router_pb2.Scores(batch_id=batch.batch_id, scores=[0.3]))
    assert [score.request for score in scores] == [requests[2]]
    _ask(book, requests[:1])
    requests[0].place = Place.DONE
    assert _next(book) is None


def test_a_batch_is_bounded_and_nothing_is_lost() -> None:
    book, requests = _book(), [_request(number) for number in range(1500)]
    _ask(book, requests)
    sizes = []
    while (batch := _next(book)) is not None:
        sizes.append(batch.token_ids.shape[0])
        book.answered(router_pb2.Scores(batch_id=batch.batch_id, scores=[0.5] * sizes[-1]))
    assert sizes == [1024, 476]


def test_scorers_do_not_wait_for_each_other() -> None:
    book, requests = _book(), [_request(number) for number in range(4)]
    _ask(book, requests[:2])
    (first,) = book.next_batches()
    _ask(book, requests[2:], "citer")
    (other,) = book.next_batches()
    assert (first.scorer, other.scorer) == ("r2r", "citer")
    assert (list(first.top_logits.shape), list(other.top_logits.shape)) == ([2, 4], [2, 0])
    scores, _ = book.answered(router_pb2.Scores(batch_id=other.batch_id, scores=[0.1, 0.2]))
    assert [score.request for score in scores] == requests[2:]
    assert not book.next_batches()
