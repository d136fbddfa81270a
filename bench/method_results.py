"""What `bench.methods` found, as it goes into tables, plot and JSON, and comes back from JSON."""

from dataclasses import asdict, dataclass
from typing import Any

from .method_settings import METHODS, Method


@dataclass(frozen=True)
class Figures:
    """One setting of a method."""

    policy: str
    parameters: dict[str, Any]
    """All of them, defaults included."""
    num_problems: int
    accuracy: float
    accuracy_low: float
    """Of the 95 % interval, as is the next."""
    accuracy_high: float
    llm_share: float
    """Of committed tokens, those that the small model did not write."""
    shares: dict[str, float]
    """Of committed tokens, by tier."""
    llm_positions: float
    """Token positions that the largest model computed, over those of prompts and answers."""
    accepted_drafts: float | None
    """Of those that were judged; None where there were none."""
    tokens_per_s: float
    over_llm: float
    """Its speed over that of the large model alone."""


@dataclass(frozen=True)
class Results:
    """A run."""

    rounds: int
    defaults: dict[str, Figures]
    """By policy, with 8 requests at once."""
    alone: dict[str, Figures]
    """The same with one request at a time, on fewer problems."""
    sweeps: dict[str, dict[str, list[Figures]]]
    """By policy and by the parameter that is varied, with 8 requests at once."""
    skipped: dict[str, str]
    """Why a policy was not measured."""
    environment: dict[str, Any]

    @property
    def methods(self) -> list[Method]:
        """Those that were measured."""
        return [method for method in METHODS if method.policy in self.defaults]

    def curve(self, policy: str, parameter: str) -> list[Figures]:
        """A sweep with the default among it, by the parameter's value."""
        points = [self.defaults[policy], *self.sweeps[policy][parameter]]
        return sorted(points, key=lambda one: one.parameters[parameter])

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Results":
        """The results that became these values."""
        return cls(
            rounds=values["rounds"],
            defaults={name: Figures(**one) for name, one in values["defaults"].items()},
            alone={name: Figures(**one) for name, one in values["alone"].items()},
            sweeps={
                name: {parameter: [Figures(**one) for one in several] for parameter, several in sweeps.items()}
                for name, sweeps in values["sweeps"].items()
            },
            skipped=values["skipped"],
            environment=values["environment"],
        )
