"""How tiers are called in replies and metrics."""

TIER_NAMES = ("slm", "llm")
"""Names that metrics have labels for; tiers beyond share the last, since their number is not ours to bound."""


def tier_name(tier: int) -> str:
    """Name of a tier in replies."""
    return TIER_NAMES[tier] if tier < len(TIER_NAMES) else f"tier{tier}"
