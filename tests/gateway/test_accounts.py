"""What a reply and the metrics tell of routing: usage, opinions, hand-offs, and the rate of missed divergences."""

from typing import Any

import pytest
from allroads.gateway.divergence import MissedDivergence, MissedRate
from allroads.gateway.text.tokenizer import TextTokenizer
from allroads.gateway.wilson import wilson_interval
from allroads.mesh.wire import common_pb2
from hypothesis import given
from hypothesis import strategies as st

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import Serve, events

USAGE = common_pb2.Usage(
    num_cached_tokens=[6, 4],
    num_opinions=20,
    num_agreed_opinions=19,
    num_ahead_tokens=7,
    num_hand_offs=3,
    num_confirmed_hand_offs=1,
    num_drafts=8,
    num_accepted_drafts=5,
)
ACCOUNT = {
    "opinions": {"seen": 20, "agreed": 19},
    "drafts": {"judged": 8, "accepted": 5},
    "hand_offs": 3,
    "confirmed_hand_offs": 1,
    "ahead_tokens": 7,
}


def part(block: dict[str, Any]) -> dict[str, Any]:
    return {key: block[key] for key in ACCOUNT}


async def test_a_reply_tells_what_routing_took(serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(Script(await tokenizer.encode_prompt("Aya has"), usage=USAGE))
    body = (await served.chat()).json()
    assert part(body["routing"]) == ACCOUNT
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 6}
    chunks = events(await served.chat(stream=True, stream_options={"include_usage": True}))
    assert part(chunks[-3]["routing"]) == ACCOUNT
    assert chunks[-2]["usage"]["prompt_tokens_details"] == {"cached_tokens": 6}
    two = (await served.complete(prompt=["a", "b"])).json()
    assert two["routing"]["opinions"] == {"seen": 40, "agreed": 38}
    assert two["routing"]["drafts"] == {"judged": 16, "accepted": 10}
    assert two["choices"][1]["routing"]["hand_offs"] == 3
    assert two["usage"]["prompt_tokens_details"] == {"cached_tokens": 12}


async def test_where_the_home_gave_no_account_nothing_is_made_up(serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(Script(await tokenizer.encode_prompt("Aya has 37"), usage=USAGE))
    body = (await served.chat(stop="has")).json()
    assert part(body["routing"]) == dict.fromkeys(ACCOUNT)
    assert body["routing"]["degraded"] is False
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_metrics_add_accounts_up(serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(Script(await tokenizer.encode_prompt("Aya"), usage=USAGE))
    before = (await served.http.get("/metrics")).text
    for bound, value in (("estimate", 0.0), ("low", 0.0), ("high", 1.0)):
        assert f'allroads_missed_divergence_rate{{bound="{bound}"}} {value}' in before
    for _ in range(5):
        await served.chat()
    low, high = wilson_interval(5, 100)
    after = (await served.http.get("/metrics")).text
    for line in (
        'allroads_opinions_total{agreed="true"} 95.0',
        'allroads_opinions_total{agreed="false"} 5.0',
        'allroads_hand_offs_total{confirmed="true"} 5.0',
        'allroads_hand_offs_total{confirmed="false"} 10.0',
        'allroads_drafts_total{accepted="true"} 25.0',
        'allroads_drafts_total{accepted="false"} 15.0',
        "allroads_ahead_tokens_total 35.0",
        'allroads_cached_prompt_tokens_total{tier="slm"} 30.0',
        'allroads_cached_prompt_tokens_total{tier="llm"} 20.0',
        'allroads_missed_divergence_rate{bound="estimate"} 0.05',
        f'allroads_missed_divergence_rate{{bound="low"}} {low}',
        f'allroads_missed_divergence_rate{{bound="high"}} {high}',
    ):
        assert line in after


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    # R. G. Newcombe, Statistics in Medicine 17 (1998), 857-872, table I, method 3.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_the_values_of_the_literature(hits: int, trials: int, low: float, high: float) -> None:
    assert wilson_interval(hits, trials) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_wilson_stays_in_range_and_around_the_share(hits: int, misses: int) -> None:
    low, high = wilson_interval(hits, hits + misses)
    assert 0 <= low <= high <= 1
    if hits + misses:
        assert low <= hits / (hits + misses) <= high
    mirrored = wilson_interval(misses, hits + misses)
    assert (1 - mirrored[1], 1 - mirrored[0]) == pytest.approx((low, high), abs=1e-12)


def test_only_recent_requests_count() -> None:
    missed = MissedDivergence()
    assert missed.rate() == MissedRate(0.0, 0.0, 1.0)
    missed.add(common_pb2.Usage(num_opinions=1000, num_agreed_opinions=0))
    assert missed.rate().estimate == 1.0
    for _ in range(256):
        missed.add(common_pb2.Usage(num_opinions=4, num_agreed_opinions=3))
    assert missed.rate() == MissedRate(0.25, *wilson_interval(256, 1024))
