"""Every policy with parameters that have several models write, and three models that are alike enough for it."""

from collections.abc import Mapping
from pathlib import Path

from allroads.policies.policy import Policy

from ..doubles.tiny_pair import write_tiny_pair
from .views import Value, view

CASES: list[tuple[str, dict[str, Value]]] = [
    ("slm", {}),
    ("llm", {}),
    ("random", {"share": 0.4}),
    ("me", {"weights": [0.5, 0.3, 0.2]}),
    ("entropy", {"threshold": 2.0}),
    ("r2r", {"threshold": 0.5}),
    ("citer", {"threshold": 0.5}),
    ("co-llm", {"threshold": 0.5}),
    ("r-stitch", {"threshold": 0.3}),
    ("immediate", {"threshold": 2.227}),
    ("immediate", {"threshold": 2.21, "epistemic": 0.115, "entropy": 1.5}),
    ("momentum", {"threshold": 2.228}),
    ("rolling", {"threshold": 2.227, "entropy": 1.0}),
    ("speculative", {}),
    ("lossless", {"adaptive": 0, "draft_tokens": 3}),
    ("lossless", {"draft_tokens": 16, "draft_cost": 0.01}),
    ("bild", {"fallback": 0.3, "rollback": 2.0, "draft_tokens": 4}),
    ("cascade-chow", {"alpha": 0.6}),
    ("cascade-diff", {"alpha": 0.0}),
    ("cascade-opt", {"alpha": -0.1}),
    ("cascade-v1", {"alpha": -0.05}),
    ("cascade-v2", {"alpha": 0.1}),
    ("cascade-v3", {"alpha": 0.5}),
]


def write_three_models(path: Path) -> None:
    """Write `slm`, `mlm`, `llm` and the scorers; the large model is much like the small one."""
    write_tiny_pair(path, likeness=0.7)
    write_tiny_pair(path / "other", seed=9)
    (path / "mlm").symlink_to(path / "other" / "llm")


def all_parameters(policy: Policy, given: Mapping[str, Value]) -> dict[str, Value]:
    """Those of a case, and defaults for the others."""
    resolved = view(policy, num_tiers=3, given=dict(given)).parameters
    return {name: values if len(values) > 1 else values[0] for name, values in resolved.items()}
