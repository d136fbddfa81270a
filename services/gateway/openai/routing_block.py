"""The `routing` block of a reply: who wrote the answer, and what that took.

`tokens` and `llm_share` are the gateway's own count of committed tokens. `computed_tokens`,
`scored_tokens` and `rejected_tokens` are the home's account of its work; they are null where the gateway
ended the answer at a stop string, or the home was lost at the very end.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from ..generation import Generation
from ..metrics import tier_name


def routing_block(generations: Sequence[Generation]) -> dict[str, Any]:
    """The block for all choices of a reply together."""
    counts = [sum(column) for column in zip_longest(*(g.tier_counts for g in generations), fillvalue=0)]
    usages = [generation.usage for generation in generations]
    known = [usage for usage in usages if usage is not None]
    is_known = len(known) == len(usages)
    computed = [sum(column) for column in zip_longest(*(u.num_computed_tokens for u in known), fillvalue=0)]
    num_tokens = sum(counts)
    return {
        "policy": generations[0].plan.policy,
        "tokens": {tier_name(tier): count for tier, count in enumerate(counts)},
        "llm_share": sum(counts[1:]) / num_tokens if num_tokens else 0.0,
        "computed_tokens": computed if is_known else None,
        "scored_tokens": sum(usage.num_scored_tokens for usage in known) if is_known else None,
        "rejected_tokens": sum(usage.num_rejected_tokens for usage in known) if is_known else None,
        "degraded": any(usage.degraded for usage in known),
    }


def usage_block(generations: Sequence[Generation]) -> dict[str, int]:
    """OpenAI's `usage` for all choices of a reply together; stop tokens count."""
    num_prompt = sum(generation.plan.num_prompt_tokens for generation in generations)
    num_completion = sum(generation.num_tokens for generation in generations)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
    }
