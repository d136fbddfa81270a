"""Rates by key, and names of keys that tell nothing of them."""

from types import SimpleNamespace

import pytest
from allroads.gateway.admission.client_key import ClientKeys
from allroads.gateway.admission.key_rates import KeyRates
from allroads.gateway.admission.refusal import Refusal
from allroads.mesh.wire import gateway_pb2

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import Serve


class Clock:
    """The time that rates go by."""

    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("asyncio_throttle.throttler", "allroads.gateway.admission.key_rates"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def start(rates: KeyRates, key: str) -> None:
    rates.check(key)
    rates.take(key)


def test_over_the_rate_a_key_learns_when_there_is_room(clock: Clock) -> None:
    rates = KeyRates(2)
    start(rates, "a")
    clock.now_s += 20
    start(rates, "a")
    for _ in range(100):
        with pytest.raises(Refusal) as refusal:
            rates.check("a")
    assert refusal.value.reason == "key_rate"
    assert refusal.value.retry_after_s == 40
    start(rates, "b")
    clock.now_s += 40.5
    start(rates, "a")
    with pytest.raises(Refusal) as refusal:
        rates.check("a")
    assert refusal.value.retry_after_s == 19.5


def test_quiet_keys_are_forgotten_and_their_number_is_bounded(clock: Clock) -> None:
    rates = KeyRates(1, max_keys=3)
    for key in "abcde":
        start(rates, key)
    assert len(rates) == 3
    start(rates, "a")
    with pytest.raises(Refusal):
        rates.check("e")
    clock.now_s += 61
    for key in "vwxyz":
        rates.check(key)
    assert len(rates) == 3
    start(rates, "z")
    assert len(rates) == 1


def test_without_a_rate_nothing_is_kept() -> None:
    rates = KeyRates(None)
    for _ in range(10):
        start(rates, "a")
    assert len(rates) == 0


def test_a_name_is_the_same_for_one_key_and_tells_nothing_of_it() -> None:
    keys = ClientKeys()
    name = keys.name("Bearer sk-secret", None)
    assert name == keys.name("bearer  sk-secret ", "another")
    assert name == keys.name(None, "sk-secret")
    assert name == keys.name("Basic eHg6eHg=", "sk-secret")
    assert name != keys.name("Bearer sk-other", None)
    assert name != ClientKeys().name("Bearer sk-secret", None)
    assert "secret" not in name
    assert {keys.name(*sent) for sent in ((None, None), ("", " "), ("Bearer", None), ("Bearer ", ""))} == {""}
    assert keys.name("Bearer \udcff\N{SNOWMAN}", None)


async def test_over_rest_and_grpc_a_key_is_one_client(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    served = await serve(Script([5]), admission={"requests_per_minute_per_key": 2})
    key = {"authorization": "Bearer sk-secret"}
    body = {"model": "allroads", "prompt": ["a", "b"]}
    assert (await served.http.post("/v1/completions", json=body, headers=key)).status_code == 200
    call = served.stub.Generate(gateway_pb2.GenerateTextRequest(prompt="x"), metadata=tuple(key.items()))
    await call.read()
    late = await served.http.post("/v1/completions", json=body, headers=key)
    assert late.status_code == 429
    assert 1 <= int(late.headers["retry-after"]) <= 60
    assert (await served.http.post("/v1/completions", json=body, headers={"x-api-key": "sk-b"})).status_code == 200
    assert (await served.chat(user="sk-secret")).status_code == 200
    assert 'allroads_refusals_total{reason="key_rate"} 1.0' in (await served.http.get("/metrics")).text
    assert "sk-secret" not in caplog.text
    assert "secret" not in late.text
