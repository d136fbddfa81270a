"""How tiers are called in replies and metrics: as the home calls them."""

from collections.abc import Sequence

from ..config import MAX_MIDDLE_TIERS

MAX_TIERS = MAX_MIDDLE_TIERS + 2
"""Of a mesh, and so of a metric's labels."""


def tier_name(names: Sequence[str], tier: int) -> str:
    """Name of a tier. One that the mesh did not have when the request came has none but its number."""
    return names[tier] if tier < len(names) else f"tier{tier}"


def are_tier_names(names: Sequence[str]) -> bool:
    """Whether a mesh can have tiers of these names."""
    return 2 <= len(names) <= MAX_TIERS and len(set(names)) == len(names) and all(names)
