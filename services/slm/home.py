"""The decode loop of the home: propose, judge, commit or roll back."""

import time
from collections.abc import Callable, Mapping
from itertools import count

from ..config import HomeSettings
from ..engine.engine import Engine
from ..engine.step import Step
from ..engine.thread import BUSY_S, IDLE_S
from ..errors import AllroadsError, InvalidArgument
from ..mesh.tracing import OFF, OpenSpan, Tracer
from ..mesh.wire import model_pb2, router_pb2
from ..model.description import load_of
from ..model.step_clock import StepClock
from ..policies.policy import HOME
from ..policies.registry import PolicyRegistry
from .admission import Bounds, open_request
from .commands import (
    Abort,
    Command,
    Open,
    RouterDown,
    RouterUp,
    Scored,
    StreamClosed,
    TierDown,
    TierUp,
    Visited,
    WishLaunches,
)
from .decisions import Decisions
from .description import default_threshold
from .journeys import Journeys
from .judging import Judge
from .launch import Launch
from .launches import Launches
from .outbound import CLIENT_INTERVAL_S, Outbound
from .peer_watch import PeerWatch
from .reports import Reports
from .scoring import ScoreBook
from .tensors_out import TensorsOut
from .visits import Visits


class Home:
    """Owns all requests. Belongs to the decode thread: `turn` is called with what the event loop posted."""

    def __init__(
        self,
        engine: Engine,
        policies: PolicyRegistry,
        settings: HomeSettings,
        book: ScoreBook,
        tensors: TensorsOut,
        decisions: Decisions,
        *,
        num_tiers: int,
        deliver: Callable[[Outbound], None],
        tracer: Tracer = OFF,
    ) -> None:
        self._engine = engine
        self._policies = policies
        self._settings = settings
        self._deliver = deliver
        self._numbers = count(1)
        self._bounds = Bounds(
            num_tiers=num_tiers,
            num_tokens=len(engine.facts.vocabulary),
            max_context=engine.facts.max_context,
            eos_token_ids=frozenset(engine.facts.vocabulary.eos_token_ids),
        )
        self._scorers: Mapping[str, router_pb2.ScorerDescription] = {}
        self._decisions = decisions
        self._clock = StepClock()
        self._reports = Reports(num_tiers, engine.launch_counts)
        self._journeys = Journeys(
            engine,
            tensors,
            decisions,
            self._reports,
            max_unjudged=settings.max_unjudged,
            max_ahead=settings.max_ahead,
            tracer=tracer,
        )
        self._judge = Judge(self._journeys, book, decisions)
        self._visits = Visits(self._journeys, self._judge)
        self._launch = Launch(max_unjudged=settings.max_unjudged)
        self._launches = Launches(num_tiers)
        self._told_clients_s = 0.0
        self._peers = PeerWatch(self._journeys, self._judge, book, policies, settings, num_tiers=num_tiers)

    @property
    def num_requests(self) -> int:
        """Requests that are open."""
        return len(self._journeys.table)

    def turn(self, commands: list[Command]) -> float:
        """Take commands, run one step, deliver what came of it. For how many seconds nothing is to be done."""
        self._clock.begin(commands)
        for command in commands:
            self._obey(command)
        for threshold in self._launches.news():
            self._journeys.out.launch(threshold)
        self._peers.expire()
        for sequence in self._engine.admit():
            self._journeys.admitted(self._journeys.table.of(sequence))
        if (pause_s := self._launch.wait_s(self._journeys.table)) > 0:
            self._flush(None)
            return pause_s
        step = self._engine.step()
        if step is not None:
            self._judge.judge(step)
        self._flush(step)
        return IDLE_S if step is None else BUSY_S

    def _flush(self, step: Step | None) -> None:
        """Deliver what there is to say; what clients are told may wait for more while there is work."""
        self._judge.send_questions()
        self._clock.end(is_busy=step is not None)
        if step is not None:
            self._reports.stepped(self._clock, len(step.wanted), step.num_positions)
        self._reports.sent(self._clock.ended_ns)
        if not self._decisions.is_open:
            self._reports.clear()
        now_s = time.monotonic()
        clients_wait = step is not None and now_s - self._told_clients_s < CLIENT_INTERVAL_S
        out, self._journeys.out = self._journeys.out.split(clients_wait=clients_wait)
        if out.is_empty:
            return
        if out.clients:
            self._told_clients_s = now_s
            load = load_of(self._engine)
            load.routing.CopyFrom(self._decisions.state())
            out.report_load(load)
            out.report_tiers(self._reports.take(self.num_requests) if self._decisions.is_open else ())
        self._deliver(out)

    def _obey(self, command: Command) -> None:
        table = self._journeys.table
        match command:
            case Open(stream_id, wire, span):
                self._open(stream_id, wire, span)
            case Visited(tier, response):
                self._visits.take(tier, response)
            case Scored(scores):
                self._judge.take_scores(scores)
            case Abort(stream_id, sequence_id, error):
                if (found := table.find(stream_id, sequence_id)) is not None:
                    self._journeys.end(found, error)
            case StreamClosed(stream_id):
                for request in table.of_stream(stream_id):
                    self._journeys.end(request)
                self._launches.forget(stream_id)
            case WishLaunches(stream_id, launches):
                self._launches.wish(stream_id, launches)
            case RouterUp(scorers):
                self._scorers = scorers
                self._decisions.router_up(scorers, default_threshold(self._decisions.policy, scorers))
                self._peers.router_up({name: scorer.num_top_logits for name, scorer in scorers.items()})
            case RouterDown(error):
                self._peers.router_down(error)
            case TierUp(tier, max_context, eos_token_ids):
                self._bounds.max_context = min(self._bounds.max_context, max_context)
                self._bounds.eos_token_ids |= eos_token_ids
                self._peers.tier_up(tier)
                self._launches.tier_up(tier)
            case TierDown(tier, error):
                self._peers.tier_down(tier, error)
                self._launches.tier_down(tier)

    def _open(self, stream_id: int, wire: model_pb2.OpenRequest, span: OpenSpan | None) -> None:
        table, out = self._journeys.table, self._journeys.out
        try:
            if table.find(stream_id, wire.sequence_id) is not None:
                raise InvalidArgument(f"sequence_id {wire.sequence_id} is open already", field="sequence_id")
            request = open_request(
                stream_id,
                next(self._numbers),
                wire,
                policy=self._policies.get(wire.routing.policy or self._settings.policy),
                policies=self._policies,
                settings=self._settings,
                scorers=self._scorers,
                bounds=self._bounds,
            )
            request.span = span
            request.follows_target = self._decisions.follows_target(
                request, names_threshold="threshold" in wire.routing.parameters
            )
            if HOME in request.reach:
                self._engine.open(request.sequence)
        except AllroadsError as error:
            out.fail(stream_id, wire.sequence_id, error)
            return
        table.add(request)
        if HOME not in request.reach:
            self._journeys.reserve(request)
