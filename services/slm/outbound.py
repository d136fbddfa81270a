"""What one turn of the decode loop has to say, as the messages that will carry it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import AllroadsError
from ..mesh.routing import routing_to_wire
from ..mesh.status import to_wire
from ..mesh.wire import common_pb2 as pb
from ..mesh.wire import model_pb2, router_pb2
from ..model.sampling_wire import sampling_to_wire
from ..policies.policy import Visit
from .request import Proposal, Request

CLIENT_INTERVAL_S = 0.004
"""While there is work, clients are told no more often than this: a message costs as much as a row of a step."""


@dataclass(slots=True)
class Outbound:
    """Messages of one turn: one to each client stream and to each larger tier, batches to the router."""

    clients: dict[int, model_pb2.GenerateResponse] = field(default_factory=dict)
    visits: dict[int, model_pb2.VisitRequest] = field(default_factory=dict)
    """By tier."""
    score_batches: list[router_pb2.ScoreBatch] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether nobody needs to be told anything."""
        return not (self.clients or self.score_batches or self.visits)

    def split(self, *, clients_wait: bool) -> tuple["Outbound", "Outbound"]:
        """What goes out now, and what waits: tokens of clients may, ends and failures and other tiers may not."""
        if not clients_wait:
            return self, Outbound()
        waiting = {key: r for key, r in self.clients.items() if not (r.finished or r.errors)}
        going = {key: r for key, r in self.clients.items() if key not in waiting}
        return Outbound(going, self.visits, self.score_batches), Outbound(waiting)

    def commit(self, request: Request, token_id: int, tier: int, proposal: Proposal) -> None:
        """Tell the client of a committed token."""
        response = self._client(request.stream_id)
        response.sequence_ids.append(request.sequence_id)
        response.num_tokens.append(1)
        response.token_ids.append(token_id)
        response.tiers.append(tier)
        if request.sequence.sampling.num_logprobs is not None:
            response.logprobs.append(proposal.logprobs or pb.TokenLogprobs())
        if request.reports_scores or response.scores:
            # Those of others before it in this message, who did not ask.
            response.scores.extend([math.nan] * (len(response.token_ids) - 1 - len(response.scores)))
            response.scores.append(math.nan if proposal.score is None else proposal.score)

    def finish(self, request: Request, reason: pb.FinishReason.ValueType) -> None:
        """Tell the client that the answer is complete."""
        self._client(request.stream_id).finished.append(
            model_pb2.Finished(sequence_id=request.sequence_id, reason=reason, usage=request.usage)
        )

    def fail(self, stream_id: int, sequence_id: int, error: AllroadsError) -> None:
        """Tell the client that its request failed."""
        self._client(stream_id).errors.append(pb.SequenceError(sequence_id=sequence_id, error=to_wire(error)))

    def hand_off(self, request: Request, visit: Visit, *, draft_logits: pb.TensorRef | None = None) -> None:
        """Send a request to the tier that it visits, with the committed tokens which that has not seen.

        A visit of 0 tokens reserves KV. Drafts go along where the request submits them.
        """
        request.num_visits += 1
        tier = request.visited
        known = request.known_lengths[tier]
        num_unseen = request.length - known
        hand_off = self._visit(tier).hand_offs.add(
            sequence_id=request.number,
            visit_number=request.num_visits,
            prefix_length=known,
            unseen_token_ids=request.sequence.tokens[known : request.length],
            max_tokens=min(visit.max_tokens, request.view.num_left),
            num_opinions_wanted=min(request.num_own, num_unseen) if visit.max_tokens else 0,
            until_token_ids=sorted(visit.until),
            judges=request.is_submitted,
            draft_token_ids=request.drafts if request.is_submitted else (),
            draft_logits=draft_logits,
            extra=visit.extra,
        )
        if not known:
            hand_off.visitor.CopyFrom(
                model_pb2.VisitorParams(
                    request_id=request.request_id,
                    traceparent=request.traceparent,
                    max_length=request.sequence.max_length,
                    num_prompt_tokens=request.sequence.num_prompt_tokens,
                    sampling=sampling_to_wire(request.sequence.sampling),
                    max_tokens=request.view.max_tokens,
                    num_tiers=request.view.num_tiers,
                )
            )
            if request.policy.acts_at_tiers:
                routing = routing_to_wire(request.policy.name, request.view.parameters)
                hand_off.visitor.routing.CopyFrom(routing)
        request.known_lengths[tier] = request.length

    def report_load(self, load: model_pb2.Load) -> None:
        """Tell every client of this turn how full the home is, and how it routes."""
        for response in self.clients.values():
            response.load.CopyFrom(load)

    def report_tiers(self, reports: Sequence[model_pb2.TierReport]) -> None:
        """Tell every client of this turn what the tiers did of late."""
        for response in self.clients.values():
            response.reports.extend(reports)

    def launch(self, threshold: model_pb2.LaunchThreshold) -> None:
        """Tell a larger tier when to launch."""
        self._visit(threshold.tier).launch.CopyFrom(threshold)

    def close_visitor(self, request: Request, tier: int) -> None:
        """Tell a larger tier to forget a request, where it knows it."""
        if request.known_lengths[tier]:
            request.known_lengths[tier] = 0
            self._visit(tier).closed_sequence_ids.append(request.number)

    def _visit(self, tier: int) -> model_pb2.VisitRequest:
        return self.visits.setdefault(tier, model_pb2.VisitRequest())

    def _client(self, stream_id: int) -> model_pb2.GenerateResponse:
        return self.clients.setdefault(stream_id, model_pb2.GenerateResponse())
