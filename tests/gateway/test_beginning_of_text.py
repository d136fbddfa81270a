"""A text begins with one BOS, whoever adds it: the tokenizer, the template, or the client (C31)."""

import json
import shutil
from pathlib import Path

import pytest
from allroads.config import embedded_path
from allroads.gateway.text.tokenizer import TextTokenizer, load_tokenizer

BOS = "<|endoftext|>"
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


@pytest.fixture
def tokenizer(tmp_path: Path) -> TextTokenizer:
    """The embedded tokenizer, as if it were one that begins each text with BOS."""
    directory = tmp_path / "model"
    shutil.copytree(embedded_path("slm"), directory)
    content = json.loads((directory / "tokenizer.json").read_text())
    bos_id = next(token["id"] for token in content["added_tokens"] if token["content"] == BOS)
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {BOS: {"id": BOS, "ids": [bos_id], "tokens": [BOS]}},
    }
    (directory / "tokenizer.json").write_text(json.dumps(content))
    config = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps(config | {"bos_token": BOS}))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return load_tokenizer(directory)


async def test_one_by_the_template(tokenizer: TextTokenizer) -> None:
    ids = await tokenizer.encode_chat([{"role": "user", "content": "hello"}])
    bos = tokenizer.vocabulary.tokens.index(BOS)
    assert ids[0] == bos
    assert ids.count(bos) == 1


@pytest.mark.parametrize("prompt", ["hello", f"{BOS}hello"])
async def test_one_in_a_raw_prompt(prompt: str, tokenizer: TextTokenizer) -> None:
    ids = await tokenizer.encode_prompt(prompt)
    bos = tokenizer.vocabulary.tokens.index(BOS)
    assert ids[0] == bos
    assert ids.count(bos) == 1
    assert tokenizer.decode(ids) == "hello"


async def test_none_where_the_tokenizer_adds_none() -> None:
    plain = load_tokenizer(embedded_path("slm"))
    ids = await plain.encode_prompt("hello")
    assert plain.vocabulary.tokens.index(BOS) not in ids
