"""Scorers whose pass is recorded give the scores that they give without."""

import queue
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread
from typing import cast

import pytest
import torch
from allroads.cuda.graphs import CudaRecorder, Recorder
from allroads.cuda.stream import own_stream
from allroads.errors import AllroadsError
from allroads.mesh.tensor_sender import TensorSender
from allroads.mesh.wire import common_pb2, router_pb2
from allroads.router.checkpoint import load_router
from allroads.router.head_checkpoint import load_head, name_of_head
from allroads.router.head_scorer import HeadScorer
from allroads.router.r2r_scorer import R2RScorer
from allroads.router.scorer import Scorer
from allroads.router.worker import Job, Scored, ScoringWorker
from allroads.slm.scoring import ScoreBook, pack_features
from torch import Tensor

from ..doubles.aten_recorder import AtenRecorder
from ..slm.test_scoring import _request as make_request
from .test_scorer import batch

SIZES = (3, 64, 1, 65, 2, 17, 33)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def _scorers(models: Path, device: str, recorder: Recorder | None) -> dict[str, Scorer]:
    scorers: dict[str, Scorer] = {"r2r": R2RScorer(load_router(models / "router", models / "slm"), device, recorder)}
    for name in ("citer", "co-llm"):
        head = load_head(name_of_head(models / name), models / name, models / "slm")
        scorers[name] = HeadScorer(head, device, recorder)
    return scorers


def _features(scorer: Scorer, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    top, hidden, token_ids = batch(rows)
    return top[:, : scorer.facts.num_top_logits], hidden, token_ids


@pytest.mark.parametrize("name", ["r2r", "citer", "co-llm"])
def test_scores_are_the_same_and_bad_rows_leave_nothing_behind(models: Path, name: str) -> None:
    plain, graphed = (_scorers(models, "cpu", recorder)[name] for recorder in (None, AtenRecorder()))
    for rows in SIZES:
        top, hidden, token_ids = _features(plain, rows)
        hidden[rows // 2, 0] = float("nan")
        found, wanted = graphed.score(top, hidden, token_ids), plain.score(top, hidden, token_ids)
        torch.testing.assert_close(found, wanted, equal_nan=True)
        assert found.isnan().nonzero().flatten().tolist() == [rows // 2]
        assert found.device.type == "cpu"
    counts = graphed._graphed.counts  # type: ignore[attr-defined]
    assert (counts.num_replayed, counts.num_eager) == (len(SIZES) - 1, Counter(rows=1))


def test_scores_are_the_callers_own(models: Path) -> None:
    scorer = _scorers(models, "cpu", AtenRecorder())["r2r"]
    first = scorer.score(*_features(scorer, 4))
    kept = first.clone()
    scorer.score(*_features(scorer, 5))
    assert torch.equal(first, kept)


def _through(worker: ScoringWorker, scorer: Scorer, sizes: tuple[int, ...]) -> list[Scored | AllroadsError]:
    answers: queue.Queue[Scored | AllroadsError] = queue.Queue()
    for rows in sizes:
        worker.submit(Job(scorer, _features(scorer, rows), answers.put))
    worker.start()
    found = [answers.get(timeout=30) for _ in sizes]
    worker.stop()
    return found


def test_the_workers_thread_scores_within_its_surroundings(models: Path) -> None:
    seen: list[str] = []

    @contextmanager
    def surroundings() -> Iterator[None]:
        seen.append(f"in {current_thread().name}")
        yield
        seen.append("out")

    scorer = _scorers(models, "cpu", AtenRecorder())["r2r"]
    plain = _scorers(models, "cpu", None)["r2r"]
    found = _through(ScoringWorker(1, surroundings=surroundings), scorer, (1, 3, 2))
    assert seen == ["in score", "out"]
    for rows, scored in zip((1, 3, 2), found, strict=True):
        assert isinstance(scored, Scored)
        assert scored.is_replayed
        torch.testing.assert_close(torch.tensor(scored.values), plain.score(*_features(plain, rows)))


def test_features_that_are_on_their_way_are_waited_for_in_the_workers_thread(models: Path) -> None:
    scorer = _scorers(models, "cpu", None)["r2r"]
    answers: queue.Queue[Scored | AllroadsError] = queue.Queue()
    arriving, features = _features(scorer, 2), _features(scorer, 2)
    arriving[1].fill_(float("nan"))
    joined: list[str] = []

    def join() -> None:
        joined.append(current_thread().name)
        arriving[1].copy_(features[1])

    worker = ScoringWorker(1)
    worker.submit(Job(scorer, arriving, answers.put, join))
    worker.submit(Job(scorer, features, answers.put))
    worker.start()
    assert answers.get(timeout=10) == answers.get(timeout=10)
    worker.stop()
    assert joined == ["score"]


class _Sender:
    """Keeps what it is to send."""

    def __init__(self) -> None:
        self.sent: list[list[Tensor]] = []

    def pack(self, batch_id: int, features: tuple[Tensor, ...]) -> list[common_pb2.TensorRef]:
        self.sent.append(list(features))
        return [common_pb2.TensorRef()] * len(features)

    def release(self, batch_id: int) -> None:
        pass


def _packed(recorder: Recorder | None, dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
    """What two scorers are sent after three steps, the first two of which were sent together."""
    sender = _Sender()
    book = ScoreBook(cast("TensorSender", sender), recorder)
    book.router_up({"r2r": 4, "citer": 0})
    generator = torch.Generator().manual_seed(0)
    for count, is_sent in ((3, False), (2, True), (70, True)):
        logits = torch.randn(count, 30, generator=generator).to(device, dtype)
        hidden_states = torch.randn(count, 6, generator=generator).to(device, dtype)
        requests = [make_request(number) for number in range(count)]
        for scorer in ("r2r", "citer"):
            book.ask(scorer, requests, list(range(count)), logits, hidden_states)
        if is_sent:
            for batch_sent in book.next_batches():
                book.answered(router_pb2.Scores(batch_id=batch_sent.batch_id))
    return [feature.cpu() for features in sender.sent for feature in features]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_features_are_packed_alike_and_outlive_their_step(dtype: torch.dtype) -> None:
    found, wanted = _packed(AtenRecorder(), dtype), _packed(None, dtype)
    assert [tuple(part.shape) for part in wanted] == [
        (5, 4), (5, 6), (5,), (5, 0), (5, 6), (5,), (70, 4), (70, 6), (70,), (70, 0), (70, 6), (70,)
    ]  # fmt: skip
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_packing_gives_float32_and_the_largest_first() -> None:
    top, hidden = pack_features(2, torch.tensor([[1.0, 3.0, 2.0]]).bfloat16(), torch.ones(1, 2).bfloat16())
    assert (top.tolist(), top.dtype, hidden.dtype) == ([[3.0, 2.0]], torch.float32, torch.float32)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", ["r2r", "citer", "co-llm"])
def test_scores_are_the_same_on_a_gpu(models: Path, name: str) -> None:
    """Recorded, on a high-priority stream of the worker's, with features that lie on the device or not."""
    device = torch.device("cuda")
    plain = _scorers(models, "cpu", None)[name]
    graphed = _scorers(models, "cuda", CudaRecorder(device, "high"))[name]
    found = _through(ScoringWorker(1, surroundings=own_stream(device, "high")), graphed, SIZES)
    for rows, scores in zip(SIZES, found, strict=True):
        features = _features(plain, rows)
        wanted = plain.score(*features)
        torch.testing.assert_close(torch.tensor(scores), wanted, atol=1e-4, rtol=1e-4)
        top, hidden, token_ids = features
        torch.testing.assert_close(graphed.score(top.cuda(), hidden.cuda(), token_ids), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.gpu
@needs_gpu
def test_batches_from_both_sides_are_merged_on_the_gpu(models: Path) -> None:
    scorer = _scorers(models, "cuda", CudaRecorder(torch.device("cuda")))["r2r"]
    answers: queue.Queue[Scored | AllroadsError] = queue.Queue()
    worker = ScoringWorker(1, surroundings=own_stream("cuda", "normal"))
    top, hidden, token_ids = batch(4)
    worker.submit(Job(scorer, (top, hidden, token_ids), answers.put))
    worker.submit(Job(scorer, (top.cuda(), hidden.cuda(), token_ids), answers.put))
    worker.start()
    first, second = answers.get(timeout=30), answers.get(timeout=30)
    worker.stop()
    assert isinstance(first, Scored)
    assert isinstance(second, Scored)
    torch.testing.assert_close(torch.tensor(first.values), torch.tensor(second.values))


@pytest.mark.gpu
@needs_gpu
def test_features_are_packed_alike_on_a_gpu() -> None:
    recorder = CudaRecorder(torch.device("cuda"))
    found, wanted = _packed(recorder, torch.bfloat16, "cuda"), _packed(None, torch.bfloat16, "cuda")
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
