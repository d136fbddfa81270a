"""Scores from hidden states alone; what is not finite stays in its row (C52)."""

from pathlib import Path

import pytest
import torch
from allroads.errors import InvalidArgument
from allroads.router.head_checkpoint import LoadedHead, load_head
from allroads.router.head_scorer import HeadScorer
from torch import Tensor

from ..training.small_pair import WIDTHS
from .test_head_checkpoint import NAMES


@pytest.fixture(params=NAMES)
def head(models: Path, request: pytest.FixtureRequest) -> LoadedHead:
    return load_head(request.param, models / request.param, models / "slm")


def head_batch(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """No logits, hidden states, and token ids that nobody reads."""
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, WIDTHS["slm"], generator=generator)
    return torch.empty(rows, 0), hidden, torch.full((rows,), 10**9)


def test_scores_are_the_networks_probabilities(head: LoadedHead) -> None:
    scorer, features = HeadScorer(head), head_batch(50)
    scorer.check(*features)
    scores = scorer.score(*features)
    assert (scores.dtype, scores.device.type) == (torch.float32, "cpu")
    assert scores.min() < 0.3 < 0.7 < scores.max()
    torch.testing.assert_close(scores, 1 / (1 + torch.exp(-head.network(features[1]))))


def test_it_tells_what_it_reads(head: LoadedHead) -> None:
    facts = HeadScorer(head).facts
    assert (facts.name, facts.slm, facts.llm) == (head.manifest.name, head.manifest.slm, head.manifest.llm)
    assert (facts.hidden_size, facts.num_top_logits, facts.threshold) == (WIDTHS["slm"], 0, 0.5)
    d = WIDTHS["slm"]
    count = {"citer": d * 2 * d + 3 * 2 * d + 2 * d * d + 3 * d + d + 1, "co-llm": d}
    assert facts.num_parameters == count[facts.name]


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [slice(None), 5])
def test_a_bad_row_leaves_its_neighbours_alone(head: LoadedHead, poison: float, place: slice | int) -> None:
    scorer, features = HeadScorer(head), head_batch(8)
    right = scorer.score(*features)
    features[1][3, place] = poison
    scores = scorer.score(*features)
    others = [0, 1, 2, 4, 5, 6, 7]
    assert torch.equal(scores[others], right[others])
    assert scores[3].isnan()


def test_an_empty_batch(head: LoadedHead) -> None:
    scorer, features = HeadScorer(head), head_batch(0)
    scorer.check(*features)
    assert scorer.score(*features).shape == (0,)


def test_what_does_not_fit_is_named(head: LoadedHead) -> None:
    scorer = HeadScorer(head)
    top, hidden, tokens = head_batch(4)
    for features, field in (
        ((torch.zeros(4, 1), hidden, tokens), "top_logits"),
        ((torch.empty(3, 0), hidden, tokens), "top_logits"),
        ((top.double(), hidden, tokens), "top_logits"),
        ((top, hidden[:3], tokens), "hidden_states"),
        ((top, hidden[:, 1:], tokens), "hidden_states"),
        ((top, hidden.double(), tokens), "hidden_states"),
        ((top, hidden, tokens.int()), "token_ids"),
        ((top, hidden, tokens[None]), "token_ids"),
    ):
        with pytest.raises(InvalidArgument, match=field) as caught:
            scorer.check(*features)
        assert caught.value.field == field
