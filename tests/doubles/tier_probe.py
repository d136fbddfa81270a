"""How full a larger tier is, as a visit of our own is told."""

from allroads.mesh.channels import open_channel
from allroads.mesh.wire import model_pb2, model_pb2_grpc


async def free_tier_tokens(address: str) -> int:
    """Free KV of the tier, in tokens, while a small visit of ours is there."""
    channel = open_channel(address, 1 << 20)
    call = model_pb2_grpc.TierServiceStub(channel).Visit(wait_for_ready=True)
    visitor = model_pb2.VisitorParams(max_length=16, num_prompt_tokens=5)
    hand_off = model_pb2.HandOff(sequence_id=1, unseen_token_ids=[5, 6, 7, 8, 9], max_tokens=1, visitor=visitor)
    await call.write(model_pb2.VisitRequest(hand_offs=[hand_off]))
    response = await call.read()
    assert isinstance(response, model_pb2.VisitResponse)
    call.cancel()
    await channel.close()
    return response.load.num_free_kv_tokens
