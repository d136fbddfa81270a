"""Meshes of more than two tiers: who wrote what, by the names that the home gives."""

import asyncio
import re

import pytest
from allroads.gateway.text.tokenizer import TextTokenizer
from allroads.gateway.tiers import MAX_TIERS
from allroads.mesh.wire import common_pb2, gateway_pb2

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import Serve

THREE = ("slm", "mlm", "llm")
REPORT = {"report_tokens": True}
TEXT = "To begin, Aya has 37 apples."


async def test_a_reply_tells_of_every_tier_by_name(serve: Serve, tokenizer: TextTokenizer) -> None:
    script = Script(await tokenizer.encode_prompt(TEXT), tiers=(0, 2, 1, 0, 2), groups=(3,))
    served = await serve(script, tier_names=THREE)
    tiers = [(0, 2, 1, 0, 2)[index % 5] for index in range(len(script.token_ids))]
    counts = {name: tiers.count(tier) for tier, name in enumerate(THREE)}
    whole = (await served.chat(routing=REPORT)).json()["routing"]
    assert whole["tiers"] == tiers
    assert whole["tokens"] == counts
    assert list(whole["tokens"]) == list(THREE)
    assert whole["llm_share"] == 1 - tiers.count(0) / len(tiers)
    assert len(whole["computed_tokens"]) == 3
    chunks = await served.chunks(routing=REPORT)
    assert chunks[-2]["routing"]["tokens"] == counts
    two = (await served.complete(prompt=["a", "b"], max_tokens=100)).json()
    assert two["routing"]["tokens"] == {name: 2 * count for name, count in counts.items()}
    call = served.stub.Generate(gateway_pb2.GenerateTextRequest(prompt="x"))
    async for response in call:
        if response.finish_reason == common_pb2.FINISH_REASON_LENGTH:
            assert list(response.usage.num_committed_tokens) == list(counts.values())


async def test_tiers_that_wrote_nothing_are_named_too(serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(Script(await tokenizer.encode_prompt("Aya has 37")), tier_names=THREE)
    body = (await served.chat(stop="has")).json()
    assert list(body["routing"]["tokens"].values())[1:] == [0, 0]
    assert body["routing"]["llm_share"] == 0.0


async def test_metrics_have_a_label_for_each_tier_of_the_mesh(serve: Serve, tokenizer: TextTokenizer) -> None:
    usage = common_pb2.Usage(num_cached_tokens=[6, 5, 4], num_drafts=12, num_accepted_drafts=9)
    script = Script(await tokenizer.encode_prompt("Aya"), usage=usage, tiers=(2,))
    served = await serve(script, tier_names=THREE)
    before = (await served.http.get("/metrics")).text
    assert re.findall(r'^allroads_tokens_total\{tier="(\w+)"\} 0.0$', before, re.MULTILINE) == list(THREE)
    assert 'allroads_drafts_total{accepted="true"} 0.0' in before
    body = (await served.chat()).json()
    assert body["routing"]["drafts"] == {"judged": 12, "accepted": 9}
    after = (await served.http.get("/metrics")).text
    for line in (
        f'allroads_tokens_total{{tier="llm"}} {len(script.token_ids)}.0',
        'allroads_tokens_total{tier="mlm"} 0.0',
        "allroads_llm_share 1.0",
        'allroads_cached_prompt_tokens_total{tier="mlm"} 5.0',
        'allroads_cached_prompt_tokens_total{tier="llm"} 4.0',
        'allroads_drafts_total{accepted="true"} 9.0',
        'allroads_drafts_total{accepted="false"} 3.0',
    ):
        assert line in after


async def test_an_answer_of_three_tiers_goes_on_at_a_restarted_home(serve: Serve, tokenizer: TextTokenizer) -> None:
    token_ids = await tokenizer.encode_prompt(TEXT)
    script = Script(token_ids, tiers=(2, 1, 0), hold=asyncio.Event(), num_before_hold=4)
    assert script.hold is not None
    served = await serve(script, tier_names=THREE)
    async with served.http.stream(
        "POST",
        "/v1/completions",
        json={"model": "allroads", "prompt": "x", "max_tokens": 100, "stream": True, "routing": REPORT},
    ) as reply:
        text = ""
        num_told = 0
        async for line in reply.aiter_lines():
            text += line + "\n"
            num_told = sum(len(ids.split(",")) for ids in re.findall(r'"token_ids":\[([\d,]+)\]', text))
            if num_told == 4 and not script.hold.is_set():
                await served.home.die()
                await served.until_ready(False)
                await served.home.start(served.settings.slm.address)
                script.hold.set()
    assert num_told == len(token_ids)
    assert [list(opened.committed_tiers) for opened in served.home.opens] == [[], [2, 1, 0, 2]]
    counts = [[(2, 1, 0)[index % 3] for index in range(len(token_ids))].count(tier) for tier in range(3)]
    assert f'"tokens":{{"slm":{counts[0]},"mlm":{counts[1]},"llm":{counts[2]}}}' in text


async def test_a_home_that_comes_back_with_a_tier_more_serves_old_and_new_requests(
    serve: Serve, tokenizer: TextTokenizer
) -> None:
    token_ids = await tokenizer.encode_prompt(TEXT)
    script = Script(token_ids, tiers=(0, 1, 2), hold=asyncio.Event(), num_before_hold=0)
    assert script.hold is not None
    served = await serve(script)
    answer = asyncio.create_task(served.chat())
    await served.home.until(lambda: len(served.home.opens) == 1)
    await served.home.die()
    await served.until_ready(False)
    served.home.mesh.tier_names[:] = THREE
    await served.home.start(served.settings.slm.address)
    script.hold.set()
    # Its request came when the mesh had two tiers, and the third has no name there.
    assert list((await answer).json()["routing"]["tokens"]) == ["slm", "llm", "tier2"]
    assert list((await served.chat()).json()["routing"]["tokens"]) == list(THREE)


@pytest.mark.parametrize("tier", [MAX_TIERS, 2**32 - 1])
async def test_a_tier_that_no_mesh_has_fails_its_request_only(
    serve: Serve, tokenizer: TextTokenizer, tier: int
) -> None:
    token_ids = await tokenizer.encode_prompt("Aya")
    scripts = iter((Script(token_ids, tiers=(tier,)), Script(token_ids)))
    served = await serve(lambda _: next(scripts))
    response = await served.chat()
    assert response.status_code == 500
    assert "no mesh has" in response.json()["error"]["message"]
    assert (await served.chat()).status_code == 200
    labels = set(re.findall(r'tier="(\w+)"', (await served.http.get("/metrics")).text))
    assert labels == {"slm", "llm"}


async def test_the_longest_mesh_is_served(serve: Serve, tokenizer: TextTokenizer) -> None:
    names = tuple(f"t{tier}" for tier in range(MAX_TIERS))
    token_ids = await tokenizer.encode_prompt(TEXT)
    served = await serve(Script(token_ids, tiers=range(MAX_TIERS)), tier_names=names)
    assert list((await served.chat()).json()["routing"]["tokens"]) == list(names)
