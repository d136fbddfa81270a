"""C41: whatever the model of throughput does, requests are served; and it is asked, and obeyed, when it should be."""

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from allroads.config import AdmissionSettings
from allroads.gateway.admission.controller import AdmissionController
from allroads.gateway.admission.launches import limited_thresholds
from allroads.gateway.admission.outlook import PredictedService
from allroads.gateway.admission.throughput_model import FAULTS, ChainModel, fault_of
from allroads.gateway.admission_metrics import AdmissionMetrics
from allroads.mesh.wire import model_pb2
from allroads.throughput.setting import Prediction, Setting, StepCurve
from allroads.throughput.setting_json import setting_from_json
from prometheus_client import CollectorRegistry

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import Serve, Served

NAMES = ("slm", "llm")


@dataclass
class FakeHome:
    mesh: model_pb2.MeshDescription | None
    told: list[list[int]] = field(default_factory=list)
    flush_us: list[int] = field(default_factory=list)

    def set_launches(self, launches: Sequence[model_pb2.LaunchThreshold]) -> None:
        assert [launch.tier for launch in launches] == list(range(1, len(launches) + 1))
        self.told.append([launch.num_visits for launch in launches])
        self.flush_us = [launch.flush_timeout_us for launch in launches]


@dataclass
class FakeModel:
    """Promises more by a part of it for the wished threshold, as far as there are so many requests."""

    wished: int = 3
    gain: float = 0.2
    wait_s: float = 0.004
    spoil: Callable[[Prediction], Prediction] = lambda prediction: prediction
    num_asked: int = 0
    asked: list[int] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)

    def best(self, setting: Setting, num_requests: int) -> Prediction:
        self.num_asked += 1
        self.asked.append(num_requests)
        self.settings.append(setting)
        return self.spoil(self.predict(setting, num_requests, [min(self.wished, num_requests)] * len(setting.larger)))

    def predict(self, setting: Setting, num_requests: int, thresholds: Sequence[int]) -> Prediction:
        ones = (1.0,) * len(setting.larger)
        is_best = num_requests > 1 and thresholds[0] == min(self.wished, num_requests)
        tokens_per_s = 100.0 * num_requests * (1.0 + (self.gain if is_best else 0.0))
        waits = tuple(self.wait_s for _ in ones)
        return Prediction(num_requests, tuple(thresholds), tokens_per_s, ones, waits, (1.0, *ones))


class Bench:
    """A controller by hand: its time and its ticks are the test's."""

    def __init__(
        self,
        model: FakeModel,
        *,
        names: Sequence[str] = NAMES,
        max_running: int = 8,
        limit_s: float = 30.0,
        **options: object,
    ) -> None:
        sizes = [10 ** (tier + 9) for tier in range(len(names))]
        self.home = FakeHome(model_pb2.MeshDescription(tier_names=names, num_parameters=sizes))
        self.model = model
        self.registry = CollectorRegistry()
        self.outlook = PredictedService()
        self.now_s = 0.0
        self.controller = AdmissionController(
            AdmissionSettings(**options),  # type: ignore[arg-type]
            self.home,
            model,
            AdmissionMetrics(self.registry),
            self.outlook,
            max_running=max_running,
            max_ahead=0,
            clock=lambda: self.now_s,
            model_limit_s=limit_s,
        )

    async def work(self, num_requests: int, *, ticks: int = 1) -> None:
        """The mesh works under a load of so many requests, and the controller looks."""
        for _ in range(ticks):
            self.controller.on_open_requests(num_requests)
            self.controller.on_reports(reports(num_requests, len(self.home.mesh.tier_names)))  # type: ignore[union-attr]
            self.now_s += 0.5
            await self.controller.tick()

    async def learnt(self, num_requests: int) -> "Bench":
        """Met, and known well enough to decide."""
        await self.controller.tick()
        await self.work(num_requests)
        return self

    @property
    def in_force(self) -> tuple[int, ...]:
        return self.controller.launches.in_force

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


def reports(num_requests: int, num_tiers: int = 2) -> list[model_pb2.TierReport]:
    """Enough of half a second's work to know all by."""
    home = model_pb2.TierReport(
        num_rows=[num_requests] * 60,
        num_positions=[num_requests] * 60,
        step_us=[4000] * 60,
        overlap=[0.5] * 60,
        num_tokens=200,
        num_requests=num_requests,
    )
    larger = model_pb2.TierReport(
        num_rows=[2] * 25,
        num_positions=[10] * 25,
        step_us=[20_000] * 25,
        overlap=[1.0] * 25,
        num_tokens=50,
        num_visits=50,
        num_visit_steps=50,
        away_us=50 * 30_000,
        there_us=50 * 25_000,
        waited_us=50 * 5000,
        num_full_launches=3,
        num_last_launches=2,
        num_flushed_launches=1,
        num_replayed_steps=4,
        num_direct_steps=2,
    )
    return [home, *[larger] * (num_tiers - 1)]


async def test_tiers_launch_at_once_until_the_mesh_is_known() -> None:
    bench = Bench(FakeModel())
    await bench.controller.tick()
    assert bench.home.told == [[1]]
    bench.controller.on_open_requests(4)
    await bench.controller.tick()
    assert (bench.in_force, bench.model.num_asked) == ((1,), 0)
    await bench.work(4)
    assert bench.in_force == (3,)
    assert bench.home.told == [[1], [3]]
    assert bench.metric("allroads_launch_threshold", tier="llm") == 3.0
    assert bench.metric("allroads_predicted_tokens_per_s") == pytest.approx(480.0)
    assert bench.metric("allroads_step_seconds", tier="llm") == pytest.approx(0.02)
    assert bench.metric("allroads_launches_total", tier="llm", cause="full") == 3.0
    assert bench.metric("allroads_steps_total", tier="llm", way="replayed") == 4.0
    assert bench.metric("allroads_steps_total", tier="llm", way="direct") == 2.0
    assert bench.metric("allroads_steps_total", tier="slm", way="direct") == 0.0


async def test_nothing_happens_before_a_mesh_is_met() -> None:
    bench = Bench(FakeModel())
    bench.home.mesh = None
    bench.controller.on_reports(reports(2))
    bench.controller.on_first_token(0.1, 3)
    bench.controller.on_end(3)
    await bench.controller.tick()
    assert bench.home.told == []
    assert bench.controller.profile is None


async def test_a_gain_within_noise_changes_nothing() -> None:
    bench = await Bench(FakeModel(gain=0.02), min_gain=0.03).learnt(4)
    assert bench.in_force == (1,)
    assert bench.controller.launches.wished == (3,)
    assert bench.controller.predicted is not None
    assert bench.controller.predicted.tokens_per_s == pytest.approx(400.0)
    bench.model.gain = 0.04
    await bench.work(5)
    assert bench.in_force == (3,)


async def test_fewer_requests_lower_thresholds_at_once() -> None:
    bench = await Bench(FakeModel()).learnt(4)
    num_asked = bench.model.num_asked
    bench.controller.on_open_requests(2)
    assert bench.in_force == (2,)
    bench.controller.on_open_requests(0)
    assert bench.in_force == (1,)
    assert bench.home.told == [[1], [3], [2], [1]]
    assert bench.model.num_asked == num_asked


async def test_what_was_chosen_comes_back_with_the_requests() -> None:
    bench = await Bench(FakeModel(gain=0.05)).learnt(4)
    bench.model.gain = 0.0
    bench.controller.on_open_requests(2)
    bench.controller.on_open_requests(4)
    assert bench.home.told == [[1], [3], [2], [3]]
    await bench.work(4)
    assert bench.in_force == (3,)


async def test_tiers_do_not_all_wait_for_each_other() -> None:
    bench = await Bench(FakeModel(wished=2), names=("slm", "mid", "llm")).learnt(4)
    bench.controller.on_open_requests(2)
    assert bench.in_force == (1, 2)
    assert limited_thresholds((5, 3, 1), 4) == (2, 3, 1)
    assert limited_thresholds((5, 3), 0) == (1, 1)


async def test_an_answer_for_more_requests_than_are_left_is_lowered() -> None:
    bench = Bench(FakeModel())

    def leave(prediction: Prediction) -> Prediction:
        loop.call_soon_threadsafe(bench.controller.on_open_requests, 2)
        return prediction

    loop = asyncio.get_running_loop()
    bench.model.spoil = leave
    await bench.learnt(4)
    assert bench.in_force == (2,)


async def test_other_gateways_requests_count_while_the_home_is_heard_of() -> None:
    bench = await Bench(FakeModel()).learnt(4)
    bench.controller.on_open_requests(1)
    bench.controller.on_reports(reports(6))
    assert bench.controller.num_requests == 6
    bench.now_s += 10.0
    assert bench.controller.num_requests == 1


async def test_off_is_off_and_the_profile_is_fitted_all_the_same() -> None:
    bench = await Bench(FakeModel(), delayed_batching="off").learnt(4)
    await bench.work(4, ticks=8)
    assert bench.in_force == (1,)
    assert bench.home.told == [[1]]
    assert bench.model.num_asked == 0
    assert bench.controller.profile is not None
    assert bench.controller.profile.is_ready
    assert bench.outlook.capacity(100.0) is None
    assert bench.outlook.capacity(101.0) == 0


async def test_a_wait_is_a_small_multiple_of_what_is_predicted_and_bounded() -> None:
    bench = await Bench(FakeModel(wait_s=0.004), max_hold_s=0.05).learnt(4)
    assert bench.home.flush_us == [16_000]
    bench = await Bench(FakeModel(wait_s=0.4), max_hold_s=0.05).learnt(4)
    assert bench.home.flush_us == [50_000]


async def test_the_model_is_not_asked_what_it_has_answered() -> None:
    bench = await Bench(FakeModel()).learnt(4)
    await bench.work(4, ticks=10)
    assert bench.model.asked.count(4) < 8, "twice for thresholds, and for the outlook"
    assert len({id(setting) for setting in bench.model.settings}) == 1


async def test_several_larger_tiers_are_told_together() -> None:
    bench = await Bench(FakeModel(wished=2), names=("slm", "mid", "llm")).learnt(4)
    assert bench.home.told == [[1, 1], [2, 2]]


async def test_another_mesh_begins_anew() -> None:
    bench = await Bench(FakeModel()).learnt(4)
    bench.home.mesh = model_pb2.MeshDescription(tier_names=("slm", "mid", "llm"))
    await bench.controller.tick()
    assert bench.in_force == (1, 1)
    assert bench.controller.predicted is None
    assert bench.outlook.tokens_per_s(1) is None


@pytest.mark.parametrize(
    ("cause", "value"),
    [
        ("error", RuntimeError("of the model's")),
        ("error", TimeoutError()),
        ("not_finite", math.nan),
        ("not_finite", math.inf),
        ("not_finite", -math.inf),
        ("not_positive", 0.0),
        ("not_positive", -5.0),
        ("threshold", 0),
        ("threshold", -1),
        ("threshold", 5),
        ("threshold", ()),
        ("threshold", (2.5,)),
        ("error", None),
    ],
)
async def test_a_fault_of_the_model_is_a_threshold_of_one(
    cause: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    bench = await Bench(FakeModel()).learnt(4)
    assert bench.in_force == (3,)

    def spoil(prediction: Prediction) -> Prediction:
        if isinstance(value, Exception):
            raise value
        if isinstance(value, int | tuple):
            return replace(prediction, thresholds=value if isinstance(value, tuple) else (value,))
        return replace(prediction, tokens_per_s=value)  # type: ignore[arg-type]

    bench.model.spoil = spoil
    with caplog.at_level(logging.INFO):
        await bench.work(4, ticks=3)
    assert bench.metric("allroads_threshold_fallbacks_total", cause=cause) == 3.0
    assert bench.controller.num_fallbacks[cause] == 3
    assert bench.in_force == (1,)
    assert bench.home.told[-1] == [1]
    assert bench.controller.predicted is None
    assert bench.outlook.capacity(1.0) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"], "once, not at each tick"
    bench.model.spoil = lambda prediction: prediction
    await bench.work(4)
    assert bench.in_force == (3,), "the loop went on"


async def test_a_late_answer_is_dropped_and_only_one_is_awaited(caplog: pytest.LogCaptureFixture) -> None:
    go_on = threading.Event()

    def hold(prediction: Prediction) -> Prediction:
        assert go_on.wait(30)
        return replace(prediction, thresholds=(2,), tokens_per_s=1e6)

    bench = Bench(FakeModel(spoil=hold), limit_s=0.05)
    await bench.learnt(4)
    await bench.work(4, ticks=5)
    assert bench.metric("allroads_threshold_fallbacks_total", cause="slow") == 1.0
    assert bench.in_force == (1,)
    assert bench.model.num_asked == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    bench.model.spoil = lambda prediction: prediction
    go_on.set()
    while bench.in_force != (3,):
        await asyncio.sleep(0)
        await bench.work(4)
    assert bench.home.told == [[1], [3]], "what came late is not used"


async def test_what_was_expected_stands_while_answers_are_late_for_a_while() -> None:
    go_on = threading.Event()
    bench = await Bench(FakeModel(), limit_s=0.1).learnt(4)
    while bench.outlook.tokens_per_s(4) is None or bench.in_force != (3,):
        await asyncio.sleep(0)
        await bench.work(4)

    def hold(prediction: Prediction) -> Prediction:
        assert go_on.wait(30)
        return prediction

    bench.model.spoil = hold
    await bench.work(3)
    assert bench.in_force == (1,)
    assert bench.outlook.tokens_per_s(4) is not None
    bench.now_s += 31.0
    await bench.work(3)
    assert bench.outlook.tokens_per_s(4) is None
    go_on.set()


async def test_the_thread_ends_with_the_loop() -> None:
    others = set(threading.enumerate())
    bench = await Bench(FakeModel()).learnt(4)
    (thread,) = [each for each in threading.enumerate() if each not in others and each.name == "throughput model"]
    task = asyncio.create_task(bench.controller.run())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.to_thread(thread.join, 30)
    assert not thread.is_alive()


async def test_the_end_of_the_loop_is_seen() -> None:
    bench = Bench(FakeModel())
    bench.home.mesh = model_pb2.MeshDescription(tier_names=("alone",))
    with pytest.raises(ValueError, match="two tiers"):
        await bench.controller.run()


async def view(served: Served) -> dict[str, Any]:
    response = await served.http.get("/v1/admission")
    assert response.status_code == 200
    content: dict[str, Any] = response.json()
    return content


async def until(served: Served, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """What the gateway shows when a condition on it holds."""
    while not condition(shown := await view(served)):
        pass
    return shown


async def test_the_home_is_told_thresholds_again_when_it_comes_back(serve: Serve) -> None:
    served = await serve(Script([5]))
    home = served.home
    await home.until(lambda: len(home.launches) == 1)
    await home.die()
    await served.until_ready(False)
    await home.start(served.settings.slm.address)
    await home.until(lambda: len(home.launches) == 2)
    assert home.launches[0] == home.launches[1]
    (launch,) = home.launches[1]
    assert (launch.tier, launch.num_visits, launch.flush_timeout_us) == (1, 1, 50_000)


async def test_what_is_known_is_shown(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allroads.gateway.service.ChainModel", FakeModel)
    served = await serve(Script([5, 6, 7]))
    before = await until(served, lambda shown: shown["confidence"] is not None)
    assert before["is_ready"] is False
    for name in (
        "setting",
        "wished_thresholds",
        "predicted_tokens_per_s",
        "predicted_waits_s",
        "measured_tokens_per_s",
    ):
        assert before[name] is None
    assert before["measured_waits_s"] == [None]
    assert before["step_s"] == [None, None]
    assert (before["thresholds"], before["num_requests"]) == ([1], 0)
    held = asyncio.Event()
    served.home.script = lambda _: Script([5, 6, 7], hold=held, num_before_hold=1)
    served.home.reports = lambda: reports(4)
    answers = [asyncio.create_task(served.chat()) for _ in range(4)]
    shown = await until(served, lambda shown: shown["predicted_tokens_per_s"] is not None)
    assert shown["is_ready"] is True
    assert shown["num_requests"] == shown["predicted_for_num_requests"] == 4
    assert shown["thresholds"] == shown["wished_thresholds"] == [3]
    assert shown["predicted_tokens_per_s"] == pytest.approx(480.0)
    setting = setting_from_json(shown["setting"])
    assert [tier.name for tier in (setting.home, *setting.larger)] == list(NAMES)
    assert setting.max_ahead == served.settings.slm.max_ahead
    assert shown["step_s"] == pytest.approx([0.004, 0.02])
    assert set(shown["fallbacks"]) == set(FAULTS)
    held.set()
    assert all(response.status_code == 200 for response in await asyncio.gather(*answers))
    scrape = (await served.http.get("/metrics")).text
    assert 'allroads_launch_threshold{tier="llm"}' in scrape
    assert 'allroads_threshold_fallbacks_total{cause="not_finite"} 0.0' in scrape
    assert 'allroads_step_seconds{tier="slm"}' in scrape
    assert await served.metric("allroads_solver_seconds_count") > 0


def test_the_chain_gives_sound_answers() -> None:
    curve = StepCurve.affine(0.004, 0.0001)
    setting = Setting.routed(0.1, (curve, curve), (curve.scaled(5.0), curve.scaled(5.0)))
    model = ChainModel()
    assert fault_of(model.best(setting, 4), 4, 1) is None
    prediction = model.predict(setting, 4, (2,))
    assert fault_of(prediction, 4, 1) is None
    assert prediction.thresholds == (2,)


async def test_requests_are_served_whatever_the_model_does(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChainModel, "predict", lambda *_: 1 / 0)
    served = await serve(Script([5, 6, 7]))
    served.home.reports = lambda: reports(2)
    held = asyncio.Event()
    served.home.script = lambda _: Script([5, 6, 7], hold=held, num_before_hold=1)
    answer = asyncio.create_task(served.chat())
    await until(served, lambda shown: shown["fallbacks"]["error"] > 1)
    held.set()
    assert (await answer).status_code == 200
    assert (await served.http.get("/ready")).status_code == 200


async def test_the_end_of_the_loop_fails_the_gateway(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def end(_: AdmissionController) -> None:
        raise RuntimeError("the loop's own fault")

    monkeypatch.setattr(AdmissionController, "tick", end)
    served = await serve(Script([5]))
    with pytest.raises(RuntimeError, match="the loop's own fault"):
        await served.running.failure


async def test_the_model_leaves_the_processor_to_others() -> None:
    bench = Bench(model := FakeModel())

    def slowly(prediction: Prediction) -> Prediction:
        bench.now_s += 1.0
        return prediction

    model.spoil = slowly
    await bench.learnt(4)
    asked, took_s = model.num_asked, bench.now_s
    # Where nothing much changes it rests for nineteen times as long as it took.
    await bench.work(4, ticks=20)
    assert model.num_asked == asked
    await bench.work(4, ticks=200)
    assert model.num_asked > asked
    # Where much does, for three times.
    asked, before_s = model.num_asked, bench.now_s
    while model.num_asked == asked:
        await bench.work(8 if int(bench.now_s * 2) % 2 else 2)
    assert bench.now_s - before_s < 19.0 * took_s
