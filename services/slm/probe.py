"""The real warm-up: a request of our own that visits every tier before any client's may come."""

import asyncio

from ..errors import StartupError
from ..mesh.status import from_wire
from ..mesh.stream import Outbox
from ..mesh.wire import common_pb2 as pb
from ..mesh.wire import model_pb2
from .clients import Clients

_TIMEOUT_S = 60.0
_NUM_TOKENS = 4


async def probe_all_tiers(clients: Clients) -> None:
    """Write a few tokens with the large model and a few that the router has judged.

    Raises:
        StartupError: a tier failed, or did not answer in time.
    """
    outbox: Outbox[model_pb2.GenerateResponse] = Outbox()
    stream_id = clients.streams.join(outbox)
    try:
        clients.take(stream_id, model_pb2.GenerateRequest(opens=[_probe(1, 0.0), _probe(2, 1.0)]))
        async with asyncio.timeout(_TIMEOUT_S):
            num_open = 2
            async for response in outbox.messages():
                for failure in response.errors:
                    raise StartupError(f"the warm-up through all tiers failed: {from_wire(failure.error).message}")
                num_open -= len(response.finished)
                if not num_open:
                    return
    except TimeoutError:
        raise StartupError(f"the warm-up through all tiers took more than {_TIMEOUT_S:g} s") from None
    finally:
        clients.streams.leave(stream_id)


def _probe(sequence_id: int, threshold: float) -> model_pb2.OpenRequest:
    return model_pb2.OpenRequest(
        sequence_id=sequence_id,
        request_id="warm-up",
        prompt_token_ids=[0],
        max_tokens=_NUM_TOKENS,
        sampling=pb.SamplingParams(temperature=0.0, ignore_eos=True),
        routing=pb.Routing(policy="r2r", threshold=threshold),
    )
