"""Log-probabilities of what was written."""

import math

import numpy as np
import pytest
import torch
from allroads.engine.logprobs import NO_PROBABILITY, token_logprobs
from allroads.engine.sampling import SamplingParams, sample
from hypothesis import given, settings
from hypothesis import strategies as st

from .sampling_reference import NEVER, PlainRow

VOCABULARY, NUM_PADDED = 30, 4


def asking(count: int | None, **params: float) -> PlainRow:
    return PlainRow(SamplingParams(num_logprobs=count, **params))  # type: ignore[arg-type]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.none() | st.integers(0, 20), min_size=1, max_size=6), st.integers(0, 1000), st.data())
def test_they_are_the_raw_log_softmax_whoever_else_asks(
    counts: list[int | None], seed: int, data: st.DataObject
) -> None:
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    # In eighths, so that there are equals.
    logits = torch.randint(-40, 40, (len(counts), VOCABULARY), generator=torch.Generator().manual_seed(seed)) / 8
    logits = logits.to(dtype)
    logits[:, VOCABULARY - NUM_PADDED :] = NEVER
    before = logits.clone()
    # What changes the choice of a token changes nothing here.
    rows = [asking(count, temperature=0.3, presence_penalty=2.0) for count in counts]
    written = [data.draw(st.integers(0, VOCABULARY - NUM_PADDED - 1)) for _ in rows]
    found = token_logprobs(logits, rows, written)
    assert torch.equal(logits, before)
    for index, (count, entry) in enumerate(zip(counts, found, strict=True)):
        alone = token_logprobs(logits[index : index + 1], [rows[index]], [written[index]])
        assert alone == [entry]
        if count is None:
            assert entry is None
            continue
        assert entry is not None
        row = logits[index].double().numpy()[: VOCABULARY - NUM_PADDED]
        wanted = row - np.log(np.exp(row).sum())
        order = sorted(range(len(row)), key=lambda token_id: (-wanted[token_id], token_id))[:count]
        assert entry.logprob == pytest.approx(wanted[written[index]], abs=1e-5)
        assert list(entry.top_token_ids) == order
        assert entry.top_logprobs == pytest.approx([wanted[token_id] for token_id in order], abs=1e-5)


def test_the_greedy_token_is_the_likeliest_among_equals_too() -> None:
    logits = torch.tensor([[-0.0, 0.0, 0.0, -1.0], [-2.0, -3.0, -2.0, -2.0], [1.0, 5.0, 5.0, 5.0]])
    token_ids = sample(logits, [asking(1, temperature=0.0)] * 3).tolist()
    entries = token_logprobs(logits, [asking(3)] * 3, token_ids)
    assert [entry.top_token_ids for entry in entries if entry] == [(0, 1, 2), (0, 2, 3), (1, 2, 3)]
    assert token_ids == [0, 0, 1]


def test_tokens_without_any_probability_leave_no_infinity() -> None:
    few, none, broken = [0.0, NEVER, 1.0, NEVER], [NEVER] * 4, [0.0, math.nan, 0.0, 0.0]
    entries = token_logprobs(torch.tensor([few, none, broken]), [asking(20)] * 3, [1, 0, 0])
    assert [entry.logprob for entry in entries if entry] == [NO_PROBABILITY] * 3
    assert [entry.top_token_ids for entry in entries if entry] == [(2, 0), (), ()]
    assert all(math.isfinite(value) for entry in entries if entry for value in entry.top_logprobs)


def test_nobody_asks() -> None:
    assert token_logprobs(torch.zeros(2, 4), [asking(None)] * 2, [0, 1]) == [None, None]
    assert token_logprobs(torch.zeros(0, 4), [], []) == []
