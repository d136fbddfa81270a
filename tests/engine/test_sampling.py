"""Drawing tokens."""

import math
from dataclasses import replace

import pytest
import torch
from allroads.engine.choices import choose
from allroads.engine.features import entropy, max_probability, top_logits
from allroads.engine.runner import Output
from allroads.engine.sampling import SamplingParams, draw, probabilities, sample, uniform
from allroads.errors import InvalidArgument
from hypothesis import given, settings
from hypothesis import strategies as st

from .sampling_reference import NEVER, PlainRow, adjusted, possible_tokens

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, NEVER])
GREEDY = SamplingParams(temperature=0.0)


def _frequencies(params: SamplingParams, count: int = 20_000, answer: tuple[int, ...] = ()) -> torch.Tensor:
    rows = [PlainRow(params, answer=list(answer), skipped=position) for position in range(count)]
    return torch.bincount(sample(LOGITS.expand(count, -1), rows), minlength=5) / count


def test_frequencies_equal_the_softmax() -> None:
    assert torch.allclose(_frequencies(SamplingParams(seed=1)), LOGITS.softmax(-1), atol=0.012)
    cooler = (LOGITS / 0.5).softmax(-1)
    assert torch.allclose(_frequencies(SamplingParams(temperature=0.5, seed=2)), cooler, atol=0.012)


def test_frequencies_equal_the_softmax_of_what_is_asked_for() -> None:
    params = SamplingParams(
        temperature=0.7, seed=5, presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=1.5,
        logit_bias=((2, 1.0),),
    )  # fmt: skip
    answer = (0, 0, 3)
    wanted = torch.tensor(adjusted(LOGITS.tolist(), PlainRow(params, answer=list(answer))))
    expected = (wanted / 0.7).softmax(-1)[:4] * 20_000
    counts = _frequencies(params, answer=answer)[:4] * 20_000
    assert float(((counts - expected) ** 2 / expected).sum()) < 16.27  # chi-square, 3 degrees of freedom, p = 0.001


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


VOCABULARY = 12
token_lists = st.lists(st.integers(0, VOCABULARY - 1), max_size=8)
quarters = st.integers(-8, 8).map(lambda number: number / 4)
params_lists = st.lists(
    st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
        top_p=st.sampled_from([1.0, 0.9, 0.5]),
        top_k=st.sampled_from([0, 1, 3, 100]),
        min_p=st.sampled_from([0.0, 0.05, 0.3]),
        seed=st.integers(0, 2**64 - 1),
        stop_token_ids=st.frozensets(st.integers(0, VOCABULARY + 1), max_size=VOCABULARY + 2),
        presence_penalty=quarters,
        frequency_penalty=quarters,
        repetition_penalty=st.sampled_from([1.0, 1.3, 0.8, 10.0]),
        logit_bias=st.dictionaries(st.integers(0, VOCABULARY + 1), quarters).map(lambda bias: tuple(bias.items())),
        min_tokens=st.integers(0, 12),
    ),
    min_size=1,
    max_size=5,
)


@settings(deadline=None, max_examples=200)
@given(params_lists, st.data())
def test_each_row_gets_what_the_definition_gives_alone_and_among_others(
    params: list[SamplingParams], data: st.DataObject
) -> None:
    rows = [PlainRow(own, data.draw(token_lists), data.draw(token_lists)) for own in params]
    seed, dtype = data.draw(st.integers(0, 1000)), data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    logits = 3 * torch.randn(len(rows), VOCABULARY, generator=torch.Generator().manual_seed(seed))
    logits = logits.to(dtype)
    logits[:, VOCABULARY - 2 :] = NEVER
    before = logits.clone()
    token_ids = sample(logits, rows)
    assert torch.equal(logits, before)
    for index, (row, token_id) in enumerate(zip(rows, token_ids.tolist(), strict=True)):
        assert token_id in possible_tokens(logits[index].tolist(), row)
        assert token_id < VOCABULARY - 2
        assert int(sample(logits[index : index + 1], [row])) == token_id


def test_a_draw_does_not_depend_on_the_batch() -> None:
    rows = [
        PlainRow(
            SamplingParams(
                seed=seed,
                temperature=(seed % 5) * 0.4,
                repetition_penalty=1.0 + (seed % 3) * 0.2,
                frequency_penalty=(seed % 2) * 0.3,
                logit_bias=((seed, 2.0),) if seed % 7 == 0 else (),
            ),
            prompt=list(range(seed)),
            answer=[seed] * (seed % 4),
        )
        for seed in range(48)
    ]
    logits = torch.randn(48, 5003, generator=torch.Generator().manual_seed(0))
    together = sample(logits, rows).tolist()
    assert together == [int(sample(logits[i : i + 1], [row])) for i, row in enumerate(rows)]
    assert together[::-1] == sample(logits.flip(0), rows[::-1]).tolist()


def test_uniform_is_uniform_and_fixed() -> None:
    values = torch.tensor([uniform(seed, position) for seed in range(100) for position in range(100)])
    counts = torch.histc(values, bins=20, min=0, max=1)
    assert float(((counts - 500) ** 2 / 500).sum()) < 50  # chi-square with 19 degrees of freedom
    assert uniform(5, 7) == uniform(5, 7) != uniform(7, 5)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.5, top_k=3, frequency_penalty=1.0),
        SamplingParams(top_p=0.7, logit_bias=((3, 4.0),), min_tokens=9, stop_token_ids=frozenset({1})),
        SamplingParams(min_p=0.1, repetition_penalty=1.5),
    ],
)
def test_probabilities_are_what_is_drawn_by(params: SamplingParams) -> None:
    row, other = PlainRow(params, answer=[0, 0, 2]), PlainRow(SamplingParams(temperature=2.0))
    before = LOGITS.clone()
    told = probabilities(torch.stack([LOGITS, LOGITS.flip(0)]), [row, other])
    assert torch.equal(before, LOGITS)
    assert told.dtype == torch.float64
    assert torch.allclose(told.sum(dim=-1), torch.ones(2, dtype=torch.float64), atol=1e-15)
    assert torch.allclose(told[1], (LOGITS.flip(0) / 2).softmax(-1).double(), atol=1e-6)
    wanted = torch.tensor(adjusted(LOGITS.tolist(), row)).div(params.temperature).exp()
    kept = told[0] > 0
    assert torch.allclose(told[0], (wanted * kept / (wanted * kept).sum()).double(), atol=1e-6)
    counts = torch.zeros(5)
    for seed in range(400):
        own = PlainRow(replace(params, seed=seed), answer=[0, 0, 2])
        counts[int(sample(LOGITS[None], [own]))] += 1
    assert torch.equal(counts > 0, kept)
    assert torch.allclose(counts.double() / 400, told[0], atol=0.08)


def test_draw_takes_the_first_index_that_passes_the_point() -> None:
    weights = torch.tensor([[0.0, 2.0, 0.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    points = [0.0, 0.49, 0.5, 0.74, 0.75, 1 - 2.0**-53]
    drawn = draw(weights.expand(6, -1), torch.tensor(points, dtype=torch.float64).unsqueeze(1))
    assert drawn.squeeze(1).tolist() == [1, 1, 3, 3, 4, 4]
    # Rounding may put the point at the very end: the last with a weight is meant.
    assert int(draw(weights, torch.ones(1, 1, dtype=torch.float64))) == 4
    assert int(draw(torch.zeros(1, 3, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))) == 0


def test_all_rows_masked_but_one() -> None:
    logits = torch.full((1, 8), NEVER)
    logits[0, 3] = 0.0
    assert int(sample(logits, [PlainRow(SamplingParams(seed=9))])) == 3


@pytest.mark.parametrize("params", [SamplingParams(seed=2), GREEDY, SamplingParams(seed=2, logit_bias=((1, 5.0),))])
@pytest.mark.parametrize("bad", [NEVER, math.nan, math.inf])
def test_an_unsound_row_is_seen_and_does_not_disturb_the_others(params: SamplingParams, bad: float) -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    wanted = sample(logits, [PlainRow(params)] * 3)
    spoilt = logits.clone()
    spoilt[1, slice(None) if bad == NEVER else 7] = bad
    for given_logits, is_sound in ((logits, [True] * 3), (spoilt, [True, False, True])):
        chosen = choose(Output.of(given_logits, torch.zeros(3, 1)), {}, ()).token_ids
        assert [token_id >= 0 for token_id in chosen] == is_sound
    token_ids = sample(spoilt, [PlainRow(params)] * 3)
    assert token_ids[[0, 2]].tolist() == wanted[[0, 2]].tolist()
    assert 0 <= int(token_ids[1]) < 50


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [-1.0, math.nan, math.inf]),
        ("top_p", [0.0, 1.1]),
        ("min_p", [-0.1, 1.5]),
        ("top_k", [-1]),
        ("presence_penalty", [-2.1, 2.1, math.nan]),
        ("frequency_penalty", [-2.1, 2.1, math.inf]),
        ("repetition_penalty", [0.0, -1.0, 10.5, math.nan]),
        ("logit_bias", [((1, 101.0),), ((1, math.nan),), ((-1, 1.0),), ((1, 1.0), (1, 2.0))]),
        ("logit_bias", [tuple((token_id, 1.0) for token_id in range(1025))]),
        ("min_tokens", [-1]),
    ],
)
def test_bad_parameters_name_the_field(field: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(InvalidArgument, match=field) as caught:
            SamplingParams(**{field: value})  # type: ignore[arg-type]
        assert caught.value.field == field


@pytest.mark.parametrize("count", [-1, 21])
def test_a_bad_number_of_logprobs_is_named_as_the_api_names_it(count: int) -> None:
    with pytest.raises(InvalidArgument) as caught:
        SamplingParams(num_logprobs=count)
    assert caught.value.field == "logprobs"


def test_ids_beyond_the_vocabulary_are_named() -> None:
    SamplingParams(stop_token_ids=frozenset({9}), logit_bias=((9, 1.0),)).require_known_ids(10)
    SamplingParams().require_known_ids(10)
    for field, params in (
        ("stop_token_ids", SamplingParams(stop_token_ids=frozenset({3, 10}))),
        ("logit_bias", SamplingParams(logit_bias=((10, 1.0),))),
    ):
        with pytest.raises(InvalidArgument, match="10") as caught:
            params.require_known_ids(10)
        assert caught.value.field == field


def test_parameters_can_be_keys() -> None:
    assert len({SamplingParams(logit_bias=((1, 2.0),)), SamplingParams(logit_bias=((1, 2.0),)), SamplingParams()}) == 2


def test_entropy_survives_underflow_and_masks() -> None:
    logits = torch.tensor([[0.0, 0.0, NEVER], [1000.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert torch.allclose(entropy(logits), torch.tensor([math.log(2), 0.0, math.log(3)]), atol=1e-6)


def test_max_probability_is_the_softmaxs() -> None:
    logits = torch.tensor([[0.0, 0.0, NEVER], [1000.0, 0.0, 0.0], [1.0, 2.0, 3.0], [math.nan, 0.0, 0.0]])
    told = max_probability(logits)
    assert torch.allclose(told[:3], torch.tensor([0.5, 1.0, float(logits[2].softmax(-1).max())]), atol=1e-6)
    assert math.isnan(told[3])
    assert float(max_probability(logits[2:3].bfloat16())) == pytest.approx(float(told[2]), abs=1e-6)


def test_top_logits_are_raw_and_descending() -> None:
    assert top_logits(LOGITS[None], 3).tolist() == [[2.0, 1.0, 0.0]]
