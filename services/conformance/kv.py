"""How much KV is free on each tier, asked by small requests of our own."""

import asyncio

from ..config import MeshSettings
from ..errors import Unavailable
from ..mesh.channels import open_channel
from ..mesh.wire import model_pb2, model_pb2_grpc
from .mesh_client import MeshClient
from .question import Question

_PROMPT = (5, 6, 7, 8, 9)
_TIMEOUT_S = 30.0


async def free_kv_tokens(settings: MeshSettings, client: MeshClient) -> dict[str, int]:
    """Free KV in tokens by tier, while a small visit of ours is at the larger ones.

    Raises:
        Unavailable: a tier does not answer.
    """
    (answer,) = await client.ask([Question(0, _PROMPT, "slm", {}, max_tokens=1)])
    if answer.error is not None:
        raise Unavailable(f"slm cannot tell how much KV is free: {answer.error.message}")
    free = {"slm": client.load.num_free_kv_tokens}
    for name, tier in settings.tiers.items():
        if name != "slm":
            free[name] = await _free_tier_tokens(name, tier.address)
    return free


async def _free_tier_tokens(name: str, address: str) -> int:
    visitor = model_pb2.VisitorParams(max_length=16, num_prompt_tokens=len(_PROMPT))
    hand_off = model_pb2.HandOff(sequence_id=1, unseen_token_ids=_PROMPT, max_tokens=1, visitor=visitor)
    channel = open_channel(address, 1 << 20)
    call = model_pb2_grpc.TierServiceStub(channel).Visit(wait_for_ready=True)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await call.write(model_pb2.VisitRequest(hand_offs=[hand_off]))
            # Admissions come in messages of their own.
            while isinstance(response := await call.read(), model_pb2.VisitResponse):
                if response.sequence_ids:
                    return response.load.num_free_kv_tokens
        raise Unavailable(f"{name} has ended the stream")
    except TimeoutError:
        raise Unavailable(f"{name} did not answer within {_TIMEOUT_S:g} s") from None
    finally:
        call.cancel()
        await channel.close()
