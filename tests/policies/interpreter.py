"""Runs a policy on one request by the words of its interface: plain transformers, no mesh, one step at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from allroads.engine.features import entropy, max_probability, top_logits
from allroads.engine.sampling import SamplingParams
from allroads.policies.policy import HOME, NUM_TOP_LOGITS, Feature, Policy, Proposals, RequestView, Return, Verdict
from allroads.router.checkpoint import load_router
from allroads.router.head_checkpoint import load_head
from torch import Tensor
from transformers import PreTrainedModel

from ..oracle import last_outputs
from .views import draft_of

Score = Callable[[Tensor, Tensor, int], float]
"""(logits [V], hidden [H], proposal) -> score."""


def load_scores(directory: Path) -> dict[str, Score]:
    """The scorers of a tiny pair."""
    router = load_router(directory / "router", directory / "slm")

    def r2r(logits: Tensor, hidden: Tensor, token_id: int) -> float:
        top = top_logits(logits[None], router.classifier.arguments.logits_size)
        return float(router.classifier(hidden[None], router.embedding[token_id][None], top).sigmoid())

    def head(name: str) -> Score:
        network = load_head(name, directory / name, directory / "slm").network
        return lambda logits, hidden, token_id: float(network(hidden[None]).sigmoid())

    return {"r2r": r2r, "citer": head("citer"), "co-llm": head("co-llm")}


@dataclass
class Run:
    """One request, greedy."""

    policy: Policy
    view: RequestView
    prompt: list[int]
    models: Sequence[PreTrainedModel]
    scores: dict[str, Score]
    stop_token_ids: frozenset[int]
    token_ids: list[int] = field(default_factory=list)
    tiers: list[int] = field(default_factory=list)
    num_passes: int = 0
    """Of verification."""

    @torch.inference_mode()
    def finish(self) -> "Run":
        """Write the answer."""
        while not self._is_over:
            ahead = self.policy.ahead(self.view)
            if ahead == HOME:
                self._commit(int(self._logits(HOME).argmax()), HOME)
            elif ahead is not None:
                self._visit(ahead)
            else:
                self._propose()
        return self

    @property
    def _is_over(self) -> bool:
        self.view.position = len(self.token_ids)
        return not self.view.num_left or bool(self.token_ids and self.token_ids[-1] in self.stop_token_ids)

    def _commit(self, token_id: int, tier: int) -> None:
        self.token_ids.append(token_id)
        self.tiers.append(tier)

    def _propose(self) -> None:
        drafts: list[int] = []
        small: list[Tensor] = []
        while True:
            logits = self._logits(HOME, drafts)
            token_id = int(logits.argmax())
            self.view.num_drafts = len(drafts)
            verdict = self._route(HOME, logits, token_id, drafts)
            if not verdict.is_draft:
                assert not drafts
                return self._commit(token_id, HOME) if verdict.keeps else self._visit(verdict.tier)
            if verdict.keeps:
                drafts.append(token_id)
                small.append(logits)
            may_go_on = len(drafts) < self.view.num_left and token_id not in self.stop_token_ids
            if not (verdict.waits and may_go_on):
                return self._judge(verdict.tier, drafts, small)

    def _judge(self, tier: int, drafts: list[int], small: list[Tensor]) -> None:
        self.num_passes += 1
        self.view.num_drafts = len(drafts)
        large = torch.stack([self._logits(tier, drafts[:count]) for count in range(len(drafts) + 1)])
        wanted = torch.stack(small) if self.policy.wants_draft_logits(self.view) else None
        (judgement,) = self.policy.verify(draft_of(self.view, drafts, large, wanted, SamplingParams(temperature=0.0)))
        for token_id in drafts[: judgement.num_accepted]:
            self._commit(token_id, HOME)
        written = [] if judgement.token_id is None or self._is_over else [judgement.token_id]
        for token_id in written:
            self._commit(token_id, tier)
        returned = Return(tier, written, num_drafts=len(drafts), num_accepted=judgement.num_accepted)
        assert self.policy.receive(self.view, returned) == len(written)

    def _visit(self, tier: int) -> None:
        for _ in range(self.policy.send(self.view, tier).max_tokens):
            logits = self._logits(tier)
            token_id = int(logits.argmax())
            verdict = self._route(tier, logits, token_id, []) if self.policy.routes_at_tiers else None
            assert verdict is None or verdict.keeps
            self._commit(token_id, tier)
            if self._is_over or (verdict is not None and verdict.tier == HOME):
                return

    def _route(self, tier: int, logits: Tensor, token_id: int, drafts: list[int]) -> Verdict:
        wanted = self.policy.features
        batch = Proposals([self.view], [token_id], tier=tier)
        if Feature.ENTROPY in wanted:
            batch.entropies.extend(entropy(logits[None]).tolist())
        if Feature.MAX_PROBABILITY in wanted:
            batch.max_probabilities.extend(max_probability(logits[None]).tolist())
        if Feature.TOP_LOGITS in wanted:
            batch.top_logits.extend(top_logits(logits[None], NUM_TOP_LOGITS).tolist())
        if self.policy.scorer is not None:
            hidden = self._outputs(tier, drafts)[1]
            batch.scores.append(self.scores[self.policy.scorer](logits, hidden, token_id))
        (verdict,) = self.policy.route(batch)
        return verdict

    def _logits(self, tier: int, drafts: Sequence[int] = ()) -> Tensor:
        return self._outputs(tier, drafts)[0]

    def _outputs(self, tier: int, drafts: Sequence[int]) -> tuple[Tensor, Tensor]:
        logits, hidden = last_outputs(self.models[tier], [[*self.prompt, *self.token_ids, *drafts]])
        return logits[0, : self.view.num_tokens], hidden[0]
