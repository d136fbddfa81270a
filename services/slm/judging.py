"""Proposals and verdicts: each policy judges its requests' proposals, in the order of the answer.

A step's proposals join the suffixes of their requests. The small model does not wait: it feeds them on
while the router scores them, while the larger tier works on a hand-off, or while KV is reserved. At home
the first proposal of a suffix is judged as soon as all that its policy reads of it is there. Accepted: it is
committed. Rejected: the request is handed off, and the suffix stays only if the larger tier writes the same.
"""

import logging
import math
from collections.abc import Iterable

from ..engine.engine import Step
from ..engine.features import entropy
from ..engine.sequence import State
from ..errors import Internal, NotANumber
from ..mesh.wire import router_pb2
from ..model import logprobs_wire
from ..policies.policy import HOME, Feature, Policy, Proposals
from .journeys import Journeys
from .request import Place, Proposal, Request
from .scoring import ScoreBook

logger = logging.getLogger(__name__)


class Judge:
    """Turns steps and scores into commits, roll-backs and hand-offs."""

    def __init__(self, journeys: Journeys, book: ScoreBook) -> None:
        self._journeys = journeys
        self._book = book
        self.router_is_up = False

    def judge(self, step: Step) -> None:
        """Take the proposals of a step; judge what can be judged now, and have the rest scored."""
        table = self._journeys.table
        for sequence in step.failed:
            self._journeys.end(table.of(sequence), NotANumber("the small model produced NaN for this request"))
        requests = [table.of(sequence) for sequence in step.sequences]
        asks_entropy = any(Feature.ENTROPY in request.policy.features for request in requests)
        entropies = entropy(step.logits).tolist() if asks_entropy else [math.nan] * len(requests)
        scored: list[int] = []
        for row, request in enumerate(requests):
            logprobs = step.logprobs[row]
            wire = None if logprobs is None else logprobs_wire.to_wire(logprobs)
            request.propose(step.proposals[row], Proposal(entropy=entropies[row], logprobs=wire))
            request.usage.num_ahead_tokens += request.place is Place.AWAY
            if request.policy.scorer is not None:
                scored.append(row)
        if scored:
            self._ask_router(scored, requests, step)
        self.settle(requests)

    def take_scores(self, scores: router_pb2.Scores) -> None:
        """Take what has been scored, whatever the order in which scores come."""
        asked, error = self._book.answered(scores)
        if error is not None:
            logger.warning("the router could not score a batch, the large model writes: %s", error.message)
        for score in asked:
            request = score.request
            if request.place is not Place.DONE and request.generation == score.generation:
                request.suffix[score.position - request.length].score = score.value
        self.settle([score.request for score in asked])

    def settle(self, requests: Iterable[Request]) -> None:
        """Judge the suffixes of requests as far as they can be judged, then let the small model go on."""
        ready = list(dict.fromkeys(requests))
        while judgeable := [r for r in ready if r.place is Place.HOME and r.is_judgeable]:
            for policy, group in _by_policy(judgeable):
                self._judge_first(policy, group)
        for request in ready:
            if request.place is not Place.DONE and request.sequence.state is not State.NEW:
                self._journeys.propose(request)

    def _ask_router(self, rows: list[int], requests: list[Request], step: Step) -> None:
        """Ask for the scores of the last proposals of these rows' requests."""
        if not self.router_is_up:
            for row in rows:
                self.without_router(requests[row])
            return
        asking = [requests[row] for row in rows]
        for request in asking:
            request.usage.num_scored_tokens += 1
        whole = len(rows) == len(requests)
        token_ids = [step.proposals[row] for row in rows]
        logits = step.logits if whole else step.logits[rows]
        hidden_states = step.hidden_states if whole else step.hidden_states[rows]
        self._book.ask(asking, token_ids, logits, hidden_states)

    def send_questions(self) -> None:
        """Let the router have what it is to score next, if it has answered all before."""
        if (batch := self._book.next_batch()) is not None:
            self._journeys.out.score_batches.append(batch)

    def without_router(self, request: Request) -> None:
        """Nobody will judge a request's proposals: it waits for the router; one that is away waits when it is home."""
        if request.place is Place.AWAY:
            request.drop_suffix()
            request.runs_ahead = False
        else:
            self._journeys.stall(request, Place.STALLED_ROUTER)

    def _judge_first(self, policy: Policy, requests: list[Request]) -> None:
        """Judge the first proposal of each request's suffix."""
        first = [request.suffix[0] for request in requests]
        for request, proposal in zip(requests, first, strict=True):
            request.usage.num_unscorable_tokens += proposal.score is not None and math.isnan(proposal.score)
        proposals = Proposals(
            [request.view for request in requests],
            [request.next_token for request in requests],
            entropies=[proposal.entropy for proposal in first] if Feature.ENTROPY in policy.features else [],
            scores=[proposal.score for proposal in first if proposal.score is not None] if policy.scorer else [],
        )
        for request, tier in zip(requests, self._tiers(policy, requests, proposals), strict=False):
            if tier != HOME:
                request.usage.num_rejected_tokens += 1
                self._journeys.hand_off(request)
            elif self._journeys.commit(request, HOME):
                self._journeys.proceed(request)

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
