"""What waits and what does not, when clients are told seldom."""

from allroads.mesh.wire import model_pb2, router_pb2
from allroads.slm.outbound import Outbound


def test_only_bare_tokens_wait() -> None:
    out = Outbound(
        clients={
            1: model_pb2.GenerateResponse(sequence_ids=[1], num_tokens=[1], token_ids=[5], tiers=[0]),
            2: model_pb2.GenerateResponse(finished=[model_pb2.Finished(sequence_id=2)]),
        },
        score_batches=[router_pb2.ScoreBatch(batch_id=1)],
    )
    out.visits[1] = model_pb2.VisitRequest(closed_sequence_ids=[7])
    going, waiting = out.split(clients_wait=True)
    assert set(going.clients) == {2}
    assert set(waiting.clients) == {1}
    assert going.score_batches
    assert going.visits
    assert not waiting.score_batches
    assert not waiting.visits


def test_nothing_waits_when_there_is_time() -> None:
    out = Outbound(clients={1: model_pb2.GenerateResponse(sequence_ids=[1])})
    going, waiting = out.split(clients_wait=False)
    assert set(going.clients) == {1}
    assert waiting.is_empty
