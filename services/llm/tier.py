"""The decode loop of a larger tier: take hand-offs, extend, write, give back.

A hand-off says which prefix the tier is taken to hold and brings the tokens after it, so what both ends
know cannot drift apart unnoticed: a tier that holds less answers OUT_OF_STEP and is sent everything.
One that asks for no token is a reservation: KV is set aside, and the prompt may be computed ahead. One that brings
drafts begins with their judgement by the request's policy, which may also decide when a visit is over.
"""

import logging
import sys
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..engine.engine import Engine
from ..engine.logprobs import TokenLogprobs, token_logprobs
from ..engine.opinions import Past
from ..engine.sequence import Sequence, State
from ..engine.step import Drafted, Step, why_failed
from ..engine.thread import BUSY_S, IDLE_S
from ..errors import AllroadsError, Code, Internal, InvalidArgument, OutOfStep
from ..mesh.status import to_wire
from ..mesh.tracing import OFF, OpenSpan, Tracer
from ..mesh.wire import common_pb2 as pb
from ..mesh.wire import model_pb2
from ..model import logprobs_wire
from ..model.description import load_of
from ..model.launch_wishes import LaunchRule, LaunchWishes
from ..model.sampling_wire import sampling_from_wire
from ..model.step_clock import Arrival, StepClock
from ..policies.policy import HOME, MAX_EXTRA, Judgement, RequestView
from ..policies.registry import PolicyRegistry
from .decisions import Failures, judge_drafts, route_written
from .opinion_log import OpinionLog
from .prompts import LeavePrompt, PromptReader, ReadPrompt
from .step_report import StepReports
from .traced import attributes_of
from .visitor import Visitor, VisitorKey

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Visit(Arrival):
    """A message of a home's stream."""

    stream_id: int
    request: model_pb2.VisitRequest
    draft_logits: dict[int, Tensor | AllroadsError] = field(default_factory=dict)
    """Of the drafts of hand-off number i of the message, read already, or why they cannot be."""
    spans: dict[int, OpenSpan] = field(default_factory=dict)
    """Of the sequence that hand-off number i of the message opens, where there are traces."""


@dataclass(frozen=True, slots=True)
class StreamClosed(Arrival):
    """A home is gone, and all its visitors with it."""

    stream_id: int


@dataclass(frozen=True, slots=True, eq=False)
class Call(Arrival):
    """Something else that is to be done in the decode thread. It raises nothing."""

    run: Callable[[], None]


Command = Visit | StreamClosed | ReadPrompt | LeavePrompt | Call
Responses = dict[int, model_pb2.VisitResponse]
"""What one turn has to say, by stream."""


class Tier:
    """Owns the visitors. Belongs to the decode thread."""

    def __init__(
        self,
        engine: Engine,
        policies: PolicyRegistry,
        deliver: Callable[[Responses], None],
        *,
        number: int = 1,
        opinions: bool = True,
        opinion_log: OpinionLog | None = None,
        tracer: Tracer = OFF,
    ) -> None:
        self._engine = engine
        self._policies = policies
        self._number = number
        self._deliver = deliver
        self._opinions = opinions
        self._opinion_log = opinion_log
        self._tracer = tracer
        self._visitors: dict[VisitorKey, Visitor] = {}
        self._by_sequence: dict[Sequence, Visitor] = {}
        self._prompts = PromptReader(engine)
        self._responses: Responses = {}
        self._launches = LaunchWishes()
        self._clock = StepClock()
        self._reports = StepReports(self._clock, engine.scheduler.gate, engine.launch_counts)

    @property
    def num_visitors(self) -> int:
        """Sequences of homes that are open here."""
        return len(self._visitors)

    def turn(self, commands: list[Command]) -> float:
        """Take commands, run one step, deliver what came of it. For how many seconds nothing is to be done."""
        self._clock.begin(commands)
        for command in commands:
            self._obey(command)
        for sequence in self._engine.admit():
            if sequence not in self._prompts:
                self._admitted(self._by_sequence[sequence])
        step = self._engine.step()
        if step is not None:
            for sequence in step.wanted:
                if sequence not in self._prompts:
                    self._reports.took_part(self._by_sequence[sequence])
            self._write(step)
        self._clock.end(is_busy=step is not None)
        if step is not None:
            self._reports.stepped(len(step.wanted), step.num_positions)
        if self._responses:
            self._tell()
        if step is not None:
            return BUSY_S
        held_s = self._engine.held_s
        return IDLE_S if held_s is None else held_s

    def _tell(self) -> None:
        """Deliver what there is to say."""
        load = load_of(self._engine)
        for response in self._responses.values():
            response.load.CopyFrom(load)
        self._reports.attach(self._responses)
        self._deliver(self._responses)
        self._responses = {}

    def _obey(self, command: Command) -> None:
        match command:
            case Visit(stream_id, request, draft_logits, spans):
                for index, hand_off in enumerate(request.hand_offs):
                    self._take(stream_id, hand_off, draft_logits.get(index), spans.get(index), command.arrived_ns)
                if request.HasField("launch"):
                    self._wish(stream_id, request.launch)
                # After the hand-offs: a request may be handed off and end within one turn of its home.
                for number in request.closed_sequence_ids:
                    self._close((stream_id, number))
            case StreamClosed(stream_id):
                for key in [key for key in self._visitors if key[0] == stream_id]:
                    self._close(key)
                self._launches.forget(stream_id)
                self._apply_launches()
            case ReadPrompt():
                self._prompts.take(command)
            case LeavePrompt(prompt):
                self._prompts.leave(prompt)
            case Call(run):
                run()

    def _wish(self, stream_id: int, wish: model_pb2.LaunchThreshold) -> None:
        """A home says when we are to launch."""
        if wish.tier != self._number:
            logger.warning("a launch threshold for tier %d came to tier %d: left aside", wish.tier, self._number)
            return
        self._launches.wish(stream_id, LaunchRule.from_wire(wish))
        self._apply_launches()

    def _apply_launches(self) -> None:
        rule = self._launches.in_force
        self._engine.launch(rule.num_visits, rule.flush_s)

    def _take(
        self,
        stream_id: int,
        hand_off: model_pb2.HandOff,
        draft_logits: Tensor | AllroadsError | None,
        span: OpenSpan | None,
        arrived_ns: int,
    ) -> None:
        """Start a visit."""
        key = (stream_id, hand_off.sequence_id)
        try:
            visitor = self._visitors.get(key)
            self._check_hand_off(hand_off, draft_logits)
            if hand_off.prefix_length == 0:
                if visitor is not None:
                    self._close(key)
                visitor = self._open(key, hand_off)
                visitor.span = span
            elif visitor is None or hand_off.prefix_length > len(visitor.sequence):
                known = 0 if visitor is None else len(visitor.sequence)
                raise OutOfStep(f"{hand_off.prefix_length} tokens are taken to be here, {known} are")
            else:
                self._extend(visitor, hand_off)
            self._begin(visitor, hand_off)
            visitor.arrived_ns, visitor.num_steps = arrived_ns, 0
        except AllroadsError as error:
            self._fail(key, error)
            return
        visitor.sent_draft_logits = draft_logits if isinstance(draft_logits, Tensor) else None

    def _begin(self, visitor: Visitor, hand_off: model_pb2.HandOff) -> None:
        """What this visit may do, its sequence being up to date."""
        sequence = visitor.sequence
        visitor.visit_number = hand_off.visit_number
        visitor.num_visits += bool(hand_off.max_tokens)
        visitor.num_left = min(hand_off.max_tokens, sequence.max_length - len(sequence))
        visitor.until = frozenset(hand_off.until_token_ids)
        visitor.judges = hand_off.judges
        visitor.next_tier = HOME
        visitor.view.extra = tuple(hand_off.extra)
        sequence.is_ahead = not (hand_off.max_tokens or hand_off.judges)
        if self._opinions and hand_off.num_opinions_wanted:
            sequence.opinions_from = len(sequence) - hand_off.num_opinions_wanted
        if visitor.judges:
            if visitor.policy is None:
                raise InvalidArgument("drafts come with the policy that judges them", field="visitor")
            sequence.draft(list(hand_off.draft_token_ids))
        if not sequence.is_ahead and sequence.num_computed >= min(len(sequence), sequence.drafts_from):
            sequence.rewind()

    def _admitted(self, visitor: Visitor) -> None:
        stream_id, number = visitor.key
        response = self._response(stream_id)
        response.admitted_sequence_ids.append(number)
        response.num_cached_tokens.append(visitor.sequence.num_cached)

    def _open(self, key: VisitorKey, hand_off: model_pb2.HandOff) -> Visitor:
        params = hand_off.visitor
        tokens = list(hand_off.unseen_token_ids)
        self._check(tokens, room=params.max_length)
        if not tokens or params.num_prompt_tokens > len(tokens):
            raise InvalidArgument("a visit that opens a sequence brings all its tokens", field="unseen_token_ids")
        sequence = Sequence(
            tokens,
            max_length=params.max_length,
            sampling=sampling_from_wire(params.sampling, frozenset(params.sampling.stop_token_ids)),
            num_prompt_tokens=params.num_prompt_tokens,
        )
        view = RequestView(
            seed=sequence.sampling.seed,
            parameters={name: tuple(numbers.values) for name, numbers in params.routing.parameters.items()},
            max_tokens=params.max_tokens,
            num_tiers=params.num_tiers,
            num_tokens=len(self._engine.facts.vocabulary),
            is_greedy=sequence.sampling.is_greedy,
        )
        policy = self._policies.get(params.routing.policy) if params.routing.policy else None
        self._engine.open(sequence)
        visitor = self._visitors[key] = self._by_sequence[sequence] = Visitor(key, sequence, view, policy)
        return visitor

    def _extend(self, visitor: Visitor, hand_off: model_pb2.HandOff) -> None:
        sequence = visitor.sequence
        unseen = list(hand_off.unseen_token_ids)
        self._check(unseen, room=sequence.max_length - hand_off.prefix_length)
        self._engine.truncate(sequence, hand_off.prefix_length)
        sequence.append(unseen)
        if sequence.state is State.PENDING:
            self._engine.resume(sequence)

    def _check_hand_off(self, hand_off: model_pb2.HandOff, draft_logits: Tensor | AllroadsError | None) -> None:
        """What can be told of a hand-off without its sequence."""
        if hand_off.num_opinions_wanted > len(hand_off.unseen_token_ids):
            raise InvalidArgument("opinions are given on unseen tokens only", field="num_opinions_wanted")
        if hand_off.draft_token_ids and not hand_off.judges:
            raise InvalidArgument("drafts are there to be judged", field="judges")
        if len(hand_off.extra) > MAX_EXTRA:
            raise InvalidArgument(f"{MAX_EXTRA} extra numbers at most", field="extra")
        self._check(list(hand_off.draft_token_ids), room=sys.maxsize)
        if isinstance(draft_logits, AllroadsError):
            raise draft_logits
        if draft_logits is not None:
            shape = list(draft_logits.shape)
            right = [len(hand_off.draft_token_ids), len(self._engine.facts.vocabulary)]
            if shape != right or draft_logits.dtype is not torch.float32:
                raise InvalidArgument(
                    f"draft_logits must be float32 {right}, not {draft_logits.dtype} {shape}", field="draft_logits"
                )

    def _check(self, tokens: list[int], *, room: int) -> None:
        num_tokens = len(self._engine.facts.vocabulary)
        if tokens and max(tokens) >= num_tokens:
            raise InvalidArgument(f"token id {max(tokens)} is not in the vocabulary of {num_tokens}")
        if len(tokens) >= room:
            raise InvalidArgument(f"{len(tokens)} tokens leave no room to write in {room}", field="max_length")

    def _write(self, step: Step) -> None:
        """Add each visitor's token, judge the drafts that are computed, end the visits that are over."""
        for sequence in self._prompts.fail(step.failed):
            self._fail(self._by_sequence[sequence].key, why_failed(sequence, "the large model"))
        for opinion in step.opinions:
            visitor = self._by_sequence[opinion.sequence]
            visitor.num_opinions += len(opinion.token_ids)
            visitor.num_agreed_opinions += opinion.num_agreed
            if self._opinion_log is not None:
                self._opinion_log.write(visitor, opinion)
        routed: list[int] = []
        for row, sequence in enumerate(step.sequences):
            visitor = self._by_sequence[sequence]
            if visitor.num_left < 1:
                raise Internal(f"sequence {visitor.key} was run between visits")
            if visitor.policy is not None and visitor.policy.routes_at_tiers:
                routed.append(row)
            else:
                self._add(visitor, step.proposals[row], step.logprobs[row])
        if routed:
            self._route(routed, step)
        if judged := self._prompts.read(step.drafted):
            self._judge(judged)

    def _route(self, rows: list[int], step: Step) -> None:
        """Let policies say of some rows' proposals whether they stand, and who writes next."""
        visitors = [self._by_sequence[step.sequences[row]] for row in rows]
        logprobs = {id(visitor): step.logprobs[row] for visitor, row in zip(visitors, rows, strict=True)}
        decided, failed = route_written(
            self._number, visitors, [step.proposals[row] for row in rows], step.logits[rows]
        )
        self._fail_all(failed)
        for visitor, token_id, verdict in decided:
            if verdict.tier != self._number:
                visitor.num_left, visitor.next_tier = 0, verdict.tier
            self._add(
                visitor,
                token_id if verdict.keeps else None,
                logprobs[id(visitor)],
                stays=verdict.tier == self._number,
                extra=verdict.extra,
            )

    def _judge(self, drafted: list[Drafted]) -> None:
        """Let policies say which drafts stand; roll back the others, and add what the policy writes itself."""
        drafted = self._arrived(drafted)
        parts = {id(self._by_sequence[part.sequence]): part for part in drafted}
        judged, failed = judge_drafts([(self._by_sequence[part.sequence], part) for part in drafted])
        self._fail_all(failed)
        for visitor, judgement in judged:
            self._apply(visitor, judgement, parts[id(visitor)])

    def _arrived(self, drafted: list[Drafted]) -> list[Drafted]:
        """All but those whose small model's logits came too late, which are NaN throughout: these are sent again.

        Not for policies to see: what one would write by NaN is no model's.
        """
        sent = [(part, self._by_sequence[part.sequence].sent_draft_logits) for part in drafted]
        firsts = {
            part.sequence: logits[0, 0].to(part.logits.device, non_blocking=True)
            for part, logits in sent
            if logits is not None and len(logits)
        }
        if not firsts:
            return drafted
        late = torch.stack(list(firsts.values())).isnan().tolist()
        lost = {sequence for sequence, is_late in zip(firsts, late, strict=True) if is_late}
        for sequence in lost:
            self._fail(self._by_sequence[sequence].key, OutOfStep("the logits of its drafts came too late"))
        return [part for part in drafted if part.sequence not in lost]

    def _apply(self, visitor: Visitor, judgement: Judgement, part: Drafted) -> None:
        sequence, accepted = visitor.sequence, judgement.num_accepted
        length = part.start + accepted
        self._engine.truncate(sequence, length)
        visitor.num_left = min(visitor.num_left, sequence.max_length - length)
        is_at_end = accepted > 0 and sequence.tokens[-1] in sequence.sampling.stop_token_ids
        token_id = None if is_at_end or not visitor.num_left else judgement.token_id
        logprobs = None
        if token_id is not None:
            (logprobs,) = token_logprobs(part.logits[accepted : accepted + 1], [Past(sequence, length)], [token_id])
        visitor.judges, visitor.sent_draft_logits = False, None
        self._add(visitor, token_id, logprobs, stays=token_id is not None, num_accepted=accepted, extra=judgement.extra)

    def _add(
        self,
        visitor: Visitor,
        token_id: int | None,
        logprobs: TokenLogprobs | None,
        *,
        stays: bool = True,
        num_accepted: int | None = None,
        extra: SequenceOf[float] = (),
    ) -> None:
        """Add a token, or none, to a visitor's sequence, and tell the home; end the visit where it is over."""
        sequence = visitor.sequence
        if token_id is not None:
            sequence.append([token_id])
            visitor.num_left -= 1
            stays &= token_id not in sequence.sampling.stop_token_ids and token_id not in visitor.until
        if not stays:
            visitor.num_left = 0
        if not visitor.num_left:
            self._engine.pend(sequence)
            self._reports.visit_over(visitor)
        stream_id, number = visitor.key
        response = self._response(stream_id)
        response.sequence_ids.append(number)
        response.visit_numbers.append(visitor.visit_number)
        response.num_tokens.append(0 if token_id is None else 1)
        response.returned.append(not visitor.num_left)
        response.num_computed_tokens.append(visitor.num_new_positions())
        response.num_opinions.append(visitor.num_opinions)
        response.num_agreed_opinions.append(visitor.num_agreed_opinions)
        response.judged.append(num_accepted is not None)
        response.num_accepted_drafts.append(num_accepted or 0)
        response.next_tiers.append(visitor.next_tier)
        response.extra.extend(extra)
        response.num_extra.append(len(extra))
        visitor.num_opinions = visitor.num_agreed_opinions = 0
        if token_id is not None:
            response.token_ids.append(token_id)
        told = [] if token_id is None or logprobs is None else [logprobs_wire.to_wire(logprobs)]
        response.num_logprobs.append(len(told))
        response.logprobs.extend(told)

    def _close(self, key: VisitorKey, fault: Code | None = None) -> None:
        visitor = self._visitors.pop(key, None)
        if visitor is not None:
            del self._by_sequence[visitor.sequence]
            self._engine.close(visitor.sequence)
            if visitor.span is not None and visitor.span.is_recorded:
                self._tracer.end(visitor.span, attributes_of(visitor), fault=fault)

    def _fail(self, key: VisitorKey, error: AllroadsError) -> None:
        """Tell the home, and free what the visitor held."""
        self._close(key, error.code)
        stream_id, number = key
        self._response(stream_id).errors.append(pb.SequenceError(sequence_id=number, error=to_wire(error)))

    def _fail_all(self, failed: Failures) -> None:
        for visitor, error in failed:
            self._fail(visitor.key, error)

    def _response(self, stream_id: int) -> model_pb2.VisitResponse:
        return self._responses.setdefault(stream_id, model_pb2.VisitResponse())
