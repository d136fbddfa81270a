"""The loop that fits the model of throughput to the mesh and applies what it says.

Twice a second, and at once when the number of requests changes much: learn from the tiers' reports, ask the model, tell
larger tiers how long to wait for company, and those who admit what to expect. Whatever is wrong with the model, tiers
launch at once again, and the loop goes on; the end of the loop is the gateway's failure.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from ...config import AdmissionSettings
from ...mesh.wire import model_pb2
from ...throughput.nearness import are_near
from ...throughput.profile import LiveProfile
from ...throughput.setting import Prediction, Setting
from ..admission_metrics import AdmissionMetrics
from .asking import Asking, ModelFailed
from .gathered import GatheredReports
from .launches import Launches, limited_thresholds
from .load import OpenRequests
from .lookout import Lookout
from .measured_rate import MeasuredRate
from .outlook import PredictedService
from .throughput_model import ThroughputModel

TICK_S = 0.5
_SHORTEST_TICK_S = 0.05
_MODEL_LIMIT_S = 0.5
_SAME_PART = 0.03
_MUCH_CHANGE = 0.25
_REST, _SHORTER_REST = 19.0, 3.0
"""Times as long as its answers took, for which the model is not asked again: usually, and where much has changed."""


class Home(Protocol):
    """What the controller needs of the client of the small model's service."""

    @property
    def mesh(self) -> model_pb2.MeshDescription | None:
        """Who is there; None while nobody is known."""

    def set_launches(self, launches: Sequence[model_pb2.LaunchThreshold]) -> None:
        """Tell larger tiers when to launch, now and whenever the home comes back."""


class AdmissionController:
    """Belongs to one event loop; the model is asked in a thread."""

    def __init__(
        self,
        settings: AdmissionSettings,
        home: Home,
        model: ThroughputModel,
        metrics: AdmissionMetrics,
        outlook: PredictedService,
        *,
        max_running: int,
        max_ahead: int,
        clock: Callable[[], float] = time.monotonic,
        model_limit_s: float = _MODEL_LIMIT_S,
    ) -> None:
        """Begin without knowing anything.

        Args:
            settings: what the operator wants.
            home: of which the mesh is.
            model: asked for thresholds and throughput.
            metrics: told what happens.
            outlook: told what to expect.
            max_running: requests of this gateway in the mesh at once.
            max_ahead: as the home has it.
            clock: seconds that go forward.
            model_limit_s: time for an answer.
        """
        self._settings, self._home, self._model, self._metrics = settings, home, model, metrics
        self._max_ahead, self._clock = max_ahead, clock
        self._asking = Asking(metrics, model_limit_s)
        self._lookout = Lookout(outlook, self._asking, self._best, max_running, clock())
        self._gathered, self._open, self._rate = GatheredReports(), OpenRequests(), MeasuredRate()
        self._changed = asyncio.Event()
        self._num_decided = 0
        self._asked_s, self._took_s = 0.0, 0.0
        self._looked_s: float | None = None
        self._last_setting: Setting | None = None
        self._answered: tuple[Setting, int, tuple[int, ...]] | None = None
        self.launches = Launches(home.set_launches, settings.max_hold_s)
        self.profile: LiveProfile | None = None
        """None until a mesh was met."""
        self.predicted: Prediction | None = None
        """Of what is in force, for the requests there were; None where the model is not to be asked, or failed."""

    @property
    def num_requests(self) -> int:
        """Requests that share the mesh."""
        return self._open.count(self._clock())

    @property
    def measured_tokens_per_s(self) -> float | None:
        """Of all requests together, of late; None until something was measured."""
        return self._rate.per_s

    @property
    def num_fallbacks(self) -> dict[str, int]:
        """How often the model failed, by cause."""
        return dict(self._metrics.num_fallbacks)

    def on_reports(self, reports: Sequence[model_pb2.TierReport]) -> None:
        """Tiers told what they did, the home first."""
        mesh = self._home.mesh
        self._gathered.add(reports, len(mesh.tier_names) if mesh is not None else 0)
        if reports:
            self._open.report(reports[0].num_requests, self._clock())
            self._notice_load()

    def on_open_requests(self, num_open: int) -> None:
        """So many requests of this gateway are at the home now."""
        self._open.own = num_open
        self._notice_load()

    def on_first_token(self, seconds: float, num_prompt_tokens: int) -> None:
        """A request's first token came, so long after it was sent to the home."""
        if self.profile is not None:
            self.profile.observe_first_token(seconds, num_prompt_tokens)

    def on_end(self, num_tokens: int) -> None:
        """A request ended with so many tokens."""
        if self.profile is not None:
            self.profile.observe_end(num_tokens)

    async def run(self) -> None:
        """Keep on until cancelled."""
        try:
            while True:
                await self.tick()
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await self._changed.wait()
                # Others open or end in the same moment.
                await asyncio.sleep(_SHORTEST_TICK_S)
        finally:
            self._asking.close()

    async def tick(self) -> None:
        """Learn, decide, and look ahead, once."""
        self._changed.clear()
        profile = self._meet()
        if profile is None:
            return
        self._learn(profile)
        has_changed = self._has_changed_much(self.num_requests)
        self._num_decided = num_requests = self.num_requests
        if not profile.is_ready:
            self._know_nothing()
        elif not self._asking.is_busy and self._has_rested(has_changed=has_changed):
            began_s = self._clock()
            try:
                setting = self._setting(profile)
                await self._decide(setting, num_requests)
                await self._lookout.renew(setting, num_requests, self._clock())
            except ModelFailed as failure:
                self._launch_at_once()
                if failure.fault != "slow":
                    self._know_nothing()
            self._asked_s, self._took_s = self._clock(), self._clock() - began_s
        self._lookout.forget_if_old(self._clock())
        self._metrics.show_thresholds(profile.tier_names[1:], self.launches.in_force)
        predicted = None if self.predicted is None else self.predicted.tokens_per_s
        self._metrics.show_tokens_per_s(predicted, self._rate.per_s)

    def _meet(self) -> LiveProfile | None:
        """The profile of the mesh that is there; a new one where another mesh is."""
        mesh = self._home.mesh
        if mesh is None:
            return self.profile
        names, sizes = tuple(mesh.tier_names), tuple(mesh.num_parameters)
        sizes = (sizes + (0,) * len(names))[: len(names)]
        if self.profile is None or (self.profile.tier_names, self.profile.num_parameters) != (names, sizes):
            self.profile = LiveProfile(names, sizes, self._max_ahead)
            self.launches.reset(len(names) - 1)
            self._know_nothing()
        return self.profile

    def _learn(self, profile: LiveProfile) -> None:
        now_s, gathered = self._clock(), self._gathered.take()
        profile.observe([tier.sample() for tier in gathered], now_s)
        # Time in which nobody was there, or only for a part, is nobody's.
        is_open = self._open.count(now_s) > 0
        if is_open and self._looked_s is not None:
            self._rate.add(sum(tier.sums["num_tokens"] for tier in gathered), now_s - self._looked_s)
        self._looked_s = now_s if is_open else None
        for name, tier in zip(profile.tier_names[1:], gathered[1:], strict=False):
            self._metrics.count_launches(name, tier.sums)
        for name, tier in zip(profile.tier_names, gathered, strict=False):
            self._metrics.count_steps(name, tier.sums)
        for home in gathered[:1]:
            self._metrics.count_scorings(home.sums)
        for name, step_s in zip(profile.tier_names, profile.step_s, strict=True):
            self._metrics.show_step(name, step_s)

    def _setting(self, profile: LiveProfile) -> Setting:
        """The mesh as it is, or as it was when the model was asked last, where that is nearly the same."""
        try:
            setting = profile.setting()
        except ValueError as error:
            raise self._asking.failure("error", error) from error
        last = self._last_setting
        if last is None or not are_near(last, setting, _SAME_PART, 2 * self._num_decided):
            self._last_setting = last = setting
        return last

    async def _decide(self, setting: Setting, num_requests: int) -> None:
        """Ask for the best thresholds and for what those in force give, and take over the better ones."""
        in_force = limited_thresholds(self.launches.in_force, num_requests)
        asked = (setting, num_requests, in_force)
        if num_requests == 0 or asked == self._answered:
            return

        def answers() -> list[Prediction]:
            best = self._best(setting, num_requests)
            if best.thresholds == in_force:
                return [best, best]
            return [best, self._model.predict(setting, num_requests, in_force)]

        best, self.predicted = await self._asking.ask(answers, num_requests, len(in_force))
        self._answered = asked
        if self._waits:
            self.launches.consider(best, self.predicted, self._settings.min_gain)
            self.launches.limit(self.num_requests)
            if self.launches.in_force == best.thresholds:
                self.predicted = best

    def _best(self, setting: Setting, num_requests: int) -> Prediction:
        """With the best thresholds that the operator allows. Runs in the model's thread."""
        if self._waits and num_requests > 1:
            return self._model.best(setting, num_requests)
        return self._model.predict(setting, num_requests, (1,) * len(setting.larger))

    @property
    def _waits(self) -> bool:
        return self._settings.delayed_batching == "auto"

    def _launch_at_once(self) -> None:
        self.launches.fall_back()
        self._answered = self.predicted = None

    def _know_nothing(self) -> None:
        self._launch_at_once()
        self._lookout.forget()
        self._last_setting = None

    def _notice_load(self) -> None:
        """Lower thresholds at once where fewer requests are left, and decide anew where much has changed."""
        num_requests = self.num_requests
        self.launches.limit(num_requests)
        if self._has_changed_much(num_requests):
            self._changed.set()

    def _has_changed_much(self, num_requests: int) -> bool:
        return abs(num_requests - self._num_decided) >= max(1.0, _MUCH_CHANGE * self._num_decided)

    def _has_rested(self, *, has_changed: bool) -> bool:
        """Whether the model may have the processor again, which others want too."""
        rest = _SHORTER_REST if has_changed else _REST
        return self._clock() >= self._asked_s + rest * self._took_s
