"""The `routing` block of a reply: who wrote the answer, and what that took.

`policy`, `tokens` and `llm_share` are what the gateway knows itself. The rest, `degraded` apart, is null where
the home gave no account: the gateway ended the answer at a stop string, or the home was lost at the very end.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from ...mesh.wire import common_pb2
from ..generation import Generation
from ..tiers import tier_name


def routing_block(generations: Sequence[Generation]) -> dict[str, Any]:
    """The block for all choices of a reply together."""
    counts = [sum(column) for column in zip_longest(*(g.tier_counts for g in generations), fillvalue=0)]
    known = [generation.usage for generation in generations if generation.usage is not None]
    account = _account(known)
    names = generations[0].plan.tier_names
    num_tokens = sum(counts)
    return {
        "policy": generations[0].plan.policy,
        "mode": known[0].mode or None if known else None,
        "tokens": {tier_name(names, tier): count for tier, count in enumerate(counts)},
        "llm_share": sum(counts[1:]) / num_tokens if num_tokens else 0.0,
        **(account if len(known) == len(generations) else dict.fromkeys(account)),
        "degraded": any(usage.degraded for usage in known),
    }


def usage_block(generations: Sequence[Generation]) -> dict[str, Any]:
    """OpenAI's `usage` for all choices of a reply together; stop tokens count, and a prompt of several choices once."""
    first = [generation for generation in generations if not generation.plan.is_copy]
    num_prompt = sum(generation.plan.num_prompt_tokens for generation in first)
    num_completion = sum(generation.num_tokens for generation in generations)
    known = [generation.usage for generation in first if generation.usage is not None]
    num_cached = sum(usage.num_cached_tokens[0] for usage in known if usage.num_cached_tokens)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }


def _account(usages: Sequence[common_pb2.Usage]) -> dict[str, Any]:
    """What the home says of its work."""
    return {
        "computed_tokens": [
            sum(column) for column in zip_longest(*(u.num_computed_tokens for u in usages), fillvalue=0)
        ],
        "scored_tokens": sum(usage.num_scored_tokens for usage in usages),
        "rejected_tokens": sum(usage.num_rejected_tokens for usage in usages),
        "opinions": {
            "seen": sum(usage.num_opinions for usage in usages),
            "agreed": sum(usage.num_agreed_opinions for usage in usages),
        },
        "drafts": {
            "judged": sum(usage.num_drafts for usage in usages),
            "accepted": sum(usage.num_accepted_drafts for usage in usages),
        },
        "hand_offs": sum(usage.num_hand_offs for usage in usages),
        "confirmed_hand_offs": sum(usage.num_confirmed_hand_offs for usage in usages),
        "ahead_tokens": sum(usage.num_ahead_tokens for usage in usages),
    }
