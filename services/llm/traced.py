"""What the span of a visitor at its tier says of it: counts."""

from ..mesh.tracing import Attributes
from .visitor import Visitor


def attributes_of(visitor: Visitor) -> Attributes:
    """Of a visitor that does not come back."""
    sequence = visitor.sequence
    return {
        "gen_ai.usage.input_tokens": sequence.num_prompt_tokens,
        "allroads.visits": visitor.num_visits,
        "allroads.length": len(sequence),
        "allroads.positions": sequence.num_positions,
        "allroads.cached_tokens": sequence.num_cached,
    }
