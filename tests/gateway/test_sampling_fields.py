"""Fields that change how tokens are chosen arrive at the home as they were meant, over both APIs."""

from typing import Any

import grpc
import pytest
from allroads.mesh.wire import common_pb2, gateway_pb2

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import Serve

FIELDS: dict[str, Any] = {"presence_penalty": -1.5, "frequency_penalty": 2, "repetition_penalty": 1.25}
BIAS = {5: -100.0, 100: 1.5}


async def test_they_arrive_over_rest_and_grpc(serve: Serve) -> None:
    served = await serve(Script([5]))
    rest = {**FIELDS, "logit_bias": {str(token_id): bias for token_id, bias in BIAS.items()}, "min_tokens": 4}
    assert (await served.chat(**rest)).status_code == 200
    assert (await served.complete(**rest, max_tokens=4)).status_code == 200
    sampling = common_pb2.SamplingParams(**FIELDS, logit_bias=BIAS, min_tokens=4, num_logprobs=3)
    assert await served.stub.Generate(gateway_pb2.GenerateTextRequest(prompt="x", sampling=sampling)).read()
    assert (await served.chat()).status_code == 200
    *asking, plain = [opened.sampling for opened in served.home.opens]
    for found in asking:
        assert {name: getattr(found, name) for name in FIELDS} == FIELDS
        assert dict(found.logit_bias) == BIAS
        assert found.min_tokens == 4
    assert [found.HasField("num_logprobs") for found in asking] == [False, False, True]
    assert asking[-1].num_logprobs == 3
    assert not plain.HasField("repetition_penalty")
    assert (plain.presence_penalty, plain.frequency_penalty, len(plain.logit_bias), plain.min_tokens) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        (common_pb2.SamplingParams(presence_penalty=float("nan")), "presence_penalty"),
        (common_pb2.SamplingParams(frequency_penalty=3), "frequency_penalty"),
        (common_pb2.SamplingParams(repetition_penalty=0), "repetition_penalty"),
        (common_pb2.SamplingParams(logit_bias={10**6: 1}), "logit_bias"),
        (common_pb2.SamplingParams(logit_bias={4: float("inf")}), "logit_bias"),
        (common_pb2.SamplingParams(min_tokens=2**32 - 1), "min_tokens"),
        (common_pb2.SamplingParams(min_tokens=3), "min_tokens"),
        (common_pb2.SamplingParams(num_logprobs=21), "logprobs"),
    ],
)
async def test_grpc_names_the_field_as_rest_does(serve: Serve, sampling: common_pb2.SamplingParams, field: str) -> None:
    served = await serve(Script([5]))
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await served.stub.Generate(gateway_pb2.GenerateTextRequest(prompt="x", sampling=sampling, max_tokens=2)).read()
    assert refusal.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert dict(refusal.value.trailing_metadata() or ())["field"] == field
    assert served.home.opens == []


async def test_a_shortest_answer_may_be_as_long_as_the_longest(serve: Serve) -> None:
    served = await serve(Script([5] * 40))
    assert (await served.complete(min_tokens=16)).status_code == 200
    # Without a limit of its own, an answer ends where the window does.
    assert (await served.chat(min_tokens=10_000)).status_code == 200
