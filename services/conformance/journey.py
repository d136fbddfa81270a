"""The sequential definition of a policy: what becomes of a request, one token after the other.

Nothing is done ahead and nothing lags. Each decision is made on what is committed, and each model computes the whole
text anew. The mesh may do it in any other way, as long as the answer is this one.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from ..engine.features import top_logits
from ..engine.sampling import SamplingParams, sample
from ..errors import Internal
from ..mesh.status import to_wire
from ..policies.policy import (
    HOME,
    MAX_DRAFTS,
    MAX_EXTRA,
    Drafts,
    Judgement,
    Policy,
    RequestView,
    Return,
    Verdict,
    Visit,
)
from ..policies.reading import proposals_of, read_features
from ..router.scorer import Scorer
from .question import Answer, Question
from .slow_models import Output, Pass, Work

T = TypeVar("T")

Steps = Generator[Pass, Output, T]
"""A part of a request's way: asks for passes, and comes to a result."""

_MAX_IDLE_MOVES = 200
"""Passes without a committed token after which a request is taken to go round in circles."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A place in a text, as sampling sees it."""

    sampling: SamplingParams
    tokens: list[int]
    num_prompt_tokens: int

    @property
    def position(self) -> int:
        """Place in the answer of the token that comes next."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def matcher(self) -> None:
        """Questions have no grammar."""
        return None


@dataclass(frozen=True, slots=True)
class _Draft:
    """A proposal that a larger model is to judge."""

    token_id: int
    logits: Tensor
    """float32 [vocabulary], the small model's, raw."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What a larger model gives back at once."""

    token_ids: list[int]
    accepted: list[int] = field(default_factory=list)
    """Drafts that stand."""
    ends_visit: bool = False
    next_tier: int = HOME
    extra: tuple[float, ...] = ()


class Journey:
    """One request, from its prompt to its end."""

    def __init__(
        self,
        question: Question,
        policy: Policy,
        scorer: Scorer | None,
        *,
        num_tiers: int,
        num_tokens: int,
        eos_token_ids: frozenset[int],
    ) -> None:
        self.answer = Answer()
        self._question, self._policy, self._scorer = question, policy, scorer
        self._sampling = question.sampling(eos_token_ids)
        self._tokens = list(question.prompt)
        self._views = [self._view(num_tiers, num_tokens) for _ in range(num_tiers)]
        self._is_asked = False
        self._is_over = False
        self._idle_moves = 0

    def work(self) -> Work:
        """The request's way through the tiers. What the policy raises ends it, and is in the answer."""
        try:
            policy, view = self._policy, self._views[HOME]
            policy.check(view)
            self._reach = policy.reach(view)
            self._sends_logits = policy.wants_draft_logits(view)
            writer = HOME
            drafts: list[_Draft] | None = None
            while not self._is_over:
                if writer == HOME:
                    writer, drafts = yield from self._at_home()
                else:
                    writer = yield from self._visit(writer, drafts)
                    drafts = None
        except Exception as error:  # a plug-in may raise anything
            reason = error if isinstance(error, Internal) else Internal(f"{type(error).__name__}: {error}")
            self.answer.error = to_wire(reason)

    def _at_home(self) -> Steps[tuple[int, list[_Draft] | None]]:
        """The small model writes until another tier's turn comes: which, and the drafts that it is to judge."""
        policy, view = self._policy, self._views[HOME]
        if policy.scorer is None and not self._is_asked:
            self._is_asked = True
            writer = policy.ahead(view)
            if writer:
                return self._reachable(writer), None
        self._reachable(HOME)
        drafts: list[_Draft] = []
        while True:
            text = self._tokens + [draft.token_id for draft in drafts]
            output = yield self._pass(HOME, text)
            token_id = self._drawn(output, text)
            view.num_drafts = len(drafts)
            verdict = self._routed(HOME, token_id, output)
            self._reachable(verdict.tier)
            if verdict.tier == HOME and (verdict.is_draft or not verdict.keeps):
                raise Internal("route gave a proposal back to the small model that had made it")
            if verdict.keeps:
                drafts.append(_Draft(token_id, output.logits[0, : view.num_tokens]))
            if not verdict.is_draft:
                self._commit([draft.token_id for draft in drafts], HOME)
                return verdict.tier, None
            if not (verdict.waits and len(drafts) < MAX_DRAFTS and self._can_draft(drafts)):
                return verdict.tier, drafts

    def _visit(self, tier: int, drafts: list[_Draft] | None) -> Steps[int]:
        """A larger model judges drafts, where there are any to judge, and writes. Who comes after it."""
        view = self._views[HOME]
        view.num_drafts = len(drafts or ())
        visit = _checked(self._policy.send(view, tier))
        self._views[tier].extra = visit.extra
        num_left = min(visit.max_tokens, view.num_left)
        while True:
            if drafts is None:
                part = yield from self._written(tier)
            else:
                part = yield from self._judged(tier, drafts, num_left)
            num_left = min(num_left, view.num_left - len(part.accepted)) - len(part.token_ids)
            ends = self._sampling.stop_token_ids | visit.until
            is_over = part.ends_visit or num_left <= 0 or not ends.isdisjoint(part.token_ids)
            returned = Return(
                tier,
                part.token_ids,
                is_over=is_over,
                num_drafts=len(drafts or ()),
                num_accepted=len(part.accepted),
                extra=part.extra,
            )
            drafts = None
            kept = self._policy.receive(view, returned)
            self._commit(part.accepted, HOME)
            self._commit(part.token_ids[:kept], tier)
            if self._is_over:
                return HOME
            if is_over or kept < len(part.token_ids):
                return self._reachable(part.next_tier)

    def _written(self, tier: int) -> Steps[_Part]:
        """A token that a larger model writes, if its policy lets it stand."""
        output = yield self._pass(tier, self._tokens)
        token_id = self._drawn(output, self._tokens)
        if not self._policy.routes_at_tiers:
            return _Part([token_id])
        there = self._views[tier]
        there.position, there.num_drafts = self._views[HOME].position, 0
        verdict = self._routed(tier, token_id, output)
        ends_visit = verdict.tier != tier
        return _Part(
            [token_id] if verdict.keeps else [],
            ends_visit=ends_visit,
            next_tier=verdict.tier if ends_visit else HOME,
            extra=verdict.extra,
        )

    def _judged(self, tier: int, drafts: list[_Draft], num_left: int) -> Steps[_Part]:
        """Drafts that stand, and a token that the larger model adds while it may write `num_left`."""
        text = self._tokens + [draft.token_id for draft in drafts]
        output = yield self._pass(tier, text, len(drafts) + 1)
        judgement = self._judgement(tier, drafts, text, output)
        accepted = text[len(self._tokens) :][: judgement.num_accepted]
        room = min(num_left, self._views[HOME].num_left - len(accepted))
        is_at_end = bool(accepted) and accepted[-1] in self._sampling.stop_token_ids
        token_id = None if is_at_end or not room else judgement.token_id
        written = [] if token_id is None else [token_id]
        return _Part(written, accepted=accepted, ends_visit=not written, extra=judgement.extra)

    def _judgement(self, tier: int, drafts: list[_Draft], text: list[int], output: Output) -> Judgement:
        view = self._views[tier]
        view.position, view.num_drafts = self._views[HOME].position, len(drafts)
        sent = [draft.logits for draft in drafts]
        (judgement,) = self._policy.verify(
            Drafts(
                requests=[view],
                token_ids=[[draft.token_id for draft in drafts]],
                logits=[output.logits[:, : view.num_tokens]],
                rows=[[self._place(text[:end]) for end in range(len(self._tokens), len(text) + 1)]],
                draft_logits=[torch.stack(sent) if sent else torch.empty(0, view.num_tokens)]
                if self._sends_logits
                else [None],
            )
        )
        is_known = judgement.token_id is None or 0 <= judgement.token_id < view.num_tokens
        if not (0 <= judgement.num_accepted <= len(drafts) and is_known and len(judgement.extra) <= MAX_EXTRA):
            raise Internal(f"verify gave {judgement} for {len(drafts)} drafts")
        return judgement

    def _routed(self, tier: int, token_id: int, output: Output) -> Verdict:
        """What the policy says of a proposal of a tier."""
        policy, view = self._policy, self._views[tier]
        scores = []
        if tier == HOME and self._scorer is not None:
            top = top_logits(output.logits, self._scorer.facts.num_top_logits)
            scores = self._scorer.score(top, output.hidden_states, torch.tensor([token_id])).tolist()
        readings = read_features(output.logits, [policy])
        (verdict,) = policy.route(proposals_of(policy, tier, [view], [token_id], readings, scores))
        if tier != HOME and (
            verdict.is_draft
            or (not verdict.keeps and verdict.tier == tier)
            or not 0 <= verdict.tier < view.num_tiers
            or len(verdict.extra) > MAX_EXTRA
        ):
            raise Internal(f"route gave {verdict} on tier {tier}")
        return verdict

    def _pass(self, tier: int, text: list[int], count: int = 1) -> Pass:
        self._idle_moves += 1
        if self._idle_moves > _MAX_IDLE_MOVES:
            raise Internal(f"the policy goes round in circles: {_MAX_IDLE_MOVES} passes and no token committed")
        return Pass(tier, text, count)

    def _commit(self, token_ids: list[int], tier: int) -> None:
        """Make tokens part of the answer, up to its end."""
        view = self._views[HOME]
        for token_id in token_ids:
            if self._is_over:
                return
            self._tokens.append(token_id)
            self.answer.token_ids.append(token_id)
            self.answer.tiers.append(tier)
            view.position += 1
            self._is_asked, self._idle_moves = False, 0
            self.answer.is_stopped = token_id in self._sampling.stop_token_ids
            self._is_over = self.answer.is_stopped or view.num_left <= 0

    def _can_draft(self, drafts: list[_Draft]) -> bool:
        """Whether the small model can add a draft of use."""
        ends = bool(drafts) and drafts[-1].token_id in self._sampling.stop_token_ids
        return len(drafts) < self._views[HOME].num_left and not ends

    def _drawn(self, output: Output, text: list[int]) -> int:
        return int(sample(output.logits, [self._place(text)]))

    def _place(self, text: list[int]) -> _Place:
        return _Place(self._sampling, text, len(self._question.prompt))

    def _reachable(self, tier: int) -> int:
        if tier not in self._reach:
            raise Internal(f"it named tier {tier}, its reach is {sorted(self._reach)}")
        return tier

    def _view(self, num_tiers: int, num_tokens: int) -> RequestView:
        return RequestView(
            seed=self._sampling.seed,
            parameters=self._question.parameters,
            max_tokens=self._question.max_tokens,
            num_tiers=num_tiers,
            num_tokens=num_tokens,
            is_greedy=self._sampling.is_greedy,
        )


def _checked(visit: Visit) -> Visit:
    if visit.max_tokens < 1 or len(visit.extra) > MAX_EXTRA:
        raise Internal(f"send gave {visit.max_tokens} tokens and {len(visit.extra)} extra numbers")
    return visit
