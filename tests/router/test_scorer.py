"""Scores of a loaded router; NaN stays in its row (C52)."""

from pathlib import Path

import pytest
import torch
from allroads.errors import InvalidArgument
from allroads.router.checkpoint import load_router
from allroads.router.r2r_scorer import R2RScorer
from torch import Tensor

from ..training.small_pair import NUM_TOP_LOGITS, WIDTHS


@pytest.fixture
def scorer(models: Path) -> R2RScorer:
    return R2RScorer(load_router(models / "router", models / "slm"))


def batch(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    top = torch.randn(rows, NUM_TOP_LOGITS, generator=generator).sort(descending=True).values
    hidden = torch.randn(rows, WIDTHS["slm"], generator=generator)
    return top, hidden, torch.randint(0, 472, (rows,), generator=generator)


def test_scores_are_probabilities_of_the_proposed_token(scorer: R2RScorer, models: Path) -> None:
    router = load_router(models / "router", models / "slm")
    top, hidden, tokens = batch(5)
    wanted = router.classifier(hidden, router.embedding[tokens], top).sigmoid()
    scores = scorer.score(top, hidden, tokens)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, wanted)
    assert not torch.allclose(scores, scorer.score(top, hidden, (tokens + 1) % 472))


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("part", [0, 1])
def test_a_bad_row_leaves_its_neighbours_alone(scorer: R2RScorer, poison: float, part: int) -> None:
    features = batch(8)
    right = scorer.score(*features)
    features[part][3, :] = poison
    scores = scorer.score(*features)
    others = [0, 1, 2, 4, 5, 6, 7]
    assert torch.equal(scores[others], right[others])
    assert scores[3].isnan()


def test_an_empty_batch(scorer: R2RScorer) -> None:
    features = batch(0)
    scorer.check(*features)
    assert scorer.score(*features).shape == (0,)


def test_what_does_not_fit_is_named(scorer: R2RScorer) -> None:
    top, hidden, tokens = batch(4)
    for features, field in (
        ((top[:, 1:], hidden, tokens), "top_logits"),
        ((top.double(), hidden, tokens), "top_logits"),
        ((top, hidden[:3], tokens), "hidden_states"),
        ((top, hidden.bfloat16(), tokens), "hidden_states"),
        ((top, hidden, tokens.int()), "token_ids"),
        ((top, hidden, tokens[None]), "token_ids"),
        ((top, hidden, torch.tensor([0, 1, 2, 472])), "token_ids"),
        ((top, hidden, torch.tensor([0, 1, 2, -1])), "token_ids"),
    ):
        with pytest.raises(InvalidArgument, match=field) as caught:
            scorer.check(*features)
        assert caught.value.field == field
