"""What works on a model's output where that lies on a GPU that computes nothing: it stays there, and few wait."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from allroads.engine.joining import join_weights
from allroads.mesh.tensor_sender import TensorSender
from allroads.mesh.wire.common_pb2 import TensorRef
from allroads.policies.bild import Bild
from allroads.policies.cascade import CASCADES
from allroads.policies.policy import Drafts, Policy
from allroads.policies.reading import read_features
from allroads.policies.speculative import Lossless, Speculative
from allroads.router.checkpoint import load_router
from allroads.router.head_checkpoint import load_head, name_of_head
from allroads.router.head_scorer import HeadScorer
from allroads.router.r2r_scorer import R2RScorer
from allroads.router.scorer import Scorer
from allroads.router.worker import Job, ScoringWorker
from torch import Tensor, nn

from ..doubles.imaginary_gpu import GPU, ImaginaryGpu, imaginary_gpu, move
from ..doubles.tiny_pair import write_random_heads
from ..policies.views import draft_of, join, view
from ..slm.test_scoring import _ask, _book
from ..slm.test_scoring import _request as make_request
from ..training.small_pair import write_pair, write_router

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="needs a torch that is built with CUDA")
VOCABULARY, NUM_DRAFTS = 11, 3
POLICIES: list[Policy] = [Lossless(), Speculative(), Bild(), *(kind() for kind in CASCADES)]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[ImaginaryGpu]:
    with imaginary_gpu(monkeypatch) as entered:
        yield entered


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_pair(tmp_path_factory.mktemp("pair"))
    write_router(directory, directory / "router")
    write_random_heads(directory, slm=directory / "slm", llm=directory / "llm")
    return directory


@pytest.fixture(params=["r2r", "citer", "co-llm"])
def scorer(request: pytest.FixtureRequest, models: Path, gpu: ImaginaryGpu, monkeypatch: pytest.MonkeyPatch) -> Scorer:
    monkeypatch.setattr(nn.Module, "to", lambda module, _: move(module))
    name = request.param
    if name == "r2r":
        return R2RScorer(load_router(models / "router", models / "slm"), str(GPU))
    head = load_head(name_of_head(models / name), models / name, models / "slm")
    return HeadScorer(head, str(GPU))


def _features(scorer: Scorer, rows: int, device: torch.device | str) -> tuple[Tensor, Tensor, Tensor]:
    top = torch.zeros((rows, scorer.facts.num_top_logits), device=device)
    return top, torch.zeros((rows, scorer.facts.hidden_size), device=device), torch.zeros(rows, dtype=torch.int64)


def test_a_scorer_waits_once_wherever_its_features_come_from(scorer: Scorer, gpu: ImaginaryGpu) -> None:
    for device in (GPU, "cpu"):
        features = _features(scorer, 5, device)
        scorer.check(*features)
        gpu.waits.clear()
        assert scorer.score(*features).shape == (5,)
        assert len(gpu.waits) == 1, gpu.waits


def test_batches_from_both_sides_are_scored_together(scorer: Scorer, gpu: ImaginaryGpu) -> None:
    answers: list[Any] = []
    worker = ScoringWorker(1)
    for device in (GPU, "cpu"):
        worker.submit(Job(scorer, _features(scorer, 2, device), answers.append))
    worker.submit(Job(scorer, _features(scorer, 1, "cpu"), answers.append))
    # In this thread, which the imaginary GPU is of.
    worker._jobs.put(None)
    gpu.waits.clear()
    worker._work()
    assert [answer.values for answer in answers] == [[0.0] * 2, [0.0] * 2, [0.0]]
    assert len(gpu.waits) == 1, gpu.waits


def test_features_are_packed_where_they_are(gpu: ImaginaryGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[list[torch.device]] = []

    def pack(sender: TensorSender, batch_id: int, tensors: Sequence[Tensor]) -> list[TensorRef]:
        packed.append([tensor.device for tensor in tensors])
        return [TensorRef(shape=tensor.shape) for tensor in tensors]

    monkeypatch.setattr(TensorSender, "pack", pack)
    monkeypatch.setattr(torch, "randn", lambda *size: torch.zeros(size, device=GPU))
    book = _book()
    requests = [make_request(number) for number in range(3)]
    for name in ("r2r", "citer"):
        _ask(book, requests, name)
    assert [list(batch.hidden_states.shape) for batch in book.next_batches()] == [[3, 3]] * 2
    assert packed == [[GPU, GPU, torch.device("cpu")]] * 2
    assert not gpu.waits


def _drafts(policy: Policy, *, is_greedy: bool) -> Drafts:
    """Of two requests, whose draft logits came through memory of a GPU and inline."""
    parts = []
    for device in (GPU, torch.device("cpu")):
        given = {own.name: 0.2 for own in policy.parameters if own.default is None}
        request = view(policy, is_greedy=is_greedy, given=given)
        small = torch.zeros((NUM_DRAFTS, VOCABULARY), device=device) if policy.wants_draft_logits(request) else None
        large = torch.zeros((NUM_DRAFTS + 1, VOCABULARY), dtype=torch.bfloat16, device=GPU)
        parts.append(draft_of(request, [1, 2, 3], large, small))
    return join(parts)


@pytest.mark.parametrize("is_greedy", [True, False], ids=["greedy", "sampled"])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_drafts_are_judged_where_their_logits_are(policy: Policy, is_greedy: bool, gpu: ImaginaryGpu) -> None:
    drafts = _drafts(policy, is_greedy=is_greedy)
    gpu.waits.clear()
    assert len(policy.verify(drafts)) == 2
    # For what stands, what is written in its place, and what comes after.
    assert len(gpu.waits) <= 3, gpu.waits


def test_a_reading_waits_once_for_each_feature(gpu: ImaginaryGpu) -> None:
    logits = torch.zeros((3, VOCABULARY), dtype=torch.bfloat16, device=GPU)
    policies = [Bild(), Bild(), Bild()]
    assert [reading.max_probability for reading in read_features(logits, policies)] == [0.0] * 3
    assert len(gpu.waits) == 1


def test_matrices_of_a_gpu_move(gpu: ImaginaryGpu) -> None:
    modules = [move(nn.Linear(3, 2)), move(nn.Linear(3, 4))]
    assert modules[0].weight.is_cuda
    (whole,) = join_weights([modules], moves_all=True)  # type: ignore[list-item]
    assert (whole.shape, whole.device) == ((6, 3), GPU)
    assert not gpu.waits
