"""What `bench.methods` measures: each method as it is served, and its trade-off along one parameter."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, eq=False)
class Method:
    """A policy, with the parameters that a request must name and the values that are tried."""

    policy: str
    named: Mapping[str, Any] = field(default_factory=dict)
    """What requests name beside the defaults; only what has none."""
    sweeps: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values by parameter, beside the default: those that let the small model write most come first."""
    judges_drafts: bool = False
    """Whether the large model judges drafts of the small one."""
    has_middle: bool = False
    """Whether it is measured with three models."""

    @property
    def routing(self) -> dict[str, Any]:
        """Of its point in the table."""
        return {"policy": self.policy, **self.named}

    def swept(self, parameter: str) -> list[dict[str, Any]]:
        """`routing` at each value of a parameter."""
        return [{**self.routing, parameter: value} for value in self.sweeps[parameter]]


def _swept(policy: str, parameter: str, *values: Any, **more: Any) -> Method:
    return Method(policy, sweeps=MappingProxyType({parameter: values}), **more)


def _cascade(rule: str, alpha: float, *values: float) -> Method:
    return _swept(f"cascade-{rule}", "alpha", *values, named={"alpha": alpha}, judges_drafts=True)


BASE = Method("llm")
"""What all others are compared with."""
# Values are spread over the range in which the share of the embedded pair changes: quantiles of what the rule
# compares, on held-out solutions. Defaults are not repeated.
METHODS = (
    BASE,
    Method("slm"),
    _swept("random", "share", 0.15, 0.3, 0.5, 0.7, 0.85, named={"share": 0.06}),
    _swept("r2r", "threshold", 0.3, 0.1, 0.03, 0.002),
    _swept("citer", "threshold", 0.6, 0.7, 0.9, 0.998),
    _swept("co-llm", "threshold", 0.99, 0.9, 0.75, 0.15),
    _swept("r-stitch", "threshold", 0.2, 0.1, 0.01, 0.002, 0.001),
    _swept("me", "weights", [0.8, 0.12, 0.08], [0.3, 0.42, 0.28], [0.1, 0.54, 0.36], [0, 0.6, 0.4], has_middle=True),
    _swept("entropy", "threshold", 1.2, 0.8, 0.15, 0.015, 0.006),
    _swept("immediate", "threshold", 2.2, 2.1, 2.0, 1.9),
    _swept("momentum", "threshold", 2.1, 2.0, 1.95, 1.9),
    _swept("rolling", "threshold", 2.2, 2.1, 2.0, 1.9),
    Method("lossless", judges_drafts=True),
    Method("speculative", judges_drafts=True),
    _cascade("chow", 0.1, 0.6, 0.45, 0.01, 0.001),
    _cascade("diff", 0.1, 0.3, 0.2, 0.05, 0.01),
    _cascade("opt", 0.5, 1.0, 0.8, 0.2, 0.05),
    _cascade("v1", 0.1, 0.3, 0.2, 0.05, 0.01),
    _cascade("v2", 0.5, 0.98, 0.85, 0.65, 0.2),
    _cascade("v3", 0.5, 0.9999, 0.9995, 0.98, 0.1),
    Method(
        "bild",
        sweeps=MappingProxyType({"rollback": (14.0, 12.0, 10.0, 1.0), "fallback": (0.1, 0.4, 0.9, 0.99)}),
        judges_drafts=True,
    ),
)
"""All of them, in the order of the tables."""
