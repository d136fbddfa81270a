"""What routing took, by the home's accounts of requests that ended."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge

from ..mesh.wire import common_pb2
from .divergence import MissedDivergence
from .tiers import MAX_TIERS, tier_name


class RoutingMetrics:
    """Counters over all requests, and the rate of missed divergences over recent ones."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._scored = Counter("allroads_scored_tokens", "Proposals that a router scored", registry=registry)
        self._rejected = Counter("allroads_rejected_tokens", "Proposals that it turned down", registry=registry)
        self._unscorable = Counter("allroads_unscorable_tokens", "Proposals whose score was NaN", registry=registry)
        self._degraded = Counter("allroads_degraded_requests", "Answers finished without a tier", registry=registry)
        opinions = Counter(
            "allroads_opinions", "Small model's tokens that the large one saw later", ["agreed"], registry=registry
        )
        self._agreed, self._differed = opinions.labels("true"), opinions.labels("false")
        hand_offs = Counter(
            "allroads_hand_offs", "Hand-offs, and whether they gave the proposal", ["confirmed"], registry=registry
        )
        self._confirmed, self._unconfirmed = hand_offs.labels("true"), hand_offs.labels("false")
        self._ahead = Counter(
            "allroads_ahead_tokens", "Proposals made while a larger tier was at work", registry=registry
        )
        self._cached = Counter(
            "allroads_cached_prompt_tokens", "Prompt tokens whose KV was there already", ["tier"], registry=registry
        )
        drafts = Counter(
            "allroads_drafts",
            "Drafts that a larger model judged, and whether they stood",
            ["accepted"],
            registry=registry,
        )
        self._accepted_drafts, self._refused_drafts = drafts.labels("true"), drafts.labels("false")
        self._missed = MissedDivergence()
        missed_rate = Gauge(
            "allroads_missed_divergence_rate",
            "Share of the small model's recent tokens from which the large one differs, with its 95 % interval",
            ["bound"],
            registry=registry,
        )
        missed_rate.labels("estimate").set_function(lambda: self._missed.rate().estimate)
        missed_rate.labels("low").set_function(lambda: self._missed.rate().low)
        missed_rate.labels("high").set_function(lambda: self._missed.rate().high)

    def observe(self, usage: common_pb2.Usage, names: Sequence[str]) -> None:
        """A request ended, with this account, in a mesh whose tiers have these names."""
        self._scored.inc(usage.num_scored_tokens)
        self._rejected.inc(usage.num_rejected_tokens)
        self._unscorable.inc(usage.num_unscorable_tokens)
        self._degraded.inc(usage.degraded)
        self._agreed.inc(usage.num_agreed_opinions)
        self._differed.inc(usage.num_opinions - usage.num_agreed_opinions)
        self._confirmed.inc(usage.num_confirmed_hand_offs)
        self._unconfirmed.inc(usage.num_hand_offs - usage.num_confirmed_hand_offs)
        self._ahead.inc(usage.num_ahead_tokens)
        self._accepted_drafts.inc(usage.num_accepted_drafts)
        self._refused_drafts.inc(usage.num_drafts - usage.num_accepted_drafts)
        for tier, num_tokens in enumerate(usage.num_cached_tokens[:MAX_TIERS]):
            self._cached.labels(tier_name(names, tier)).inc(num_tokens)
        self._missed.add(usage)
