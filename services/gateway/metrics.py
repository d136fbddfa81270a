"""What the gateway tells Prometheus. Labels take few values, all of ours: never what a client sent."""

import math
from collections import deque
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .. import __version__
from ..errors import Code
from ..mesh.tracing import OFF, Tracer
from ..mesh.wire import common_pb2
from .admission.limiter import Limiter
from .admission.queue_metrics import QueueMetrics
from .admission_metrics import AdmissionMetrics
from .home import HomeClient
from .routing_metrics import RoutingMetrics
from .tiers import tier_name

_SHORT_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_LONG_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
_NUM_RECENT_REQUESTS = 256
FINISH_REASONS = ("stop", "length", *(code.value for code in Code))


class Metrics:
    """One gateway's metrics in a registry of their own."""

    def __init__(self, model_name: str, limiter: Limiter, home: HomeClient, tracer: Tracer = OFF) -> None:
        registry = self._registry = CollectorRegistry()
        self._tokens = Counter("allroads_tokens", "Committed tokens by tier", ["tier"], registry=registry)
        self._prompt_tokens = Counter("allroads_prompt_tokens", "Tokens of prompts", registry=registry)
        requests = Counter("allroads_requests", "Requests by how they ended", ["finish_reason"], registry=registry)
        self._requests = {reason: requests.labels(reason) for reason in FINISH_REASONS}
        self._first_token_s = Histogram(
            "allroads_time_to_first_token_seconds", "From arrival", registry=registry, buckets=_LONG_S
        )
        self._inter_token_s = Histogram(
            "allroads_inter_token_latency_seconds", "Mean gap in a piece", registry=registry, buckets=_SHORT_S
        )
        self._end_to_end_s = Histogram(
            "allroads_request_latency_seconds", "From arrival to the end", registry=registry, buckets=_LONG_S
        )
        self._recent: deque[tuple[int, int]] = deque(maxlen=_NUM_RECENT_REQUESTS)
        for name, text, read in (
            ("llm_share", "LLM share of the tokens of recent answers", self._llm_share),
            ("requests_running", "Requests in the mesh", lambda: limiter.num_running),
            ("requests_waiting", "Requests in line", lambda: limiter.num_waiting),
            ("home_ready", "Whether the small model's service is there", lambda: float(home.is_ready)),
            ("kv_tokens_free", "Free tokens in the home's KV pool", lambda: home.load.num_free_kv_tokens),
            ("kv_tokens_total", "Tokens that the home's KV pool holds", lambda: home.load.num_kv_tokens),
            ("threshold", "In force where it is moved to hold the LLM share; NaN elsewhere", _of(home, "threshold")),
            ("routed_share", "Of recent decisions of the default policy, those for a larger model", _of(home, "share")),
            ("target_share", "At which the LLM share is held; NaN where it is not", _of(home, "target_share")),
            ("calibrated_share", "What it was at calibration; NaN where nobody knows", _of(home, "calibrated_share")),
            ("spans_dropped", "Spans of traces that did not reach the collector", lambda: tracer.num_dropped),
            ("score_drift", "PSI of recent scores; over 0.25 they have parted", _of(home, "score_drift")),
        ):
            Gauge(f"allroads_{name}", text, registry=registry).set_function(read)
        self._routing = RoutingMetrics(registry)
        self.queue = QueueMetrics(registry, limiter)
        self.admission = AdmissionMetrics(registry)
        self._home = home
        Gauge("allroads_info", "What is served", ["version", "model"], registry=registry).labels(
            __version__, model_name
        ).set(1)

    def count_tokens(self, tiers: Sequence[int], names: Sequence[str]) -> None:
        """Tokens came, written by these tiers of a mesh whose tiers have these names."""
        for tier in set(tiers):
            self._tokens.labels(tier_name(names, tier)).inc(tiers.count(tier))

    def observe_first_token(self, seconds: float) -> None:
        """The first token came, so long after the request's arrival."""
        self._first_token_s.observe(seconds)

    def observe_gap(self, seconds: float) -> None:
        """Tokens came, so long after those before, per token."""
        self._inter_token_s.observe(seconds)

    def observe_end(
        self, finish_reason: str, seconds: float, *, num_prompt_tokens: int, tier_counts: Sequence[int]
    ) -> None:
        """A request ended; `finish_reason` is one of FINISH_REASONS."""
        self._requests[finish_reason].inc()
        self._end_to_end_s.observe(seconds)
        self._prompt_tokens.inc(num_prompt_tokens)
        self._recent.append((sum(tier_counts[1:]), sum(tier_counts)))

    def count_refusal(self, code: Code) -> None:
        """A request found no place, not even in line."""
        self._requests[code.value].inc()

    def observe_usage(self, usage: common_pb2.Usage, names: Sequence[str]) -> None:
        """The home's account of a request, in a mesh whose tiers have these names."""
        self._routing.observe(usage, names)

    def render(self) -> bytes:
        """The scrape, in Prometheus' text form."""
        for name in self._home.mesh.tier_names if self._home.mesh is not None else ():
            # A tier that has written nothing yet is there with 0: rates begin there.
            self._tokens.labels(name)
        return generate_latest(self._registry)

    def _llm_share(self) -> float:
        num_tokens = sum(total for _, total in self._recent)
        return sum(large for large, _ in self._recent) / num_tokens if num_tokens else 0.0


def _of(home: HomeClient, name: str) -> Callable[[], float]:
    """Reads a number of the home's routing state; NaN where it is absent."""

    def read() -> float:
        known = {field.name: value for field, value in home.load.routing.ListFields()}
        field = home.load.routing.DESCRIPTOR.fields_by_name[name]
        return float(known.get(name, math.nan if field.has_presence else 0.0))

    return read
