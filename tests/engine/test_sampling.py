"""Drawing tokens."""

import math

import pytest
import torch
from allroads.engine.features import entropy, top_logits
from allroads.engine.sampling import SamplingParams, sample, uniform
from allroads.errors import InvalidArgument

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, float("-inf")])


def _frequencies(params: SamplingParams, count: int = 20_000) -> torch.Tensor:
    rows = LOGITS.expand(count, -1)
    drawn = sample(rows, [params] * count, list(range(count)))
    return torch.bincount(drawn, minlength=5) / count


def test_frequencies_equal_the_softmax() -> None:
    assert torch.allclose(_frequencies(SamplingParams(seed=1)), LOGITS.softmax(-1), atol=0.012)
    cooler = (LOGITS / 0.5).softmax(-1)
    assert torch.allclose(_frequencies(SamplingParams(temperature=0.5, seed=2)), cooler, atol=0.012)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(top_k=2, seed=3), 2),
        (SamplingParams(top_p=0.7, seed=3), 2),
        (SamplingParams(top_p=1e-6, seed=3), 1),
        (SamplingParams(min_p=0.3, seed=3), 2),
        (SamplingParams(min_p=1.0, seed=3), 1),
        (SamplingParams(temperature=1e-8, seed=3), 1),
        (SamplingParams(temperature=0.0), 1),
    ],
)
def test_filters_keep_the_likeliest_and_rescale(params: SamplingParams, kept: int) -> None:
    expected = torch.zeros(5)
    expected[:kept] = LOGITS.softmax(-1)[:kept] / LOGITS.softmax(-1)[:kept].sum()
    assert torch.allclose(_frequencies(params), expected, atol=0.015)


def test_a_draw_does_not_depend_on_the_batch() -> None:
    params = [SamplingParams(seed=seed, temperature=0.3 + seed / 10) for seed in range(16)]
    rows = torch.randn(16, 100, generator=torch.Generator().manual_seed(0))
    together = sample(rows, params, list(range(16))).tolist()
    alone = [int(sample(rows[i : i + 1], [params[i]], [i])) for i in range(16)]
    assert together == alone


def test_uniform_is_uniform_and_fixed() -> None:
    values = torch.tensor([uniform(seed, position) for seed in range(100) for position in range(100)])
    counts = torch.histc(values, bins=20, min=0, max=1)
    assert float(((counts - 500) ** 2 / 500).sum()) < 50  # chi-square with 19 degrees of freedom
    assert uniform(5, 7) == uniform(5, 7) != uniform(7, 5)


def test_all_rows_masked_but_one() -> None:
    logits = torch.full((1, 8), float("-inf"))
    logits[0, 3] = 0.0
    assert int(sample(logits, [SamplingParams(seed=9)], [0])) == 3


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -1.0), ("temperature", math.nan), ("temperature", math.inf), ("top_p", 0.0), ("top_p", 1.1),
     ("min_p", -0.1), ("min_p", 1.5), ("top_k", -1)],
)  # fmt: skip
def test_bad_parameters_name_the_field(field: str, value: float) -> None:
    with pytest.raises(InvalidArgument) as caught:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field


def test_entropy_survives_underflow_and_masks() -> None:
    logits = torch.tensor([[0.0, 0.0, float("-inf")], [1000.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert torch.allclose(entropy(logits), torch.tensor([math.log(2), 0.0, math.log(3)]), atol=1e-6)


def test_top_logits_are_raw_and_descending() -> None:
    assert top_logits(LOGITS[None], 3).tolist() == [[2.0, 1.0, 0.0]]
