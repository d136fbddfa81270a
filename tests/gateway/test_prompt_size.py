"""A text that cannot fit is refused before it becomes tokens, by both APIs; one whose end is kept is cut first."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
import pytest_asyncio
from allroads.errors import ContextLengthExceeded
from allroads.gateway.security.prompt_size import TextLimit
from allroads.gateway.text.tokenizer import TextTokenizer
from allroads.mesh.wire import gateway_pb2

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import MODEL, WINDOW, Served, gateway_over

pytestmark = pytest.mark.asyncio(loop_scope="module")
LONG = "apples and " * 100_000
Request = gateway_pb2.GenerateTextRequest
CHAT = gateway_pb2.ChatMessages(messages=[gateway_pb2.ChatMessage(role="user", content=LONG)])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tokenizer: TextTokenizer) -> AsyncIterator[Served]:
    async with gateway_over(Script(await tokenizer.encode_prompt("12"))) as served:
        yield served


@pytest.fixture
def encoded(served: Served, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the texts that reach the tokenizer."""
    lengths: list[int] = []
    encode = TextTokenizer._encode

    def watched(self: TextTokenizer, text: str, **options: Any) -> list[int]:
        lengths.append(len(text))
        return encode(self, text, **options)

    monkeypatch.setattr(TextTokenizer, "_encode", watched)
    return lengths


@pytest.mark.parametrize(
    ("path", "fields", "field"),
    [
        ("/v1/completions", {"prompt": LONG}, "prompt"),
        ("/v1/completions", {"prompt": ["x", LONG], "echo": True}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 1000}] * 100}, "messages"),
        ("/tokenize", {"prompt": LONG}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": LONG}]}, "messages"),
    ],
)
async def test_over_rest(served: Served, encoded: list[int], path: str, fields: dict[str, Any], field: str) -> None:
    response = await served.post(path, **fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", field)
    assert "characters, which is more than the" in error["message"]
    assert sum(encoded) <= 1
    assert served.gateway.door.limiter.num_running == 0


@pytest.mark.parametrize(
    "ask",
    [
        lambda stub: stub.Generate(Request(model=MODEL, prompt=LONG)).read(),
        lambda stub: stub.Generate(Request(model=MODEL, chat=CHAT)).read(),
        lambda stub: stub.Tokenize(gateway_pb2.TokenizeRequest(model=MODEL, prompt=LONG)),
        lambda stub: stub.Tokenize(gateway_pb2.TokenizeRequest(model=MODEL, chat=CHAT)),
    ],
)
async def test_over_grpc(served: Served, encoded: list[int], ask: Callable[[Any], Any]) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="characters, which is more than the") as refusal:
        await ask(served.stub)
    assert refusal.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert encoded == []


async def test_what_keeps_its_end_is_cut_before_it_is_tokenized(
    served: Served, tokenizer: TextTokenizer, encoded: list[int]
) -> None:
    fields = {"truncate_prompt_tokens": 5, "max_tokens": 1}
    body = (await served.complete(prompt=LONG, echo=True, **fields)).json()
    assert list(served.home.opens[-1].prompt_token_ids) == (await tokenizer.encode_prompt(LONG[-100:]))[-5:]
    assert body["choices"][0]["text"] == tokenizer.decode(served.home.opens[-1].prompt_token_ids) + "1"
    assert (await served.chat(messages=[{"role": "user", "content": LONG}], **fields)).status_code == 200
    assert max(encoded) == WINDOW * tokenizer.longest_token


async def test_more_may_be_counted_than_may_be_asked(served: Served) -> None:
    text = "apples and " * 3000
    assert (await served.complete(prompt=text)).status_code == 400
    assert (await served.post("/tokenize", prompt=text)).json()["count"] > WINDOW
    counted = await served.stub.Tokenize(gateway_pb2.TokenizeRequest(prompt=text))
    assert len(counted.token_ids) > WINDOW


async def test_the_operator_may_allow_less(tokenizer: TextTokenizer, encoded: list[int]) -> None:
    script = Script(await tokenizer.encode_prompt("12"))
    encoded.clear()
    async with gateway_over(script, limits={"max_prompt_tokens": 3}) as served:
        most = 3 * tokenizer.longest_token
        for length in (most, most + 1):
            response = await served.complete(prompt="9" * length)
            assert response.json()["error"]["code"] == "context_length_exceeded"
        assert encoded == [most]


async def test_others_go_on_while_a_long_text_becomes_tokens(tokenizer: TextTokenizer) -> None:
    encoding = asyncio.create_task(tokenizer.encode_prompt(LONG[:400_000]))
    num_turns = 0
    while not encoding.done():
        await asyncio.sleep(0)
        num_turns += 1
    assert num_turns > 100


async def test_the_bound_is_never_too_low(tokenizer: TextTokenizer) -> None:
    """No token stands for more characters than `longest_token` says."""
    limit = TextLimit(1, tokenizer.longest_token)
    for token_id in range(len(tokenizer.vocabulary)):
        assert limit.fit(text := tokenizer.decode_all([token_id]), "prompt") == text
    with pytest.raises(ContextLengthExceeded):
        limit.fit("x" * (tokenizer.longest_token + 1), "prompt")
