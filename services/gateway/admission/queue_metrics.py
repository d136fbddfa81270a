"""What Prometheus learns of the line: how many may run, how long requests waited, and who was sent away and why."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from .limiter import Limiter
from .refusal import REASONS, Reason

_WAITS_S = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)


class QueueMetrics:
    """The line's part of the gateway's metrics."""

    def __init__(self, registry: CollectorRegistry, limiter: Limiter) -> None:
        Gauge("allroads_admission_limit", "Requests that may be in the mesh now", registry=registry).set_function(
            lambda: limiter.limit
        )
        self._wait_s = Histogram(
            "allroads_queue_wait_seconds", "From arrival to the start", registry=registry, buckets=_WAITS_S
        )
        refusals = Counter("allroads_refusals", "Requests that were not let in", ["reason"], registry=registry)
        self._refusals = {reason: refusals.labels(reason) for reason in REASONS}

    def observe_wait(self, seconds: float) -> None:
        """A request started, so long after its arrival."""
        self._wait_s.observe(seconds)

    def count_refusal(self, reason: Reason) -> None:
        """A request was sent away."""
        self._refusals[reason].inc()
