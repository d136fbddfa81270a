"""Modes of routing as clients ask for them, and what the home says of its routing."""

import hashlib
import math

import pytest
from allroads.gateway.text.tokenizer import TextTokenizer
from allroads.mesh.wire import common_pb2, gateway_pb2, model_pb2

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import Serve


async def test_mode_and_key_travel_and_the_key_only_as_a_hash(serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(Script(await tokenizer.encode_prompt("Aya")))
    for body in ({"routing": {"mode": "canary", "key": "ann"}}, {"routing": {"mode": "canary"}, "user": "ann"}, {}):
        assert (await served.chat(**body)).status_code == 200
    call = served.stub.Generate(
        gateway_pb2.GenerateTextRequest(prompt="x", routing=common_pb2.Routing(mode="canary", key="ann"))
    )
    await call.read()
    await call.code()
    hashed = hashlib.sha256(b"ann").hexdigest()
    routings = [(opened.routing.mode, opened.routing.key) for opened in served.home.opens]
    assert routings == [("canary", hashed), ("canary", hashed), ("", ""), ("canary", hashed)]


@pytest.mark.parametrize("mode", ["sometimes", "ON", 1])
async def test_modes_that_there_are_not_are_refused(mode: object, serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(Script(await tokenizer.encode_prompt("Aya")))
    refused = await served.chat(routing={"mode": mode})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "routing.mode"
    assert not served.home.opens


async def test_replies_tell_the_mode(serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(Script(await tokenizer.encode_prompt("Aya"), usage=common_pb2.Usage(mode="audit")))
    reply = await served.chat(routing={"mode": "audit"})
    assert reply.json()["routing"]["mode"] == "audit"


async def test_metrics_tell_the_state_of_routing(serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(Script(await tokenizer.encode_prompt("Aya")))
    assert math.isnan(await served.metric("allroads_threshold"))
    served.home.routing_state = model_pb2.RoutingState(threshold=0.25, share=0.125, num_decisions=10, score_drift=0.5)
    await served.chat()
    assert await served.metric("allroads_threshold") == 0.25
    assert await served.metric("allroads_routed_share") == 0.125
    assert await served.metric("allroads_score_drift") == 0.5
    assert math.isnan(await served.metric("allroads_target_share"))
