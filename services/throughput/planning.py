"""What a mesh can carry, and how many of them a traffic needs.

A replica is a mesh of its own, with its own GPUs. All latencies are means.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InvalidArgument
from .chain import predict
from .erlang import largest, queue_wait_s
from .latency import first_token_s
from .setting import Prediction, Setting
from .solve import Solver, capacity
from .traffic import Traffic

_MAX_REPLICAS = 1_000_000


@dataclass(frozen=True)
class Point:
    """So many requests at once, each tier waiting for company as is best."""

    num_requests: int
    thresholds: tuple[int, ...]
    """One for each larger tier."""
    tokens_per_s: float
    tokens_per_s_each: float
    gain: float
    """Throughput over that without waiting for company, less 1."""
    first_token_s: float
    """From the start of a request."""


@dataclass(frozen=True)
class Load:
    """The traffic on the replicas that it needs."""

    num_replicas: int
    num_gpus: int
    utilisation: float
    """What comes over what the replicas can take."""
    num_running: float
    """Requests that run at once in a replica."""
    answer_s: float
    """From the start of a request to its end."""
    queue_wait_s: float
    """From arrival to start (see `erlang.queue_wait_s` for what it assumes)."""
    first_token_s: float
    """From arrival."""


@dataclass(frozen=True)
class Plan:
    """What comes of a setting and a traffic."""

    points: tuple[Point, ...]
    """At 1, 2, 4, ... requests, at the capacity, and at the most there is memory for."""
    capacity: Point
    """The most requests at once with which the promises are kept."""
    requests_per_s: float | None
    """That a replica can take at its capacity; None where the length of an answer is not known."""
    load: Load | None
    """None where no rate was given."""


def make_plan(setting: Setting, traffic: Traffic) -> Plan:
    """Thresholds, capacity, and what the traffic needs.

    Raises:
        InvalidArgument: a promise cannot be kept (says what could be), or a rate is given and no length of an answer.
    """
    replica = _Replica(setting)
    if traffic.rate_per_s is not None and math.isinf(setting.tokens_per_request):
        raise InvalidArgument("a rate of requests needs answer_tokens, the mean length of an answer",
                              field="answer_tokens")  # fmt: skip
    most = _capacity(replica, traffic)
    numbers = {1 << power for power in range(traffic.max_requests.bit_length())} | {most, traffic.max_requests}
    points = {number: replica.point(number) for number in sorted(numbers)}
    finite = not math.isinf(setting.tokens_per_request)
    return Plan(
        tuple(points.values()),
        points[most],
        replica.requests_per_s(most) if finite else None,
        None if traffic.rate_per_s is None else _load(replica, traffic, traffic.rate_per_s, most),
    )


class _Solver(Solver):
    """Solves one setting, and each number of requests once."""

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[int, Prediction] = {}

    def best(self, setting: Setting, num_requests: int) -> Prediction:
        if num_requests not in self._found:
            self._found[num_requests] = super().best(setting, num_requests)
        return self._found[num_requests]


class _Replica:
    """A mesh at any number of requests."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.solver = _Solver()

    def best(self, num_requests: int) -> Prediction:
        return self.solver.best(self.setting, num_requests)

    def point(self, num_requests: int) -> Point:
        best = self.best(num_requests)
        at_once: Sequence[int] = [1] * len(self.setting.larger)
        return Point(
            num_requests,
            best.thresholds,
            best.tokens_per_s,
            best.tokens_per_s_each,
            best.tokens_per_s / predict(self.setting, num_requests, at_once).tokens_per_s - 1.0,
            self.first_token_s(num_requests),
        )

    def first_token_s(self, num_requests: int) -> float:
        return first_token_s(self.setting, self.best(num_requests))

    def requests_per_s(self, num_requests: int) -> float:
        return self.best(num_requests).tokens_per_s / self.setting.tokens_per_request

    def running(self, rate_per_s: float, most: int) -> tuple[float, int]:
        """Mean requests at once under a rate that is less than that of `most`, and the next whole number.

        Found where so many requests at once end as fast as others come; straight between whole numbers. What the
        chances of the moment add to that is left out.
        """
        below = largest(most - 1, lambda number: self.requests_per_s(number) <= rate_per_s)
        low, high = self.requests_per_s(below) if below else 0.0, self.requests_per_s(below + 1)
        return below + (rate_per_s - low) / (high - low), below + 1


def _capacity(replica: _Replica, traffic: Traffic) -> int:
    most = traffic.max_requests
    speed, first_s = traffic.min_tokens_per_s, traffic.max_first_token_s
    if speed is not None:
        most = capacity(replica.setting, min_tokens_per_s=speed, max_requests=most, solver=replica.solver)
        if most < 1:
            alone = replica.best(1).tokens_per_s
            raise InvalidArgument(
                f"min_tokens_per_s {speed:g} cannot be kept: one request alone gets {alone:.4g} token/s; promise less, "
                "hand off less, or take a faster pair or device",
                field="min_tokens_per_s",
            )
    if first_s is not None:
        most = largest(most, lambda number: replica.first_token_s(number) <= first_s)
        if most < 1:
            raise InvalidArgument(
                f"max_first_token_s {first_s:g} cannot be kept: one request alone has its first token after "
                f"{replica.first_token_s(1):.4g} s; promise more time, or make prompts or steps faster",
                field="max_first_token_s",
            )
    return most


def _load(replica: _Replica, traffic: Traffic, rate_per_s: float, most: int) -> Load:
    highest = replica.requests_per_s(most)
    fewest = max(math.ceil(rate_per_s / (traffic.utilisation * highest) - 1e-9), 1)
    if fewest > _MAX_REPLICAS:
        raise InvalidArgument(
            f"rate {rate_per_s:g} needs {fewest} replicas, which take {highest:.4g} requests/s each", field="rate_per_s"
        )

    def at(num_replicas: int) -> Load:
        each = rate_per_s / num_replicas
        running, whole = replica.running(each, most)
        wait_s = queue_wait_s(each, most, most / highest)
        return Load(
            num_replicas,
            num_replicas * traffic.gpus_per_replica,
            each / highest,
            running,
            running / each,
            wait_s,
            wait_s + replica.first_token_s(whole),
        )

    promised_s, found = traffic.max_first_token_s, at(fewest)
    if promised_s is None or found.first_token_s <= promised_s:
        return found
    more = largest(_MAX_REPLICAS - fewest, lambda more: at(fewest + more - 1).first_token_s > promised_s)
    found = at(fewest + more)
    if found.first_token_s > promised_s:
        raise InvalidArgument(
            f"max_first_token_s {promised_s:g} cannot be kept at any number of replicas: with {found.num_replicas} of "
            f"them the first token comes after {found.first_token_s:.4g} s",
            field="max_first_token_s",
        )
    return found
