"""The real warm-up: requests of our own that visit every tier and every scorer before any client's may come."""

import asyncio
from collections.abc import Mapping, Sequence

from ..errors import StartupError
from ..mesh.routing import routing_to_wire
from ..mesh.status import from_wire
from ..mesh.stream import Outbox
from ..mesh.wire import common_pb2 as pb
from ..mesh.wire import model_pb2
from ..policies.me import ModelEnsemble
from ..policies.policy import Policy
from .clients import Clients

_TIMEOUT_S = 60.0
_NUM_TOKENS = 4


async def probe_all(clients: Clients, policies: Sequence[Policy], *, num_tiers: int) -> None:
    """Write a few tokens with each larger model, and a few of the small one that each scorer has judged.

    Args:
        clients: takes the requests.
        policies: those that are served.
        num_tiers: of the mesh.

    Raises:
        StartupError: a tier or a scorer failed, or did not answer in time.
    """
    routings = [_single_tier(tier, num_tiers) for tier in range(1, num_tiers)]
    scored: Mapping[str | None, Policy] = {policy.scorer: policy for policy in policies if policy.scorer is not None}
    routings += [routing_to_wire(policy.name, policy.never or {}) for policy in scored.values()]
    outbox: Outbox[model_pb2.GenerateResponse] = Outbox()
    stream_id = clients.streams.join(outbox)
    try:
        opens = [_probe(number, routing) for number, routing in enumerate(routings)]
        clients.take(stream_id, model_pb2.GenerateRequest(opens=opens))
        async with asyncio.timeout(_TIMEOUT_S):
            num_open = len(opens)
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


def _single_tier(tier: int, num_tiers: int) -> pb.Routing:
    """All weight on one tier."""
    return routing_to_wire(ModelEnsemble.name, {"weights": [float(index == tier) for index in range(num_tiers)]})


def _probe(sequence_id: int, routing: pb.Routing) -> model_pb2.OpenRequest:
    routing.mode = "on"
    return model_pb2.OpenRequest(
        sequence_id=sequence_id,
        request_id="warm-up",
        prompt_token_ids=[0],
        max_tokens=_NUM_TOKENS,
        sampling=pb.SamplingParams(temperature=0.0, ignore_eos=True),
        routing=routing,
    )
