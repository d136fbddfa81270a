"""What the gateway costs over speaking with the home, and what it holds: `python -m bench.gateway`.

A mesh of the embedded pair, policy `slm`, greedy, answers of a fixed length, so many clients each of which asks again
as soon as it is answered. `home` speaks gRPC with the small model's service as the gateway does, with token ids;
`plain` and `streamed` are chats over REST. The client has the same cores as the mesh and costs more than the gateway,
so tokens per second are not to be compared; the gateway's processor time is, less what it takes when nobody asks. From
two lengths of answers follow its parts for a request and for a token.

Then so many streams at once in another mesh with room for all: how many were in the mesh together, the gateway's memory
before, at its highest and after, and whether each stream was whole.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count, cycle, islice
from typing import Any

import numpy as np
import psutil
from allroads.config import load_settings
from allroads.mesh.channels import open_channel
from allroads.mesh.wire import common_pb2, model_pb2, model_pb2_grpc
from allroads.training.pretrain import prompt_ids
from allroads.training.problems import problems
from transformers import PreTrainedTokenizerFast

from .mesh import Mesh, chat_body, running_mesh
from .report import arguments, finish, show

LENGTHS = (16, 128)
NUM_STREAMS = 500
STREAM_TOKENS = 256
"""Enough that the first is not over before the last has begun."""
KV_TOKENS = 200_000
"""Enough for that many prompts and answers."""
ROUTING = {"policy": "slm"}
Ask = Callable[[str, int], Awaitable[int]]
"""Asks a question for so many tokens; how many came."""


class Home:
    """A client of the small model's service."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._numbers = count(1)
        self._tokens: dict[int, int] = {}
        self._ends: dict[int, asyncio.Future[int]] = {}
        self._writing = asyncio.Lock()
        self._tokenizer = PreTrainedTokenizerFast.from_pretrained(load_settings().slm.path)

    async def ask(self, question: str, max_tokens: int) -> int:
        """One answer."""
        number = next(self._numbers)
        request = model_pb2.OpenRequest(
            sequence_id=number,
            prompt_token_ids=prompt_ids(self._tokenizer, question),
            max_tokens=max_tokens,
            sampling=common_pb2.SamplingParams(temperature=0.0, ignore_eos=True),
            routing=common_pb2.Routing(policy="slm"),
        )
        self._tokens[number] = 0
        end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ends[number] = end
        async with self._writing:
            await self._stream.write(model_pb2.GenerateRequest(opens=[request]))
        return await end

    async def read(self) -> None:
        """Take what comes, until cancelled."""
        async for response in self._stream:
            for number, num_tokens in zip(response.sequence_ids, response.num_tokens, strict=True):
                self._tokens[number] += num_tokens
            for finished in response.finished:
                self._ends.pop(finished.sequence_id).set_result(self._tokens.pop(finished.sequence_id))


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[Home]:
    """A client of the home at an address."""
    async with open_channel(address, load_settings().max_message_bytes) as channel:
        stream = model_pb2_grpc.HomeServiceStub(channel).Generate()
        home = Home(stream)
        reading = asyncio.create_task(home.read())
        try:
            yield home
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


def plain(mesh: Mesh) -> Ask:
    """Whole answers over REST."""

    async def ask(question: str, max_tokens: int) -> int:
        reply = await mesh.chat(question, ROUTING, max_tokens=max_tokens, ignore_eos=True)
        return int(reply["usage"]["completion_tokens"])

    return ask


def streamed(mesh: Mesh) -> Ask:
    """Event streams over REST."""

    async def ask(question: str, max_tokens: int) -> int:
        options = {"include_usage": True}
        body = chat_body(question, ROUTING, max_tokens=max_tokens, ignore_eos=True, stream=True, stream_options=options)
        num_tokens = 0
        async with mesh.client.stream("POST", "/v1/chat/completions", json=body) as reply:
            reply.raise_for_status()
            async for data in reply.aiter_raw():
                if (start := data.rfind(b'"completion_tokens":')) >= 0:
                    num_tokens = int(data[start:].split(b":")[1].split(b",")[0])
        return num_tokens

    return ask


def process_of(mesh: Mesh, service: str) -> psutil.Process:
    """A service's process."""
    children = psutil.Process(mesh.pid).children()
    return next(child for child in children if service in child.cmdline())


def cpu_s(process: psutil.Process) -> float:
    """Processor time of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


async def load(ask: Ask, questions: list[str], num_clients: int, max_tokens: int) -> tuple[int, float]:
    """Tokens of answers to all questions, and the seconds that they took."""
    waiting = iter(questions)

    async def client() -> int:
        return sum([await ask(question, max_tokens) for question in waiting])

    started = time.perf_counter()
    counts = await asyncio.gather(*(client() for _ in range(num_clients)))
    return sum(counts), time.perf_counter() - started


async def overhead(*, quick: bool) -> dict[str, Any]:
    """Processor time of gateway and home by way of asking, number of clients, and length of answers."""
    num_questions = 64 if quick else 512
    questions = some_questions(num_questions)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="roads-") as directory:
        address = f"unix:{directory}/slm.sock"
        async with running_mesh(ALLROADS_SLM__ADDRESS=address) as mesh, connected(address) as home:
            gateway, slm = process_of(mesh, "gateway"), process_of(mesh, "slm")
            asks: dict[str, Ask] = {"home": home.ask, "plain": plain(mesh), "streamed": streamed(mesh)}
            for ask in asks.values():
                await load(ask, questions[:32], 8, LENGTHS[-1])
            before = cpu_s(gateway)
            await asyncio.sleep(3)
            idle = (cpu_s(gateway) - before) / 3
            for num_clients in (8, 32) if quick else (1, 8, 32):
                for max_tokens in LENGTHS:
                    for name, ask in asks.items():
                        before, slm_before = cpu_s(gateway), cpu_s(slm)
                        part = questions[: max(32, num_questions * min(num_clients, 8) // 8)]
                        num_tokens, seconds = await load(ask, part, num_clients, max_tokens)
                        if num_tokens != len(part) * max_tokens:
                            raise RuntimeError(f"{name} gave {num_tokens} tokens for {len(part)} x {max_tokens}")
                        spent = max(0.0, cpu_s(gateway) - before - idle * seconds) if name != "home" else 0.0
                        rows.append(
                            {
                                "way": name,
                                "clients": num_clients,
                                "max_tokens": max_tokens,
                                "requests": len(part),
                                "tokens_per_s": num_tokens / seconds,
                                "seconds_per_request": seconds * num_clients / len(part),
                                "gateway_us_per_request": 1e6 * spent / len(part),
                                "slm_us_per_request": 1e6 * (cpu_s(slm) - slm_before) / len(part),
                            }
                        )
    return {"idle_share": idle, "points": rows, "parts": [parts(rows, way) for way in ("plain", "streamed")]}


def parts(rows: list[dict[str, Any]], way: str) -> dict[str, Any]:
    """The gateway's processor time for a request and for a token, by the least squares, at 8 clients and more."""
    own = [row for row in rows if row["way"] == way and row["clients"] >= 8]
    lengths = np.array([[1.0, row["max_tokens"]] for row in own])
    spent = np.array([row["gateway_us_per_request"] for row in own])
    (request, token), *_ = np.linalg.lstsq(lengths, spent, rcond=None)
    return {"way": way, "us_per_request": float(request), "us_per_token": float(token)}


async def many_streams(num_streams: int) -> dict[str, Any]:
    """So many streams at once."""
    environment = {
        "ALLROADS_GATEWAY__MAX_RUNNING": str(num_streams),
        "ALLROADS_SLM__MAX_RUNNING": str(num_streams),
        "ALLROADS_SLM__NUM_KV_TOKENS": str(KV_TOKENS),
    }
    async with running_mesh(**environment) as mesh:
        ask, gateway = streamed(mesh), process_of(mesh, "gateway")
        await load(ask, some_questions(8), 8, STREAM_TOKENS)
        seen: list[tuple[int, int]] = []
        before = gateway.memory_info().rss

        async def watch() -> None:
            while True:
                running = [
                    line
                    for line in (await mesh.client.get("/metrics")).text.splitlines()
                    if "requests_running " in line
                ]
                seen.append((int(float(running[-1].split()[1])), gateway.memory_info().rss))
                await asyncio.sleep(0.25)

        watching = asyncio.create_task(watch())
        questions = some_questions(num_streams)
        started = time.perf_counter()
        answers = await asyncio.gather(
            *(ask(question, STREAM_TOKENS) for question in questions), return_exceptions=True
        )
        seconds = time.perf_counter() - started
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await asyncio.sleep(2)
        return {
            "streams": num_streams,
            "whole": sum(answer == STREAM_TOKENS for answer in answers),
            "most_at_once": max(running for running, _ in seen),
            "seconds": seconds,
            "tokens_per_s": num_streams * STREAM_TOKENS / seconds,
            "mib_before": before / 2**20,
            "mib_highest": max(rss for _, rss in seen) / 2**20,
            "mib_after": gateway.memory_info().rss / 2**20,
        }


def some_questions(number: int) -> list[str]:
    """Held-out problems, again and again where there must be more."""
    return list(islice(cycle([problem.question for problem in islice(problems("test", 0), 64)]), number))


async def measure(*, quick: bool) -> dict[str, Any]:
    """Both parts."""
    return {"overhead": await overhead(quick=quick), "streams": await many_streams(NUM_STREAMS)}


def main() -> None:
    """Command line."""
    options = arguments(__doc__ or "").parse_args()
    result = asyncio.run(measure(quick=options.quick))
    points, streams = result["overhead"]["points"], result["streams"]
    show("the gateway's processor time", tuple(points[0]), [tuple(row.values()) for row in points])
    show(
        "its parts", ("way", "us a request", "us a token"), [tuple(row.values()) for row in result["overhead"]["parts"]]
    )
    show("streams at once", tuple(streams), [tuple(streams.values())])
    by_way = {part["way"]: part for part in result["overhead"]["parts"]}
    finish(
        {
            "streamed_us_per_token": by_way["streamed"]["us_per_token"],
            "streamed_us_per_request": by_way["streamed"]["us_per_request"],
            "whole_streams": streams["whole"],
            **result,
        },
        as_json=options.json,
    )


if __name__ == "__main__":
    main()
