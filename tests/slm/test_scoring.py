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
        view=RequestView(seed=0, threshold=0.5, share=0.0, max_tokens=60),
        length=2,
        stop_token_ids=frozenset(),
        place=Place.HOME,
        suffix=deque([Proposal()]),
    )


def _book() -> ScoreBook:
    book = ScoreBook(TensorSender("router", slot_bytes=1024), "r2r")
    book.router_up(4, None)
    return book


def _ask(book: ScoreBook, requests: list[Request]) -> None:
    book.ask(requests, [7] * len(requests), torch.randn(len(requests), 9), torch.randn(len(requests), 3))


def test_one_batch_at_a_time_and_the_next_takes_what_came_meanwhile() -> None:
    book, requests = _book(), [_request(number) for number in range(5)]
    _ask(book, requests[:2])
    first = book.next_batch()
    assert first is not None
    _ask(book, requests[2:4])
    _ask(book, requests[4:])
    assert book.next_batch() is None
    scores, error = book.answered(router_pb2.Scores(batch_id=first.batch_id, scores=[0.1, 0.2]))
    assert error is None
    assert [score.request for score in scores] == requests[:2]
    second = book.next_batch()
    assert second is not None
    assert list(second.token_ids.shape) == [3]


def test_what_was_dropped_is_not_asked() -> None:
    book, requests = _book(), [_request(number) for number in range(3)]
    _ask(book, requests)
    requests[0].drop_suffix()
    requests[1].place = Place.DONE
    batch = book.next_batch()
    assert batch is not None
    scores, _ = book.answered(router_pb2.Scores(batch_id=batch.batch_id, scores=[0.3]))
    assert [score.request for score in scores] == [requests[2]]
    _ask(book, requests[:1])
    requests[0].place = Place.DONE
    assert book.next_batch() is None


def test_a_batch_is_bounded_and_nothing_is_lost() -> None:
    book, requests = _book(), [_request(number) for number in range(1500)]
    _ask(book, requests)
    sizes = []
    while (batch := book.next_batch()) is not None:
        sizes.append(batch.token_ids.shape[0])
        book.answered(router_pb2.Scores(batch_id=batch.batch_id, scores=[0.5] * sizes[-1]))
    assert sizes == [1024, 476]
