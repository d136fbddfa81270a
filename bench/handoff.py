"""What a hand-off costs, in microseconds, split into parts: `python -m bench.handoff`.

A real llm service in a process of its own, and one request that visits it again and again over the stream,
as a home would, with so many unseen tokens each time. Each part is measured by itself in the same run:

- `extend`: the engine's step over the unseen tokens, in a tier of our own without a wire;
- `tier`: the rest of that tier's turn, from the message in hand to the response in hand;
- `messages`: building, serialising and parsing both messages;
- `wire`: what is left of the round trip: gRPC, event loops, threads, process switches;
- `feed`: what the small model pays when its own token was turned down, one step for one row.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from allroads.config import MeshSettings, load_settings
from allroads.engine.engine import Engine
from allroads.engine.sampling import SamplingParams
from allroads.engine.sequence import Sequence
from allroads.engine.step import Step
from allroads.llm.tier import StreamClosed, Tier, Visit
from allroads.mesh.channels import open_channel
from allroads.mesh.wire import common_pb2 as pb
from allroads.mesh.wire import model_pb2, model_pb2_grpc
from allroads.policies.registry import PolicyRegistry

from .report import arguments, finish, show
from .services import running_service

UNSEEN = (1, 8, 32)
CONTEXT = 100
_MAX_LENGTH = 2000
_VISITS = 100


def visits(num_unseen: int, count: int) -> list[model_pb2.VisitRequest]:
    """The messages of one request: it opens, then comes again with so many unseen tokens, `count` times."""
    params = model_pb2.VisitorParams(
        max_length=_MAX_LENGTH, num_prompt_tokens=CONTEXT, sampling=pb.SamplingParams(temperature=0.0)
    )
    opening = model_pb2.HandOff(
        sequence_id=1, unseen_token_ids=[5] * CONTEXT, max_tokens=1, visit_number=1, visitor=params
    )
    requests = [model_pb2.VisitRequest(hand_offs=[opening])]
    for number in range(count):
        # Back to the same length each time, so that every visit costs the same.
        hand_off = model_pb2.HandOff(
            sequence_id=1,
            prefix_length=CONTEXT,
            unseen_token_ids=[7] * num_unseen,
            max_tokens=1,
            visit_number=number + 2,
            num_opinions_wanted=num_unseen,
        )
        requests.append(model_pb2.VisitRequest(hand_offs=[hand_off]))
    return requests


async def round_trip_us(settings: MeshSettings, num_unseen: int, count: int) -> float:
    """Median time from sending a hand-off to having its token, over the stream."""
    times = []
    async with open_channel(settings.llm.address, settings.max_message_bytes) as channel:
        call = model_pb2_grpc.TierServiceStub(channel).Visit(wait_for_ready=True)
        for request in visits(num_unseen, count):
            started = time.perf_counter()
            await call.write(request)
            while isinstance(response := await call.read(), model_pb2.VisitResponse) and not response.token_ids:
                pass
            times.append(time.perf_counter() - started)
        await call.done_writing()
    return 1e6 * statistics.median(times[1:])


def turn_us(engine: Engine, num_unseen: int, count: int) -> tuple[float, float]:
    """Median times of the forward pass in the tier's turn, and of the rest of the turn, for the same messages."""
    steps, rests = [], []
    step = engine.step

    def timed_step() -> Step | None:
        started = time.perf_counter()
        result = step()
        steps.append(time.perf_counter() - started)
        return result

    engine.step = timed_step  # type: ignore[method-assign]
    tier = Tier(engine, PolicyRegistry.load(), lambda responses: None)
    for request in visits(num_unseen, count):
        started = time.perf_counter()
        tier.turn([Visit(1, request)])
        rests.append(time.perf_counter() - started - steps[-1])
    engine.step = step  # type: ignore[method-assign]
    tier.turn([StreamClosed(1)])
    return 1e6 * statistics.median(steps[1:]), 1e6 * statistics.median(rests[1:])


def feed_us(engine: Engine, count: int) -> float:
    """Median time in which the small model feeds one token that another model wrote."""
    sequence = Sequence([5] * CONTEXT, _MAX_LENGTH, SamplingParams(temperature=0.0), CONTEXT)
    engine.open(sequence)
    engine.admit()
    engine.step()

    def feed() -> None:
        engine.truncate(sequence, CONTEXT)
        sequence.append([7])
        engine.step()

    result = median_us(feed, count)
    engine.close(sequence)
    return result


def messages_us(num_unseen: int, count: int) -> float:
    """Median time to build, serialise and parse a hand-off and its response."""
    response = model_pb2.VisitResponse(
        sequence_ids=[1], num_tokens=[1], token_ids=[9], returned=[True], num_computed_tokens=[num_unseen],
        visit_numbers=[3], num_opinions=[num_unseen], num_agreed_opinions=[num_unseen],
    )  # fmt: skip

    def both_ways() -> None:
        request = visits(num_unseen, 1)[1]
        model_pb2.VisitRequest.FromString(request.SerializeToString())
        model_pb2.VisitResponse.FromString(response.SerializeToString())

    opening = median_us(lambda: visits(num_unseen, 0), count)
    return median_us(both_ways, count) - opening


def median_us(work: Callable[[], object], count: int) -> float:
    """Median microseconds of a call."""
    times = []
    for _ in range(count):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return 1e6 * statistics.median(times)


async def measure(settings: MeshSettings, rounds: int) -> dict[int, dict[str, float]]:
    """All parts for every number of unseen tokens: medians of rounds in which the parts take turns."""
    torch.set_num_threads(1)
    llm, slm = Engine.load(settings.llm), Engine.load(settings.slm)
    found: dict[int, list[dict[str, float]]] = {num_unseen: [] for num_unseen in UNSEEN}
    async with running_service("llm", settings):
        for _ in range(rounds):
            for num_unseen in UNSEEN:
                trip = await round_trip_us(settings, num_unseen, _VISITS)
                extend, tier = turn_us(llm, num_unseen, _VISITS)
                messages = messages_us(num_unseen, _VISITS)
                wire = trip - extend - tier - messages
                parts = {"round_trip": trip, "extend": extend, "tier": tier, "messages": messages, "wire": wire}
                found[num_unseen].append({**parts, "feed": feed_us(slm, _VISITS)})
    return {
        num_unseen: {name: statistics.median(parts[name] for parts in all_parts) for name in all_parts[0]}
        for num_unseen, all_parts in found.items()
    }


def main() -> None:
    """Command line."""
    options = arguments(__doc__ or "").parse_args()
    with tempfile.TemporaryDirectory() as directory:
        settings = load_settings().with_addresses(Path(directory))
        parts: dict[int, dict[str, float]] = asyncio.run(measure(settings, 3 if options.quick else 11))
    columns = tuple(parts[UNSEEN[0]])
    rows: list[tuple[Any, ...]] = [(str(count), *by.values()) for count, by in parts.items()]
    show("microseconds a hand-off, by unseen tokens", ("unseen tokens", *columns), rows)
    finish({"hand_off_us": parts}, as_json=options.json)


if __name__ == "__main__":
    main()
