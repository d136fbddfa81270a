"""What is for a larger tier and does not fit one message goes in several, and nothing of it is lost."""

import pytest
from allroads.engine.engine import ModelFacts
from allroads.errors import InvalidArgument
from allroads.mesh.wire import model_pb2
from allroads.slm.commands import Command, Visited
from allroads.slm.peers import TierPeer
from allroads.vocabulary import Vocabulary

FACTS = ModelFacts(
    model_id="tiny",
    vocabulary=Vocabulary(("a", "b"), {}, ()),
    num_output_rows=2,
    hidden_size=4,
    num_parameters=8,
    max_context=16,
    kv_bytes_per_token=1,
)
BIG = model_pb2.HandOff(sequence_id=3, unseen_token_ids=range(100))


async def test_what_is_too_big_goes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    posted: list[Command] = []
    sent: list[model_pb2.VisitRequest] = []

    def send(message: model_pb2.VisitRequest) -> None:
        if message.ByteSize() > 40:
            raise InvalidArgument("too big")
        sent.append(message)

    peer = TierPeer("llm", 1, "unix:/nowhere", 1 << 20, FACTS, posted.append)
    monkeypatch.setattr(peer._stream, "send", send)
    launch = model_pb2.LaunchThreshold(tier=1, num_visits=4, flush_timeout_us=9)
    small = [model_pb2.HandOff(sequence_id=number, unseen_token_ids=range(20)) for number in (1, 2)]
    peer.visit(model_pb2.VisitRequest(hand_offs=[*small, BIG], closed_sequence_ids=[7], launch=launch))
    assert sent == [
        model_pb2.VisitRequest(launch=launch),
        model_pb2.VisitRequest(hand_offs=small[:1]),
        model_pb2.VisitRequest(hand_offs=small[1:]),
        model_pb2.VisitRequest(closed_sequence_ids=[7]),
    ]
    sent.clear()
    peer.visit(model_pb2.VisitRequest(hand_offs=[BIG], launch=launch))
    assert sent == [model_pb2.VisitRequest(launch=launch)]
    failed = [error.sequence_id for one in posted if isinstance(one, Visited) for error in one.response.errors]
    assert failed == [3, 3]
    await peer.close()
