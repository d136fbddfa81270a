"""Proposals and verdicts: each policy judges its requests' proposals, at once or when they have been scored.

The small model does not wait for scores: a proposal that is to be scored becomes the request's suffix and
is fed on. Accepted: nothing to do. Rejected: the suffix is rolled back and the request handed off.
"""

import logging
import math
from collections.abc import Iterable

from ..engine.engine import Step
from ..engine.features import entropy
from ..errors import Internal, NotANumber
from ..mesh.wire import router_pb2
from ..policies.policy import HOME, Feature, Policy, Proposals
from .journeys import Journeys
from .request import Place, Request
from .scoring import ScoreBook

logger = logging.getLogger(__name__)


class Judge:
    """Turns steps and scores into commits, roll-backs and hand-offs."""

    def __init__(self, journeys: Journeys, book: ScoreBook) -> None:
        self._journeys = journeys
        self._book = book
        self.router_is_up = False

    def judge(self, step: Step) -> None:
        """Judge the proposals of a step, or send them to the router to be scored."""
        table = self._journeys.table
        for sequence in step.failed:
            self._journeys.end(table.of(sequence), NotANumber("the small model produced NaN for this request"))
        rows_of: dict[Policy, list[int]] = {}
        for row, sequence in enumerate(step.sequences):
            rows_of.setdefault(table.of(sequence).policy, []).append(row)
        for policy, rows in rows_of.items():
            requests = [table.of(step.sequences[row]) for row in rows]
            token_ids = [step.proposals[row] for row in rows]
            if policy.scorer is not None:
                self._ask_router(requests, token_ids, rows, step)
                continue
            entropies = entropy(step.logits[rows]).tolist() if Feature.ENTROPY in policy.features else []
            self._take_unscored(policy, requests, token_ids, entropies)

    def take_scores(self, scores: router_pb2.Scores) -> None:
        """Judge what has been scored, in the order of the answer, whatever the order in which scores come."""
        asked, error = self._book.answered(scores)
        if error is not None:
            logger.warning("the router could not score a batch, the large model writes: %s", error.message)
        for score in asked:
            if score.request.place is Place.HOME and score.request.generation == score.generation:
                score.request.early_scores[score.position] = score.value
                score.request.usage.num_unscorable_tokens += math.isnan(score.value)
        ready = list(dict.fromkeys(score.request for score in asked))
        while ready := [r for r in ready if r.place is Place.HOME and r.length in r.early_scores]:
            for policy, requests in _by_policy(ready):
                self._take_scored(policy, requests)

    def _ask_router(self, requests: list[Request], token_ids: list[int], rows: list[int], step: Step) -> None:
        """Put proposals into the suffix and ask for their scores; the small model goes on meanwhile."""
        if not self.router_is_up:
            for request in requests:
                self._journeys.stall(request, Place.STALLED_ROUTER)
            return
        for request, token_id in zip(requests, token_ids, strict=True):
            request.sequence.append([token_id])
            request.usage.num_scored_tokens += 1
            self._journeys.propose(request)
        whole = len(rows) == len(step.sequences)
        logits = step.logits if whole else step.logits[rows]
        hidden_states = step.hidden_states if whole else step.hidden_states[rows]
        self._journeys.out.score_batches.append(self._book.ask(requests, token_ids, logits, hidden_states))

    def _take_unscored(
        self, policy: Policy, requests: list[Request], token_ids: list[int], entropies: list[float]
    ) -> None:
        """Judge proposals that are in no suffix yet."""
        proposals = Proposals([request.view for request in requests], token_ids, entropies=entropies)
        for request, token_id, tier in zip(requests, token_ids, self._tiers(policy, requests, proposals), strict=False):
            if tier != HOME:
                self._reject(request)
                continue
            request.sequence.append([token_id])
            if self._journeys.commit(request, token_id, HOME):
                self._journeys.proceed(request)

    def _take_scored(self, policy: Policy, requests: list[Request]) -> None:
        """Judge the first proposal of each request's suffix, whose score has come."""
        token_ids = [request.sequence.tokens[request.length] for request in requests]
        scores = [request.early_scores.pop(request.length) for request in requests]
        proposals = Proposals([request.view for request in requests], token_ids, scores=scores)
        for request, token_id, tier in zip(requests, token_ids, self._tiers(policy, requests, proposals), strict=False):
            if tier != HOME:
                self._reject(request)
            elif self._journeys.commit(request, token_id, HOME):
                self._journeys.propose(request)

    def _reject(self, request: Request) -> None:
        request.usage.num_rejected_tokens += 1
        request.drop_suffix()
        self._journeys.hand_off(request)

    def _tiers(self, policy: Policy, requests: list[Request], proposals: Proposals) -> list[int]:
        """Where a policy sends each proposal; nowhere, and the requests end, where it fails."""
        try:
            tiers = policy.route(proposals)
            if len(tiers) != len(requests) or not policy.reach.issuperset(tiers):
                raise Internal(f"route gave the tiers {tiers} for {len(requests)} proposals")
        except Exception as error:  # a plug-in may raise anything; it fails its own requests only
            logger.exception("policy %s failed in route", policy.name)
            for request in requests:
                self._journeys.end(request, Internal(f"policy {policy.name} failed: {error}"))
            return []
        return tiers


def _by_policy(requests: list[Request]) -> Iterable[tuple[Policy, list[Request]]]:
    groups: dict[Policy, list[Request]] = {}
    for request in requests:
        groups.setdefault(request.policy, []).append(request)
    return groups.items()
