"""What the model of throughput sees, says and does, for Prometheus. Labels are names of tiers, and causes of ours."""

import math
from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from .admission.gathered import LAUNCH_CAUSES, SCORING_WAYS, STEP_WAYS
from .admission.throughput_model import FAULTS, Fault

_SOLVER_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class AdmissionMetrics:
    """Of one gateway."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._thresholds = Gauge(
            "allroads_launch_threshold", "Visits for which a larger tier waits", ["tier"], registry=registry
        )
        fallbacks = Counter(
            "allroads_threshold_fallbacks",
            "Times at which the model of throughput failed and launch thresholds went back to 1",
            ["cause"],
            registry=registry,
        )
        self._fallbacks = {cause: fallbacks.labels(cause) for cause in FAULTS}
        self._num_fallbacks: dict[str, int] = dict.fromkeys(FAULTS, 0)
        self._launches = Counter(
            "allroads_launches",
            "Batches of larger tiers for which hand-offs waited: enough came, nobody else could come, or time was up",
            ["tier", "cause"],
            registry=registry,
        )
        self._steps = Counter(
            "allroads_steps",
            "Steps of a model, and batches of the router: replayed as a CUDA graph, or run operation by operation",
            ["tier", "way"],
            registry=registry,
        )
        self._step_s = Gauge("allroads_step_seconds", "Mean time of a step, of late", ["tier"], registry=registry)
        self._solver_s = Histogram(
            "allroads_solver_seconds", "Time of an answer of the model", registry=registry, buckets=_SOLVER_S
        )
        self._predicted = Gauge(
            "allroads_predicted_tokens_per_s", "By the model, for what is in force; NaN if unknown", registry=registry
        )
        self._measured = Gauge(
            "allroads_measured_tokens_per_s", "Of late, while requests were open; NaN if unknown", registry=registry
        )
        self.show_tokens_per_s(None, None)

    @property
    def num_fallbacks(self) -> Mapping[str, int]:
        """By cause."""
        return self._num_fallbacks

    def count_fallback(self, cause: Fault) -> None:
        """The model failed."""
        self._fallbacks[cause].inc()
        self._num_fallbacks[cause] += 1

    def observe_answer(self, seconds: float) -> None:
        """The model answered."""
        self._solver_s.observe(seconds)

    def show_thresholds(self, names: Sequence[str], thresholds: Sequence[int]) -> None:
        """Those in force, parallel to the names of larger tiers."""
        for name, threshold in zip(names, thresholds, strict=True):
            self._thresholds.labels(name).set(threshold)

    def count_launches(self, name: str, counts: Mapping[str, int]) -> None:
        """A larger tier launched so many batches since the last call; by fields of a report."""
        for cause, field in LAUNCH_CAUSES.items():
            self._launches.labels(name, cause).inc(counts[field])

    def count_steps(self, name: str, counts: Mapping[str, int]) -> None:
        """A tier ran so many steps since the last call; by fields of a report."""
        for way, field in STEP_WAYS.items():
            self._steps.labels(name, way).inc(counts[field])

    def count_scorings(self, counts: Mapping[str, int]) -> None:
        """The router scored so many batches since the last call; by fields of the home's report."""
        for way, field in SCORING_WAYS.items():
            self._steps.labels("router", way).inc(counts[field])

    def show_step(self, name: str, seconds: float | None) -> None:
        """Mean of a tier's steps; None leaves what is there."""
        if seconds is not None:
            self._step_s.labels(name).set(seconds)

    def show_tokens_per_s(self, predicted: float | None, measured: float | None) -> None:
        """Of all requests together; None is unknown."""
        self._predicted.set(math.nan if predicted is None else predicted)
        self._measured.set(math.nan if measured is None else measured)
