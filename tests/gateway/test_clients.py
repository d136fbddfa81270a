"""Clients as they are used: openai-python in both kinds and both ways, and curl as the README has it."""

import asyncio
import re
import shutil
from pathlib import Path

import openai
import pytest
from allroads.gateway.text.tokenizer import TextTokenizer
from openai.types.chat import ChatCompletionMessageParam

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import MODEL, Serve, Served

TEXT = "Then, Aya gets 世界 58 more apples."
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "x"}]
README = (Path(__file__).parents[2] / "README.md").read_text()


@pytest.fixture
async def served(serve: Serve, tokenizer: TextTokenizer) -> Served:
    return await serve(Script(await tokenizer.encode_prompt(TEXT), tiers=(0, 1), groups=(2,)))


async def test_openai_without_asyncio(served: Served) -> None:
    def ask() -> tuple[str | None, str, str, int]:
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            whole = client.chat.completions.create(model=MODEL, messages=MESSAGES)
            parts = client.chat.completions.create(
                model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
            )
            chunks = list(parts)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            usage = chunks[-1].usage
            completion = client.completions.create(model=MODEL, prompt="x", max_tokens=100)
            return (
                whole.choices[0].message.content,
                text,
                completion.choices[0].text,
                usage.total_tokens if usage else 0,
            )

    whole, streamed, completed, num_tokens = await asyncio.to_thread(ask)
    assert whole == streamed == completed == TEXT
    assert num_tokens > 0


async def test_openai_with_asyncio(served: Served) -> None:
    async with served.openai() as client:
        whole = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
        parts = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in parts])
        assert whole.choices[0].message.content == text == TEXT
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=9)
        assert refusal.value.param == "temperature"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("no-such")
        assert [model.id async for model in client.models.list()] == [MODEL]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_curl_as_in_the_readme(served: Served) -> None:
    (command,) = re.findall(r"^```bash\n(curl .*?)^```", README, re.MULTILINE | re.DOTALL)
    assert "http://127.0.0.1:8000/v1/chat/completions" in command
    for more, ending in (("", '"finish_reason":'), ('"stream": true,', "data: [DONE]")):
        shell = command.replace("http://127.0.0.1:8000", served.url).replace('"messages"', f'{more} "messages"')
        process = await asyncio.create_subprocess_shell(
            shell.replace("curl ", "curl -sSN ", 1), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await process.communicate()
        assert (process.returncode, err) == (0, b"")
        assert ending in out.decode()
