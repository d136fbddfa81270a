from allroads.gateway.delivery import cut, make_sequence_id
from allroads.mesh.wire import common_pb2, model_pb2
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=8))
def test_each_sequence_gets_what_is_its_own_whether_or_not_it_is_known(parts: list[tuple[bool, int]]) -> None:
    message, wanted = model_pb2.GenerateResponse(), []
    for number, (has_logprobs, num_tokens) in enumerate(parts):
        first = len(message.token_ids)
        token_ids = list(range(first, first + num_tokens))
        entries = [common_pb2.TokenLogprobs(logprob=-token_id) for token_id in token_ids if has_logprobs]
        sequence_id = make_sequence_id(number, has_logprobs=has_logprobs)
        message.sequence_ids.append(sequence_id)
        message.num_tokens.append(num_tokens)
        message.token_ids.extend(token_ids)
        message.tiers.extend(token_id % 2 for token_id in token_ids)
        message.logprobs.extend(entries)
        wanted.append((sequence_id, token_ids, [token_id % 2 for token_id in token_ids], entries, True))
    assert [(d.sequence_id, d.token_ids, d.tiers, d.logprobs, d.is_whole) for d in cut(message)] == wanted
    assert len({d.sequence_id for d in cut(message)}) == len(parts)


def test_entries_that_are_left_out_are_seen() -> None:
    asking = make_sequence_id(2, has_logprobs=True)
    message = model_pb2.GenerateResponse(sequence_ids=[1, asking], num_tokens=[1, 1], token_ids=[5, 6], tiers=[0, 0])
    assert [delivery.is_whole for delivery in cut(message)] == [True, False]
