"""What a larger tier is told of sampling, and what it tells of log-probabilities."""

import pytest
from allroads.engine.logprobs import TokenLogprobs
from allroads.engine.sampling import SamplingParams
from allroads.errors import InvalidArgument
from allroads.mesh.wire import common_pb2 as pb
from allroads.model.logprobs_wire import from_wire, to_wire
from allroads.model.sampling_wire import sampling_from_wire, sampling_to_wire
from hypothesis import given
from hypothesis import strategies as st


def float32s(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, width=32)


params = st.builds(
    SamplingParams,
    temperature=float32s(0, 100),
    top_p=float32s(0.125, 1),
    top_k=st.integers(0, 2**31 - 1),
    min_p=float32s(0, 1),
    seed=st.integers(0, 2**64 - 1),
    stop_token_ids=st.frozensets(st.integers(0, 2**32 - 1)),
    presence_penalty=float32s(-2, 2),
    frequency_penalty=float32s(-2, 2),
    repetition_penalty=float32s(0.125, 10),
    logit_bias=st.dictionaries(st.integers(0, 2**32 - 1), float32s(-100, 100)).map(
        lambda bias: tuple(sorted(bias.items()))
    ),
    min_tokens=st.integers(0, 2**32 - 1),
    num_logprobs=st.none() | st.integers(0, 20),
)


@given(params)
def test_a_larger_tier_draws_as_the_home_would(sent: SamplingParams) -> None:
    wire = pb.SamplingParams.FromString(sampling_to_wire(sent).SerializeToString())
    assert sampling_from_wire(wire, frozenset(wire.stop_token_ids)) == sent


def test_what_is_absent_changes_nothing() -> None:
    found = sampling_from_wire(pb.SamplingParams(seed=5), frozenset({2}))
    assert found == SamplingParams(seed=5, stop_token_ids=frozenset({2}))
    assert not found.adjusts_logits


@pytest.mark.parametrize(
    ("wire", "field"),
    [
        (pb.SamplingParams(presence_penalty=3), "presence_penalty"),
        (pb.SamplingParams(frequency_penalty=float("nan")), "frequency_penalty"),
        (pb.SamplingParams(repetition_penalty=0), "repetition_penalty"),
        (pb.SamplingParams(logit_bias={1: 101}), "logit_bias"),
        (pb.SamplingParams(num_logprobs=21), "logprobs"),
    ],
)
def test_a_home_checks_again(wire: pb.SamplingParams, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        sampling_from_wire(wire, frozenset())
    assert caught.value.field == field


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), float32s(-9999, 0)), max_size=20), float32s(-9999, 0))
def test_log_probabilities_come_back_as_they_were(top: list[tuple[int, float]], logprob: float) -> None:
    sent = TokenLogprobs(logprob, tuple(token_id for token_id, _ in top), tuple(value for _, value in top))
    assert from_wire(pb.TokenLogprobs.FromString(to_wire(sent).SerializeToString())) == sent
