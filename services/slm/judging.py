"""Proposals and verdicts: each policy judges its requests' proposals, in the order of the answer.

A step's proposals join the suffixes of their requests. The small model does not wait: it feeds them on
while the router scores them, while a larger tier works on a hand-off, or while KV is reserved. At home the
proposals of a suffix are judged in order, each as soon as all that its policy reads of it is there. Accepted: it is
committed. Held: it is a draft, which a larger tier will judge. Rejected: the request is handed off, and the suffix
stays only if the larger tier writes the same.
"""

import logging
import math
import time
from collections.abc import Iterable, Sequence

from ..engine.step import Step, why_failed
from ..errors import Internal
from ..mesh.wire import router_pb2
from ..model import logprobs_wire
from ..policies.policy import HOME, Policy, Proposals, Verdict
from ..policies.reading import proposals_of, read_features
from .decisions import Decisions
from .journeys import Journeys
from .request import Place, Proposal, Request
from .scoring import ScoreBook

logger = logging.getLogger(__name__)


class Judge:
    """Turns steps and scores into commits, roll-backs and hand-offs."""

    def __init__(self, journeys: Journeys, book: ScoreBook, decisions: Decisions) -> None:
        self._journeys = journeys
        self._book = book
        self._decisions = decisions
        self.router_is_up = False

    def judge(self, step: Step) -> None:
        """Take the proposals of a step; judge what can be judged now, and have the rest scored."""
        table = self._journeys.table
        for sequence in step.failed:
            self._journeys.end(table.of(sequence), why_failed(sequence, "the small model"))
        requests = [table.of(sequence) for sequence in step.sequences]
        readings = read_features(step.logits, [request.policy for request in requests])
        scored: list[int] = []
        made = self._journeys.reports.mark
        for row, request in enumerate(requests):
            logprobs = step.logprobs[row]
            wire = None if logprobs is None else logprobs_wire.to_wire(logprobs)
            proposal = Proposal(readings[row], logprobs=wire, made=made)
            if request.sends_logits:
                # A copy: a view would keep the whole step's logits.
                proposal.logits = step.logits[row, : request.view.num_tokens].float().clone()
            request.propose(step.proposals[row], proposal)
            request.num_steps += 1
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
        else:
            self._journeys.reports.scored(is_replayed=scores.replayed)
        now_ns = time.monotonic_ns()
        for score in asked:
            request = score.request
            if request.place is not Place.DONE and request.generation == score.generation:
                proposal = request.suffix[score.position - request.length]
                proposal.score = score.value
                if proposal.made is not None:
                    request.score_wait_ns += now_ns - proposal.made.ended_ns
        self.settle([score.request for score in asked])

    def settle(self, requests: Iterable[Request]) -> None:
        """Judge the suffixes of requests as far as they can be judged, then let the small model go on."""
        ready = list(dict.fromkeys(requests))
        while judgeable := [r for r in ready if r.place is Place.HOME and r.is_judgeable]:
            for policy, group in _by_policy(judgeable):
                self._judge_next(policy, group)
        for request in ready:
            if request.place is not Place.DONE:
                self._journeys.propose(request)

    def _ask_router(self, rows: list[int], requests: list[Request], step: Step) -> None:
        """Ask for the scores of the last proposals of these rows' requests."""
        if not self.router_is_up:
            for row in rows:
                self.without_router(requests[row])
            return
        whole = len(rows) == len(requests)
        logits = step.logits if whole else step.logits[rows]
        hidden_states = step.hidden_states if whole else step.hidden_states[rows]
        by_scorer: dict[str, list[int]] = {}
        for index, row in enumerate(rows):
            requests[row].usage.num_scored_tokens += 1
            by_scorer.setdefault(requests[row].policy.scorer or "", []).append(index)
        for scorer, own in by_scorer.items():
            self._book.ask(
                scorer,
                [requests[rows[index]] for index in own],
                [step.proposals[rows[index]] for index in own],
                logits if len(own) == len(rows) else logits[own],
                hidden_states if len(own) == len(rows) else hidden_states[own],
            )

    def send_questions(self) -> None:
        """Let the router have what it is to score next, where it has answered all before."""
        self._journeys.out.score_batches += self._book.next_batches()

    def without_router(self, request: Request) -> None:
        """Nobody will judge a request's proposals: it waits for the router; one that is away waits when it is home."""
        if request.place is Place.AWAY:
            request.drop_suffix()
            request.runs_ahead = False
        else:
            self._journeys.stall(request, Place.STALLED_ROUTER)

    def _judge_next(self, policy: Policy, requests: list[Request]) -> None:
        """Judge the first proposal of each request's suffix that the policy has not seen yet."""
        proposals = [request.in_question for request in requests]
        for request, proposal in zip(requests, proposals, strict=True):
            request.usage.num_unscorable_tokens += proposal.score is not None and math.isnan(proposal.score)
            request.view.num_drafts = request.num_held
            self._decisions.prepare(request)
        batch = proposals_of(
            policy,
            HOME,
            [request.view for request in requests],
            [request.token_in_question for request in requests],
            [proposal.reading for proposal in proposals],
            [proposal.score for proposal in proposals if proposal.score is not None] if policy.scorer else [],
        )
        verdicts = self._verdicts(policy, requests, batch)
        for request, proposal, token_id, verdict in zip(requests, proposals, batch.token_ids, verdicts, strict=False):
            self._journeys.obey(request, self._decisions.take(request, proposal, token_id, verdict))

    def _verdicts(self, policy: Policy, requests: list[Request], batch: Proposals) -> Sequence[Verdict]:
        """What a policy says of each proposal; nothing, and the requests end, where it fails."""
        try:
            verdicts = policy.route(batch)
            if len(verdicts) != len(requests):
                raise Internal(f"route gave {len(verdicts)} verdicts for {len(requests)} proposals")
            for verdict in verdicts:
                if reason := _why_not(policy, verdict):
                    raise Internal(f"route {reason}")
        except Exception as error:  # a plug-in may raise anything; it fails its own requests only
            logger.exception("policy %s failed in route", policy.name)
            for request in requests:
                self._journeys.end(request, Internal(f"policy {policy.name} failed: {error}"))
            return []
        return verdicts


def _why_not(policy: Policy, verdict: Verdict) -> str:
    """Why a verdict on the small model's proposal cannot be; empty where it can."""
    if verdict.tier == HOME and (verdict.is_draft or not verdict.keeps):
        return "gave a proposal back to the small model that had made it"
    if verdict.waits and not (verdict.is_draft and verdict.keeps):
        return "waits for more drafts with a proposal that it does not keep as one"
    return (
        "made a draft, and the policy has no verify to judge it"
        if verdict.is_draft and not policy.judges_drafts
        else ""
    )


def _by_policy(requests: list[Request]) -> Iterable[tuple[Policy, list[Request]]]:
    groups: dict[Policy, list[Request]] = {}
    for request in requests:
        groups.setdefault(request.policy, []).append(request)
    return groups.items()
