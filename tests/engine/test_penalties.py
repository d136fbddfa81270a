"""Penalties, bias and `min_tokens`, by numbers worked out by hand."""

import pytest
import torch
from allroads.engine.penalties import adjust_logits
from allroads.engine.sampling import SamplingParams, sample

from .sampling_reference import NEVER, PlainRow

LOGITS = [4.0, -4.0, 2.0, 0.0, NEVER]


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        (SamplingParams(), LOGITS),
        # The prompt is 0 and 1, the answer 2, 2, 4.
        (SamplingParams(repetition_penalty=2.0), [2.0, -8.0, 1.0, 0.0, NEVER]),
        (SamplingParams(repetition_penalty=0.5), [8.0, -2.0, 4.0, 0.0, NEVER]),
        (SamplingParams(presence_penalty=1.5), [4.0, -4.0, 0.5, 0.0, NEVER]),
        (SamplingParams(frequency_penalty=0.5), [4.0, -4.0, 1.0, 0.0, NEVER]),
        (SamplingParams(frequency_penalty=-0.5, presence_penalty=-1.0), [4.0, -4.0, 4.0, 0.0, NEVER]),
        (SamplingParams(logit_bias=((3, 100.0), (4, 100.0), (0, -1.0))), [3.0, -4.0, 2.0, 100.0, NEVER]),
        (
            SamplingParams(repetition_penalty=2.0, frequency_penalty=1.0, presence_penalty=1.0, logit_bias=((2, 5.0),)),
            [2.0, -8.0, 3.0, 0.0, NEVER],
        ),
        (SamplingParams(min_tokens=4, stop_token_ids=frozenset({0, 3})), [NEVER, -4.0, 2.0, NEVER, NEVER]),
        (SamplingParams(min_tokens=3, stop_token_ids=frozenset({0, 3})), LOGITS),
        # Ids for which this model has no logit.
        (SamplingParams(logit_bias=((9, 5.0),), min_tokens=9, stop_token_ids=frozenset({7})), LOGITS),
        # Nothing but stop tokens would be left: the answer may end.
        (SamplingParams(min_tokens=9, stop_token_ids=frozenset({0, 1, 2, 3})), LOGITS),
    ],
)
def test_each_does_what_it_says(params: SamplingParams, wanted: list[float]) -> None:
    row = PlainRow(params, prompt=[0, 1], answer=[2, 2, 4])
    other = PlainRow(SamplingParams(repetition_penalty=3.0, min_tokens=9, stop_token_ids=frozenset({1})), prompt=[0])
    logits = torch.tensor([LOGITS, LOGITS, LOGITS])
    adjust_logits(logits, [other, row, PlainRow(SamplingParams())])
    assert logits[1].tolist() == wanted
    assert logits[2].tolist() == LOGITS


def test_the_shortest_answer_is_met_and_then_may_end() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=3, stop_token_ids=frozenset({0}))
    row = PlainRow(params, prompt=[1, 2])
    logits = torch.tensor([LOGITS])
    for _ in range(4):
        row.answer.append(int(sample(logits, [row])))
    assert row.answer == [2, 2, 2, 0]


def test_an_answer_with_nothing_but_stop_tokens_left_ends_early() -> None:
    for temperature in (0.0, 1.0):
        every = frozenset(range(4))
        params = SamplingParams(temperature=temperature, min_tokens=3, stop_token_ids=every)
        assert int(sample(torch.tensor([LOGITS]), [PlainRow(params)])) in every
