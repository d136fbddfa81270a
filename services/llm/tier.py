"""The decode loop of a larger tier: take hand-offs, extend, write, give back.

A hand-off says which prefix the tier is taken to hold and brings the tokens after it, so what both ends
know cannot drift apart unnoticed: a tier that holds less answers OUT_OF_STEP and is sent everything.
One that asks for no token is a reservation: KV is set aside, and the prompt may be computed ahead.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ..engine.engine import Engine, Step
from ..engine.sequence import Sequence, State
from ..engine.thread import BUSY_S, IDLE_S
from ..errors import AllroadsError, Internal, InvalidArgument, NotANumber, OutOfStep
from ..mesh.status import to_wire
from ..mesh.wire import common_pb2 as pb
from ..mesh.wire import model_pb2
from ..model import logprobs_wire
from ..model.description import load_of
from ..model.sampling_wire import sampling_from_wire
from .opinion_log import OpinionLog
from .visitor import Visitor, VisitorKey

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Visit:
    """A message of a home's stream."""

    stream_id: int
    request: model_pb2.VisitRequest


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """A home is gone, and all its visitors with it."""

    stream_id: int


Command = Visit | StreamClosed
Responses = dict[int, model_pb2.VisitResponse]
"""What one turn has to say, by stream."""


class Tier:
    """Owns the visitors. Belongs to the decode thread."""

    def __init__(
        self,
        engine: Engine,
        deliver: Callable[[Responses], None],
        *,
        opinions: bool = True,
        opinion_log: OpinionLog | None = None,
    ) -> None:
        self._engine = engine
        self._deliver = deliver
        self._opinions = opinions
        self._opinion_log = opinion_log
        self._visitors: dict[VisitorKey, Visitor] = {}
        self._by_sequence: dict[Sequence, Visitor] = {}
        self._responses: Responses = {}

    @property
    def num_visitors(self) -> int:
        """Sequences of homes that are open here."""
        return len(self._visitors)

    def turn(self, commands: list[Command]) -> float:
        """Take commands, run one step, deliver what came of it. For how many seconds nothing is to be done."""
        for command in commands:
            match command:
                case Visit(stream_id, request):
                    for hand_off in request.hand_offs:
                        self._take(stream_id, hand_off)
                    # After the hand-offs: a request may be handed off and end within one turn of its home.
                    for number in request.closed_sequence_ids:
                        self._close((stream_id, number))
                case StreamClosed(stream_id):
                    for key in [key for key in self._visitors if key[0] == stream_id]:
                        self._close(key)
        for sequence in self._engine.admit():
            self._admitted(self._by_sequence[sequence])
        step = self._engine.step()
        if step is not None:
            self._write(step)
        if self._responses:
            load = load_of(self._engine)
            for response in self._responses.values():
                response.load.CopyFrom(load)
            self._deliver(self._responses)
            self._responses = {}
        return IDLE_S if step is None else BUSY_S

    def _take(self, stream_id: int, hand_off: model_pb2.HandOff) -> None:
        """Start a visit."""
        key = (stream_id, hand_off.sequence_id)
        try:
            visitor = self._visitors.get(key)
            if hand_off.num_opinions_wanted > len(hand_off.unseen_token_ids):
                raise InvalidArgument("opinions are given on unseen tokens only", field="num_opinions_wanted")
            if hand_off.prefix_length == 0:
                if visitor is not None:
                    self._close(key)
                visitor = self._open(key, hand_off)
            elif visitor is None or hand_off.prefix_length > len(visitor.sequence):
                known = 0 if visitor is None else len(visitor.sequence)
                raise OutOfStep(f"{hand_off.prefix_length} tokens are taken to be here, {known} are")
            else:
                self._extend(visitor, hand_off)
        except AllroadsError as error:
            self._fail(key, error)
            return
        sequence = visitor.sequence
        visitor.visit_number = hand_off.visit_number
        visitor.num_left = min(hand_off.max_tokens, sequence.max_length - len(sequence))
        sequence.is_ahead = not visitor.num_left
        if self._opinions and hand_off.num_opinions_wanted:
            sequence.opinions_from = len(sequence) - hand_off.num_opinions_wanted
        if visitor.num_left and not sequence.num_uncomputed:
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
        self._engine.open(sequence)
        visitor = self._visitors[key] = self._by_sequence[sequence] = Visitor(key, sequence)
        return visitor

    def _extend(self, visitor: Visitor, hand_off: model_pb2.HandOff) -> None:
        sequence = visitor.sequence
        unseen = list(hand_off.unseen_token_ids)
        self._check(unseen, room=sequence.max_length - hand_off.prefix_length)
        self._engine.truncate(sequence, hand_off.prefix_length)
        sequence.append(unseen)
        if sequence.state is State.PENDING:
            self._engine.resume(sequence)

    def _check(self, tokens: list[int], *, room: int) -> None:
        num_tokens = len(self._engine.facts.vocabulary)
        if tokens and max(tokens) >= num_tokens:
            raise InvalidArgument(f"token id {max(tokens)} is not in the vocabulary of {num_tokens}")
        if len(tokens) >= room:
            raise InvalidArgument(f"{len(tokens)} tokens leave no room to write in {room}", field="max_length")

    def _write(self, step: Step) -> None:
        """Add each visitor's token; end the visits that are over."""
        for sequence in step.failed:
            self._fail(self._by_sequence[sequence].key, NotANumber("the large model produced NaN for this request"))
        for opinion in step.opinions:
            visitor = self._by_sequence[opinion.sequence]
            visitor.num_opinions += len(opinion.token_ids)
            visitor.num_agreed_opinions += opinion.num_agreed
            if self._opinion_log is not None:
                self._opinion_log.write(visitor, opinion)
        for sequence, token_id, logprobs in zip(step.sequences, step.proposals, step.logprobs, strict=True):
            visitor = self._by_sequence[sequence]
            if visitor.num_left < 1:
                raise Internal(f"sequence {visitor.key} was run between visits")
            sequence.append([token_id])
            visitor.num_left -= 1
            if token_id in sequence.sampling.stop_token_ids:
                visitor.num_left = 0
            if not visitor.num_left:
                self._engine.pend(sequence)
            stream_id, number = visitor.key
            response = self._response(stream_id)
            response.sequence_ids.append(number)
            response.visit_numbers.append(visitor.visit_number)
            response.num_tokens.append(1)
            response.token_ids.append(token_id)
            response.returned.append(not visitor.num_left)
            response.num_computed_tokens.append(visitor.num_new_positions())
            response.num_opinions.append(visitor.num_opinions)
            response.num_agreed_opinions.append(visitor.num_agreed_opinions)
            visitor.num_opinions = visitor.num_agreed_opinions = 0
            if logprobs is not None:
                response.logprobs.append(logprobs_wire.to_wire(logprobs))

    def _close(self, key: VisitorKey) -> None:
        visitor = self._visitors.pop(key, None)
        if visitor is not None:
            del self._by_sequence[visitor.sequence]
            self._engine.close(visitor.sequence)

    def _fail(self, key: VisitorKey, error: AllroadsError) -> None:
        """Tell the home, and free what the visitor held."""
        self._close(key)
        stream_id, number = key
        self._response(stream_id).errors.append(pb.SequenceError(sequence_id=number, error=to_wire(error)))

    def _response(self, stream_id: int) -> model_pb2.VisitResponse:
        return self._responses.setdefault(stream_id, model_pb2.VisitResponse())
