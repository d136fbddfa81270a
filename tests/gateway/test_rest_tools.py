"""Functions that the model may call: what is asked, what the template is shown, and calls told from text."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from allroads.config import embedded_path
from allroads.gateway.text.tokenizer import TextTokenizer, load_tokenizer

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import Served, gateway_over

TEMPLATE = (
    "{%- if tools %}tools: {% for tool in tools %}{{ tool | tojson }}{% endfor %}\n{% endif %}"
    "{%- for m in messages %}{{ m.role }}: {{ m.content }}"
    "{%- for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}\n"
    "{%- endfor %}{% if add_generation_prompt %}assistant:{% endif %}{{ mood or '' }}"
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "tells it",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'
OTHER = '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tools")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_bytes((embedded_path("llm") / name).read_bytes())
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(path: Path) -> AsyncIterator[Served]:
    async with gateway_over(lambda _: Script([5]), path=path, window=2048) as served:
        yield served


@pytest.fixture
async def served(shared: Served) -> Served:
    shared.home.opens.clear()
    return shared


async def answer_with(served: Served, text: str, *, is_stop: bool = True) -> None:
    ids = await load_tokenizer(embedded_path("llm")).encode_prompt(text)
    eos = served.home.mesh.eos_token_ids[0]
    served.home.script = lambda _: Script([*ids, eos] if is_stop else ids, is_stop=is_stop)


async def prompt_of(served: Served) -> str:
    return load_tokenizer(embedded_path("llm")).decode_all(list(served.home.opens[-1].prompt_token_ids))


async def test_a_reply_has_calls_and_its_reason(served: Served) -> None:
    await answer_with(served, f"Let me see.\n{CALL}\n{OTHER}")
    body = (await served.chat(tools=[WEATHER, CLOCK])).json()
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    calls = choice["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["weather", "clock"]
    assert json.loads(calls[0]["function"]["arguments"]) == {"city": "Ulm"}
    assert len({call["id"] for call in calls}) == 2
    assert '"description": "tells it"' in await prompt_of(served)
    chunks = await served.chunks(tools=[WEATHER, CLOCK])
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    streamed = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert [(call["index"], call["function"]) for call in streamed] == [
        (index, call["function"]) for index, call in enumerate(calls)
    ]
    assert "".join(delta.get("content", "") for delta in deltas) == "Let me see."
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    single = (await served.chat(tools=[WEATHER, CLOCK], parallel_tool_calls=False)).json()
    assert len(single["choices"][0]["message"]["tool_calls"]) == 1


async def test_without_a_call_it_is_a_reply_as_any(served: Served) -> None:
    await answer_with(served, "no call \n")
    body = (await served.chat(tools=[WEATHER])).json()["choices"][0]
    assert body["message"] == {"role": "assistant", "content": "no call \n", "refusal": None}
    assert body["finish_reason"] == "stop"
    await answer_with(served, CALL)
    none = (await served.chat(tools=[WEATHER], tool_choice="none")).json()["choices"][0]
    assert none["message"]["content"] == CALL
    assert "tools:" not in await prompt_of(served)


async def test_a_forced_call_is_a_grammar_for_the_models(served: Served) -> None:
    await answer_with(served, '[{"name": "weather", "arguments": {"city": "Ulm"}}]')
    body = (await served.chat(tools=[WEATHER, CLOCK], tool_choice="required")).json()["choices"][0]
    assert body["finish_reason"] == "tool_calls"
    assert body["message"]["content"] is None
    grammar = served.home.opens[-1].sampling.grammar
    assert json.loads(grammar.text)["type"] == "array"
    await answer_with(served, '{"name": "weather", "arguments": {"city": "Ulm"}}')
    named = {"type": "function", "function": {"name": "weather"}}
    chosen = (await served.chat(tools=[WEATHER, CLOCK], tool_choice=named)).json()["choices"][0]
    assert chosen["message"]["tool_calls"][0]["function"]["name"] == "weather"
    assert chosen["finish_reason"] == "stop"
    both = await served.chat(tools=[WEATHER], tool_choice="required", response_format={"type": "json_object"})
    assert both.json()["error"]["param"] == "tool_choice"


async def test_earlier_calls_and_results_reach_the_template(served: Served) -> None:
    await answer_with(served, "fine")
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    assert (await served.chat(messages=messages, tools=[WEATHER])).status_code == 200
    prompt = await prompt_of(served)
    assert '{"name": "weather", "arguments": {"city": "Ulm"}}' in prompt
    assert "tool: sunny" in prompt
    call["function"]["arguments"] = "{"  # type: ignore[index]
    refused = await served.chat(messages=messages)
    assert refused.json()["error"]["param"] == "messages.1.tool_calls.0.function.arguments"


async def test_options_reach_the_template(served: Served) -> None:
    await answer_with(served, "fine")
    await served.chat(chat_template_kwargs={"mood": "glad"})
    assert (await prompt_of(served)).endswith("assistant:glad")
    await served.chat(add_generation_prompt=False)
    assert "assistant:" not in await prompt_of(served)
    open_end = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Well, "}]
    await served.chat(messages=open_end, continue_final_message=True, chat_template_kwargs={"mood": "glad"})
    assert (await prompt_of(served)).endswith("assistant: Well, ")
    for fields, field in (
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ):
        assert (await served.chat(**fields)).json()["error"]["param"] == field


async def test_the_openai_package_reads_calls(served: Served) -> None:
    await answer_with(served, CALL)
    async with served.openai() as client:
        messages: Any = [{"role": "user", "content": "x"}]
        tools: Any = [WEATHER]
        reply = await client.chat.completions.create(model="allroads", messages=messages, tools=tools)
        calls = reply.choices[0].message.tool_calls
        assert calls is not None
        assert calls[0].type == "function"
        assert calls[0].function.name == "weather"
        async with client.chat.completions.stream(model="allroads", messages=messages, tools=tools) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].finish_reason == "tool_calls"


async def test_a_template_without_a_place_for_tools_says_so(tokenizer: TextTokenizer) -> None:
    async with gateway_over(Script([5])) as served:
        refused = await served.chat(tools=[WEATHER])
        assert refused.json()["error"]["param"] == "tools"
        call = {"function": {"name": "weather"}}
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        assert (await served.chat(messages=messages)).json()["error"]["param"] == "messages.1.tool_calls"
        assert (await served.chat(tools=[WEATHER], tool_choice="none")).status_code == 200
        assert served.home.opens[0].max_tokens
