"""What the model of throughput says against what is measured: `python -m bench.admission`.

Four parts, on the real mesh of the embedded pair, once with its processes on cores of their own and once all on one:

- *Predicted and measured.* So many requests all the time, routed at random with a given share, tiers that launch at
  once: token/s by the gateway's counter, against the chain with what the gateway has fitted by then. Also against the
  chain with what was fitted at 8 requests and the same share: a prediction of what was not seen.
- *Which threshold.* The same with several launch thresholds, taking turns, at three points: the one that the chain
  would choose against the best that was found.
- *On against off.* Two meshes, one of which waits for company as its controller likes, under the same load in turn.
- *Time to solve*, on one core, for 256 requests: from nothing, and from a solution nearby.

Rounds take turns, since the machine's speed changes from minute to minute; a figure is the median of its rounds.
"""

import asyncio
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from itertools import cycle
from typing import Any

import grpc
from allroads.mesh.wire import model_pb2, model_pb2_grpc
from allroads.throughput.chain import Chain
from allroads.throughput.setting import Setting, StepCurve
from allroads.throughput.setting_json import setting_from_json
from allroads.throughput.solve import Solver
from allroads.training.problems import problems

from .mesh import Mesh, running_mesh
from .report import arguments, finish, show

NUM_REQUESTS = (1, 2, 4, 8, 16, 32)
SHARES = (0.02, 0.08, 0.25)
SEEN = 8
"""Requests at which the curves of `unseen` are fitted."""
SWEPT = ((8, 0.08), (16, 0.25))
MAX_TOKENS = 160
SETTLE_S = 10.0
"""After which the gateway's profile has forgotten the load before."""
FLUSH_US = 200_000


class Load:
    """So many requests at a time, as long as it is open."""

    def __init__(self, mesh: Mesh, num_requests: int, share: float) -> None:
        self._mesh, self._share = mesh, share
        questions = cycle([problem.question for problem in _some_problems()])
        self._tasks = [asyncio.create_task(self._ask(questions)) for _ in range(num_requests)]

    async def _ask(self, questions: Iterator[str]) -> None:
        while True:
            await self._mesh.chat(
                next(questions), {"policy": "random", "share": self._share}, max_tokens=MAX_TOKENS, ignore_eos=True
            )

    async def tokens_per_s(self, seconds: float) -> float:
        """Committed tokens in a stretch of time, by the gateway's counter."""
        before, started = await self._tokens(), time.monotonic()
        await asyncio.sleep(seconds)
        after, ended = await self._tokens(), time.monotonic()
        return (after - before) / (ended - started)

    async def _tokens(self) -> float:
        scrape = (await self._mesh.client.get("/metrics")).text
        return sum(float(line.split()[1]) for line in scrape.splitlines() if line.startswith("allroads_tokens_total{"))

    async def close(self) -> None:
        """Leave."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def loaded(mesh: Mesh, num_requests: int, share: float, settle_s: float) -> AsyncIterator[Load]:
    """A load that has gone on for a while."""
    load = Load(mesh, num_requests, share)
    try:
        await asyncio.sleep(settle_s)
        yield load
    finally:
        await load.close()


@contextlib.asynccontextmanager
async def forced_threshold(home: str, threshold: int) -> AsyncIterator[None]:
    """Make the large tier wait for so many visits, as a second gateway could."""
    async with grpc.aio.insecure_channel(home) as channel:
        stream = model_pb2_grpc.HomeServiceStub(channel).Generate()
        launch = model_pb2.LaunchThreshold(tier=1, num_visits=threshold, flush_timeout_us=FLUSH_US)
        await stream.write(model_pb2.GenerateRequest(launches=[launch]))
        try:
            yield
        finally:
            stream.cancel()


async def live_setting(mesh: Mesh) -> Setting | None:
    """What the gateway has fitted; None while it knows too little."""
    view = (await mesh.client.get("/v1/admission")).json()
    return None if view["setting"] is None else setting_from_json(view["setting"])


async def compare(mesh: Mesh, seconds: float) -> list[dict[str, Any]]:
    """Predicted and measured throughput at every point, tiers launching at once."""
    rows: list[dict[str, Any]] = []
    for share in SHARES:
        seen: Setting | None = None
        for num_requests in (SEEN, *(number for number in NUM_REQUESTS if number != SEEN)):
            async with loaded(mesh, num_requests, share, settle_s=SETTLE_S) as load:
                measured = await load.tokens_per_s(seconds)
                setting = await live_setting(mesh)
            if setting is None:
                raise RuntimeError(f"the gateway has fitted nothing at {num_requests} requests")
            seen = seen or setting
            predicted, unseen = (_at_once(one, num_requests) for one in (setting, seen))
            rows.append(
                {
                    "num_requests": num_requests,
                    "share": share,
                    "measured": measured,
                    "predicted": predicted,
                    "error": predicted / measured - 1.0,
                    "unseen": unseen,
                    "unseen_error": unseen / measured - 1.0,
                }
            )
    return sorted(rows, key=lambda row: (row["share"], row["num_requests"]))


async def sweep(mesh: Mesh, home: str, seconds: float, num_rounds: int) -> list[dict[str, Any]]:
    """Throughput by launch threshold, and what the chain would have chosen."""
    results = []
    for num_requests, share in SWEPT:
        async with loaded(mesh, num_requests, share, settle_s=SETTLE_S) as load:
            setting = await live_setting(mesh)
            if setting is None:
                raise RuntimeError(f"the gateway has fitted nothing at {num_requests} requests")
            chosen = Solver().best(setting, num_requests).thresholds[0]
            values = sorted({1, 2, *(max(1, num_requests * part // 8) for part in (1, 2, 3, 4, 6, 8)), chosen})
            found: dict[int, list[float]] = {value: [] for value in values}
            for number in range(num_rounds):
                for value in values if number % 2 == 0 else reversed(values):
                    async with forced_threshold(home, value):
                        await asyncio.sleep(0.5)
                        found[value].append(await load.tokens_per_s(seconds))
        medians = {value: statistics.median(rounds) for value, rounds in found.items()}
        best = max(medians, key=lambda value: medians[value])
        predicted = {value: Chain(setting, num_requests).predict([[value]])[0].tokens_per_s for value in values}
        results.append(
            {
                "num_requests": num_requests,
                "share": share,
                "measured": medians,
                "predicted": predicted,
                "chosen": chosen,
                "best": best,
                "chosen_over_best": medians[chosen] / medians[best],
                "chosen_over_at_once": medians[chosen] / medians[1],
                "spread": max(max(rounds) / min(rounds) - 1.0 for rounds in found.values()),
            }
        )
    return results


async def on_and_off(seconds: float, num_rounds: int) -> list[dict[str, Any]]:
    """The controller at work against a mesh that launches at once, under the same load in turn."""
    rates: dict[tuple[int, float], dict[str, list[float]]] = {point: {"auto": [], "off": []} for point in SWEPT}
    thresholds: dict[tuple[int, float], list[int]] = {point: [] for point in SWEPT}
    async with contextlib.AsyncExitStack() as stack:
        meshes = {
            mode: await stack.enter_async_context(running_mesh(ALLROADS_GATEWAY__ADMISSION__DELAYED_BATCHING=mode))
            for mode in ("auto", "off")
        }
        for number in range(num_rounds):
            for point in SWEPT:
                for mode in ("auto", "off") if number % 2 == 0 else ("off", "auto"):
                    async with loaded(meshes[mode], *point, settle_s=seconds) as load:
                        rates[point][mode].append(await load.tokens_per_s(seconds))
                        if mode == "auto":
                            view = (await meshes[mode].client.get("/v1/admission")).json()
                            thresholds[point].append(view["thresholds"][0])
    return [
        {
            "num_requests": point[0],
            "share": point[1],
            "on": statistics.median(by_mode["auto"]),
            "off": statistics.median(by_mode["off"]),
            "on_over_off": statistics.median(by_mode["auto"]) / statistics.median(by_mode["off"]),
            "thresholds": thresholds[point],
        }
        for point, by_mode in rates.items()
    ]


def solve_ms(num_repeats: int) -> dict[str, float]:
    """Median milliseconds to find the threshold for 256 requests."""
    times: dict[str, list[float]] = {"solve_ms_256": [], "near_ms_256": []}
    for number in range(num_repeats):
        solver = Solver()
        for name, share in (("solve_ms_256", 0.06), ("near_ms_256", 0.062)):
            setting = _made_up(share + 0.001 * (number % 3))
            started = time.perf_counter()
            solver.best(setting, 256)
            times[name].append(1000 * (time.perf_counter() - started))
    return {name: statistics.median(values) for name, values in times.items()}


def _made_up(share: float) -> Setting:
    home, large = StepCurve.affine(0.003, 0.00005), StepCurve.affine(0.022, 0.0003)
    return Setting.routed(share, (home, home.scaled(1.8)), (large, large.scaled(1.3)))


def _at_once(setting: Setting, num_requests: int) -> float:
    return Chain(setting, num_requests).predict([[1]])[0].tokens_per_s


def _some_problems() -> list[Any]:
    source = problems("test", 0)
    return [next(source) for _ in range(64)]


async def measure(*, quick: bool) -> dict[str, Any]:
    """All parts but the time to solve."""
    seconds, num_rounds = (1.5, 1) if quick else (3.0, 3)
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        home = f"unix:{directory}/slm.sock"
        environment = {"ALLROADS_GATEWAY__ADMISSION__DELAYED_BATCHING": "off", "ALLROADS_SLM__ADDRESS": home}
        for name, others in (("own_cores", {}), ("one_core", {"ALLROADS_PIN_CORES": "false"})):
            async with contextlib.AsyncExitStack() as stack:
                with one_core() if others else contextlib.nullcontext():
                    mesh = await stack.enter_async_context(running_mesh(**environment, **others))
                result[name] = {
                    "points": await compare(mesh, seconds),
                    "sweep": await sweep(mesh, home, seconds, num_rounds),
                }
    result["own_cores"]["on_off"] = await on_and_off(seconds, num_rounds)
    return result


async def only_points(*, quick: bool) -> list[dict[str, Any]]:
    """The first part alone."""
    async with running_mesh(ALLROADS_GATEWAY__ADMISSION__DELAYED_BATCHING="off") as mesh:
        return await compare(mesh, 1.5 if quick else 4.0)


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """What is started meanwhile runs on one core, whatever it starts itself."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def print_tables(result: dict[str, Any]) -> None:
    """What a reader wants to see."""
    for name, title in (("own_cores", "cores of their own"), ("one_core", "all on one core")):
        part = result[name]
        show_points(part["points"], title)
        show(
            f"launch thresholds, {title}",
            ("requests", "share", "chosen", "best", "chosen / best", "chosen / at once", "spread of rounds"),
            [
                (
                    row["num_requests"],
                    row["share"],
                    row["chosen"],
                    row["best"],
                    row["chosen_over_best"],
                    row["chosen_over_at_once"],
                    row["spread"],
                )
                for row in part["sweep"]
            ],
        )
    show(
        "delayed batching on against off, cores of their own",
        ("requests", "share", "on", "off", "on / off", "thresholds"),
        [tuple(row.values()) for row in result["own_cores"]["on_off"]],
    )


def show_points(rows: list[dict[str, Any]], title: str) -> None:
    """Predicted and measured, one point a line."""
    show(
        f"token/s, {title}, tiers launch at once",
        ("requests", "share", "measured", "predicted", "error", "from 8 requests", "error"),
        [_point(row) for row in rows],
    )


def _largest(rows: list[dict[str, Any]]) -> float:
    return max(abs(float(row["error"])) for row in rows)


def _middle(rows: list[dict[str, Any]]) -> float:
    return statistics.median(abs(float(row["error"])) for row in rows)


def _point(row: dict[str, Any]) -> tuple[object, ...]:
    names = ("num_requests", "share", "measured", "predicted", "error", "unseen", "unseen_error")
    return tuple(row[name] for name in names)


def main() -> None:
    """Command line."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--points", action="store_true", help="only what is predicted and measured, on own cores")
    options = parser.parse_args()
    if options.points:
        rows = asyncio.run(only_points(quick=options.quick))
        show_points(rows, "cores of their own")
        finish({"max_error": _largest(rows), "median_error": _middle(rows), "points": rows}, as_json=options.json)
        return
    times = solve_ms(3 if options.quick else 15)
    result = asyncio.run(measure(quick=options.quick))
    points = [row for name in ("own_cores", "one_core") for row in result[name]["points"]]
    sweeps = [row for name in ("own_cores", "one_core") for row in result[name]["sweep"]]
    print_tables(result)
    finish(
        {
            "max_error": _largest(points),
            "median_error": _middle(points),
            "max_unseen_error": max(abs(row["unseen_error"]) for row in points),
            "min_chosen_over_best": min(row["chosen_over_best"] for row in sweeps),
            **times,
            **result,
        },
        as_json=options.json,
    )


if __name__ == "__main__":
    main()
