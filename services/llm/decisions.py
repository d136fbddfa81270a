"""What policies decide on a visited tier: whether it goes on writing, and which drafts stand.

A policy that raises, or says what cannot be, fails its own visitors and nobody else.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from torch import Tensor

from ..engine.opinions import Past
from ..engine.step import Drafted
from ..errors import AllroadsError, Internal
from ..policies.policy import MAX_EXTRA, Drafts, Judgement, Policy, Verdict
from ..policies.reading import proposals_of, read_features
from .visitor import Visitor

logger = logging.getLogger(__name__)

T = TypeVar("T")

Failures = list[tuple[Visitor, AllroadsError]]
"""Visitors whose policy failed, and how."""


def route_written(
    tier: int, visitors: Sequence[Visitor], token_ids: Sequence[int], logits: Tensor
) -> tuple[list[tuple[Visitor, int, Verdict]], Failures]:
    """What becomes of tokens that this tier proposes, for visitors whose policy routes at tiers.

    Args:
        tier: this tier's number.
        visitors: n visitors.
        token_ids: n proposals.
        logits: float [n, output rows], raw, from which they were drawn.
    """
    decided: list[tuple[Visitor, int, Verdict]] = []
    failed: Failures = []
    readings = read_features(logits, [_policy(visitor) for visitor in visitors])
    for policy, rows in _by_policy(visitors):
        own = [visitors[row] for row in rows]
        for visitor in own:
            visitor.view.position, visitor.view.num_drafts = visitor.sequence.position, 0
        ids = [token_ids[row] for row in rows]
        batch = proposals_of(policy, tier, [v.view for v in own], ids, [readings[row] for row in rows], [])
        verdicts = _ask(policy, "route", partial(policy.route, batch), own, failed)
        for visitor, token_id, verdict in zip(own, ids, verdicts, strict=False):
            reason = _why_not(verdict, tier, visitor)
            if reason:
                failed.append((visitor, _failure(policy, "route", reason)))
            else:
                decided.append((visitor, token_id, verdict))
    return decided, failed


def judge_drafts(drafted: Sequence[tuple[Visitor, Drafted]]) -> tuple[list[tuple[Visitor, Judgement]], Failures]:
    """Which of their drafts stand, and what this tier writes after them."""
    judged: list[tuple[Visitor, Judgement]] = []
    failed: Failures = []
    for policy, indices in _by_policy([visitor for visitor, _ in drafted]):
        own = [drafted[index] for index in indices]
        visitors = [visitor for visitor, _ in own]
        batch = _drafts(own)
        judgements = _ask(policy, "verify", partial(policy.verify, batch), visitors, failed)
        for (visitor, part), judgement in zip(own, judgements, strict=False):
            num_drafts = len(part.logits) - 1
            is_known = judgement.token_id is None or 0 <= judgement.token_id < visitor.view.num_tokens
            if not (0 <= judgement.num_accepted <= num_drafts and is_known and len(judgement.extra) <= MAX_EXTRA):
                failed.append((visitor, _failure(policy, "verify", f"gave {judgement} for {num_drafts} drafts")))
            elif error := _out_of_grammar(visitor, part.start + judgement.num_accepted, judgement.token_id):
                failed.append((visitor, error))
            else:
                judged.append((visitor, judgement))
    return judged, failed


def _drafts(drafted: Sequence[tuple[Visitor, Drafted]]) -> Drafts:
    for visitor, part in drafted:
        visitor.view.position = part.start - visitor.sequence.num_prompt_tokens
        visitor.view.num_drafts = len(part.logits) - 1
    return Drafts(
        requests=[visitor.view for visitor, _ in drafted],
        token_ids=[visitor.sequence.tokens[part.start :] for visitor, part in drafted],
        # Without rows of padding, of which each model may have another number.
        logits=[part.logits[:, : visitor.view.num_tokens] for visitor, part in drafted],
        rows=[
            [Past(visitor.sequence, length) for length in range(part.start, part.start + len(part.logits))]
            for visitor, part in drafted
        ],
        draft_logits=[visitor.sent_draft_logits for visitor, _ in drafted],
    )


def _out_of_grammar(visitor: Visitor, length: int, token_id: int | None) -> AllroadsError | None:
    """Why a policy may not write a token after the first `length` of a sequence; None where it may."""
    sequence = visitor.sequence
    if sequence.matcher is None or token_id is None:
        return None
    if sequence.matcher.allows(sequence.tokens[sequence.num_prompt_tokens : length], token_id):
        return None
    why = f"wrote token {token_id}, which the grammar does not allow: draw tokens by engine.sampling"
    return sequence.matcher.error or _failure(_policy(visitor), "verify", why)


def _why_not(verdict: Verdict, tier: int, visitor: Visitor) -> str:
    """Why a verdict cannot be on a visited tier; empty where it can."""
    if not 0 <= verdict.tier < visitor.view.num_tiers:
        return f"named tier {verdict.tier} of {visitor.view.num_tiers}"
    if verdict.is_draft or (not verdict.keeps and verdict.tier == tier):
        return f"gave {verdict}: a larger tier's token is kept, or dropped for another tier to write"
    return f"gave {len(verdict.extra)} extra numbers" if len(verdict.extra) > MAX_EXTRA else ""


def _ask(
    policy: Policy, what: str, question: Callable[[], Sequence[T]], visitors: Sequence[Visitor], failed: Failures
) -> Sequence[T]:
    try:
        answers = question()
        if len(answers) != len(visitors):
            raise Internal(f"{len(answers)} answers for {len(visitors)} requests")
    except Exception as error:  # a plug-in may raise anything
        logger.exception("policy %s failed in %s", policy.name, what)
        failed += [(visitor, _failure(policy, what, str(error))) for visitor in visitors]
        return []
    return answers


def _failure(policy: Policy, what: str, why: str) -> Internal:
    return Internal(f"policy {policy.name} failed in {what}: {why}")


def _by_policy(visitors: Iterable[Visitor]) -> Iterable[tuple[Policy, list[int]]]:
    groups: dict[Policy, list[int]] = {}
    for index, visitor in enumerate(visitors):
        groups.setdefault(_policy(visitor), []).append(index)
    return groups.items()


def _policy(visitor: Visitor) -> Policy:
    if visitor.policy is None:
        raise Internal(f"visitor {visitor.key} has nothing for a policy to decide")
    return visitor.policy
