"""Both clients over a gateway that really listens: answers, streams, batches, tokens, models."""

import asyncio
import json

import pytest
from allroads.client import AsyncClient, Deadline, make_request
from allroads.errors import (
    Cancelled,
    ContextLengthExceeded,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from allroads.gateway.text.tokenizer import TextTokenizer
from allroads.mesh.wire import common_pb2, model_pb2

from ..doubles.scripted_home import Script, made_up_logprobs
from ..gateway.conftest import MODEL, TIER_NAMES, WINDOW, Serve
from .conftest import NO_RETRY, Connect

TEXT = "Then, Aya gets 世界 58 more apples."
CHAT = [{"role": "user", "content": "x"}]


async def test_whole_answers_are_what_the_home_wrote(serve: Serve, connect: Connect, tokenizer: TextTokenizer) -> None:
    script = Script(await tokenizer.encode_prompt(TEXT), tiers=(0, 1), groups=(3,))
    served = await serve(script)
    asker = await connect(served)
    for answer in (
        await asker.generate("x"),
        await asker.generate(messages=CHAT, model=MODEL),
        await asker.generate(token_ids=[5, 6]),
    ):
        assert answer.text == TEXT
        assert answer.token_ids == tuple(script.token_ids)
        assert answer.tiers == tuple(index % 2 for index in range(len(script.token_ids)))
        assert answer.finish_reason == "length"
        assert answer.logprobs == ()
        assert answer.usage.num_answer_tokens == len(script.token_ids)
        assert answer.usage.num_committed_tokens == (answer.tiers.count(0), answer.tiers.count(1))
        assert answer.usage.llm_share == answer.tiers.count(1) / len(answer.tiers)
    prompts = [list(opened.prompt_token_ids) for opened in served.home.opens]
    assert prompts[0] == await asker.tokenize("x")
    assert prompts[1] == await asker.tokenize(messages=CHAT)
    assert prompts[2] == [5, 6]


async def test_a_stream_gives_pieces_as_they_come(serve: Serve, connect: Connect, tokenizer: TextTokenizer) -> None:
    token_ids = await tokenizer.encode_prompt(TEXT)
    served = await serve(Script(token_ids, tiers=(0, 0, 1), groups=(1, 2)))
    pieces, answer = await (await connect(served)).pieces("x", logprobs=2)
    assert len(pieces) > 2
    assert "".join(piece.text for piece in pieces) == TEXT == answer.text
    assert [token_id for piece in pieces for token_id in piece.token_ids] == token_ids
    assert all(len(piece.tiers) == len(piece.token_ids) == len(piece.logprobs) for piece in pieces)
    assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].finish_reason == "length"
    assert pieces[-1].usage == answer.usage
    entry = made_up_logprobs(1, token_ids[1], 2)
    assert answer.logprobs[1].logprob == entry.logprob
    assert answer.logprobs[1].likeliest == tuple(zip(entry.top_token_ids, entry.top_logprobs, strict=True))


async def test_parameters_reach_the_home(serve: Serve, connect: Connect) -> None:
    served = await serve(Script([5]))
    asker = await connect(served)
    await asker.generate(
        "x", max_tokens=7, temperature=0.5, top_p=0.25, top_k=-1, min_p=0.125, seed=-1, presence_penalty=1,
        frequency_penalty=-1, repetition_penalty=1.5, logit_bias={3: 1.5}, min_tokens=2, logprobs=0, stop=["a", "b"],
        stop_token_ids=[9], ignore_eos=True, policy="me", parameters={"weights": [0.5, 0.5]}, mode="off", key="k",
    )  # fmt: skip
    await asker.generate("x", policy="r2r", parameters={"threshold": 0.25}, stop="a", temperature=None)
    first, second = served.home.opens
    assert first.max_tokens == 7
    assert first.sampling == common_pb2.SamplingParams(
        temperature=0.5, top_p=0.25, top_k=0, min_p=0.125, seed=2**64 - 1, presence_penalty=1, frequency_penalty=-1,
        repetition_penalty=1.5, logit_bias={3: 1.5}, min_tokens=2, num_logprobs=0, stop_token_ids=[9], ignore_eos=True,
    )  # fmt: skip
    assert list(first.routing.parameters["weights"].values) == [0.5, 0.5]
    assert (first.routing.policy, first.routing.mode) == ("me", "off")
    assert first.routing.key
    assert list(second.routing.parameters["threshold"].values) == [0.25]
    assert second.sampling == common_pb2.SamplingParams(temperature=1.0)


async def test_the_form_of_an_answer_reaches_the_home(serve: Serve, connect: Connect) -> None:
    served = await serve(Script([5]))
    asker = await connect(served)
    await asker.generate("x", guided_json={"type": "object"})
    await asker.generate("x", guided_regex="a+")
    await asker.generate("x", guided_choice=["yes", "no"])
    grammars = [opened.sampling.grammar for opened in served.home.opens]
    assert [grammar.kind for grammar in grammars] == ["json_schema", "regex", "choice"]
    assert [json.loads(grammars[0].text), grammars[1].text, json.loads(grammars[2].text)] == [
        {"type": "object"}, "a+", ["yes", "no"],
    ]  # fmt: skip
    for field, wrong in (
        ("sampling.grammar", {"guided_regex": "("}),
        ("guided_regex", {"guided_json": "{}", "guided_regex": "a"}),
    ):
        with pytest.raises(InvalidArgument) as refusal:
            await asker.generate("x", **wrong)
        assert refusal.value.field == field


async def test_errors_are_ours_and_name_the_field(serve: Serve, connect: Connect) -> None:
    served = await serve(Script([5]))
    asker = await connect(served)
    for kind, field, arguments in (
        (InvalidArgument, "temperature", {"prompt": "x", "temperature": 3.0}),
        (InvalidArgument, "routing.policy", {"prompt": "x", "policy": "no-such"}),
        (InvalidArgument, "messages", {"messages": []}),
        (InvalidArgument, "prompt", {"prompt": ""}),
        (InvalidArgument, "prompt", {"token_ids": []}),
        (NotFound, "model", {"prompt": "x", "model": "no-such"}),
        (ContextLengthExceeded, "prompt", {"token_ids": [5] * WINDOW}),
        # These are found before anything is sent.
        (InvalidArgument, "prompt", {}),
        (InvalidArgument, "prompt", {"prompt": "x", "token_ids": [5]}),
        (InvalidArgument, "max_tokens", {"prompt": "x", "max_tokens": -1}),
        (InvalidArgument, "token_ids", {"token_ids": [-1]}),
        (InvalidArgument, "messages", {"messages": [{"role": "user", "contents": "x"}]}),
        (InvalidArgument, "best_of", {"prompt": "x", "best_of": 2}),
    ):
        with pytest.raises(kind) as refusal:
            await asker.generate(**arguments)
        assert refusal.value.field == field
    assert served.home.opens == []


async def test_leaving_a_stream_ends_the_request(serve: Serve, connect: Connect) -> None:
    served = await serve(Script([5] * 9, hold=asyncio.Event(), num_before_hold=2))
    pieces, answer = await (await connect(served)).pieces("x", most=1)
    assert answer.token_ids == pieces[0].token_ids
    assert answer.finish_reason is None
    await served.home.until(lambda: served.home.aborted == [1])
    await served.gateway.wait_until_idle()


async def test_a_deadline_goes_all_the_way(serve: Serve, connect: Connect) -> None:
    served = await serve(Script([5] * 9, hold=asyncio.Event(), num_before_hold=2))
    asker = await connect(served, retry=NO_RETRY)
    shared = Deadline.after(0.5)
    for deadline in (0.3, shared, shared):
        with pytest.raises(DeadlineExceeded):
            await asker.generate("x", deadline=deadline)
    # What was over before it began has not been sent.
    await served.home.until(lambda: served.home.aborted == [1, 2])
    assert [0 < opened.timeout_ms <= 500 for opened in served.home.opens] == [True, True]


async def test_a_batch_has_an_answer_or_an_error_for_each(
    serve: Serve, connect: Connect, tokenizer: TextTokenizer
) -> None:
    token_ids = await tokenizer.encode_prompt(TEXT)

    def script(opened: model_pb2.OpenRequest) -> Script:
        failing = list(opened.prompt_token_ids) == [7]
        error = common_pb2.Error(code=common_pb2.ERROR_CODE_NOT_A_NUMBER, message="NaN") if failing else None
        return Script(token_ids, groups=(2,), error=error)

    served = await serve(script)
    asker = await connect(served)
    requests = [
        make_request("x"),
        make_request("x", temperature=5.0),
        make_request(token_ids=[7]),
        make_request(messages=CHAT, max_tokens=2),
    ]
    first, wrong, failed, last = await asker.generate_batch(requests)
    assert (first.text, last.token_ids) == (TEXT, tuple(token_ids[:2]))
    assert (wrong.code, wrong.field) == ("invalid_argument", "temperature")
    assert failed.code == "not_a_number"
    with pytest.raises(InvalidArgument) as refusal:
        await asker.generate_batch([])
    assert refusal.value.field == "requests"


async def test_tokens_and_models(serve: Serve, connect: Connect, tokenizer: TextTokenizer) -> None:
    served = await serve(Script([5]))
    asker = await connect(served)
    token_ids = await tokenizer.encode_prompt(TEXT)
    assert await asker.tokenize(TEXT) == token_ids
    assert await asker.detokenize(token_ids) == TEXT
    assert await asker.detokenize([]) == ""
    for arguments in ({}, {"prompt": "x", "messages": CHAT}):
        with pytest.raises(InvalidArgument):
            await asker.tokenize(**arguments)
    for wrong in (2**31, -1):
        with pytest.raises(InvalidArgument) as refusal:
            await asker.detokenize([wrong])
        assert refusal.value.field == "token_ids"
    (model,) = await asker.list_models()
    assert (model.id, model.max_context_tokens, model.default_policy) == (MODEL, WINDOW, "r2r")
    assert [(tier.name, tier.num_parameters) for tier in model.tiers] == [("slm", 1), ("llm", 10)]
    assert tuple(tier.model for tier in model.tiers) == tuple(f"{name}-model" for name in TIER_NAMES)
    (threshold,) = model.policies[0].parameters
    assert (model.policies[0].name, threshold.name, threshold.default) == ("r2r", "threshold", (0.5,))


async def test_a_refusal_for_want_of_room_tells_when_to_come_back(serve: Serve, connect: Connect) -> None:
    gate = asyncio.Event()
    served = await serve(Script([5], hold=gate), max_running=1, max_waiting=1)
    asker = await connect(served, retry=NO_RETRY)
    others = asyncio.create_task(asker.generate_batch([make_request("x"), make_request("x")]))
    await served.home.until(lambda: len(served.home.opens) == 1)
    with pytest.raises(ResourceExhausted) as refusal:
        await asker.generate("x")
    assert refusal.value.retry_after_s is not None
    # Another that may try again is served once there is room.
    patient = asyncio.create_task((await connect(served)).generate("x"))
    gate.set()
    assert [answer.token_ids for answer in await others] == [(5,), (5,)]
    assert (await patient).token_ids == (5,)


async def test_a_cancelled_task_ends_its_request_and_stays_cancelled(serve: Serve) -> None:
    served = await serve(Script([5] * 9, hold=asyncio.Event(), num_before_hold=2))
    async with AsyncClient(f"127.0.0.1:{served.running.grpc_port}") as client:
        task = asyncio.create_task(client.generate("x"))
        await served.home.until(lambda: len(served.home.opens) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await served.home.until(lambda: served.home.aborted == [1])
        # A call that is ended under its reader is no cancelled task.
        stream = client.stream("x")
        await anext(stream)
        reader = asyncio.create_task(anext(stream))
        await served.home.until(lambda: len(served.home.opens) == 2)
        await stream.close()
        with pytest.raises((Cancelled, StopAsyncIteration)):
            await reader
        await served.home.until(lambda: served.home.aborted == [1, 2])
