"""Text to token ids by the model's own tokenizer files."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import Tokenizer

from ...errors import InvalidArgument
from ...vocabulary import Vocabulary, load_vocabulary, read_json
from ..security.prompt_size import TextLimit
from .answer import AnswerText
from .template import ChatTemplate, Message, load_template
from .template_options import TemplateOptions
from .token_text import TokenTexts

_AS_USUAL = TemplateOptions()
_SHORT_TEXT = 4096
"""Characters that are encoded in the event loop; longer texts would hold up everyone's tokens."""
_SHORT_LIST = 256
"""Tokens that are decoded one by one there."""


class TextTokenizer:
    """One model's tokenizer, vocabulary and chat template."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocabulary: Vocabulary,
        template: ChatTemplate | None,
        config: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """`config`: what `tokenizer_config.json` says, for those who ask."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._template = template
        self._bos_id = tokenizer.token_to_id(vocabulary.special_tokens.get("bos_token", ""))
        self.vocabulary = vocabulary
        self.longest_token = max(map(len, vocabulary.tokens), default=1)
        """The most characters of a text that one token stands for."""
        self.config = config
        decoder = tokenizer.decoder
        self.token_texts = TokenTexts(vocabulary.tokens, " ".join if decoder is None else decoder.decode)

    @property
    def template_source(self) -> str | None:
        """The chat template as the model's files have it; None where there is none."""
        return None if self._template is None else self._template.source

    @property
    def takes_tools(self) -> bool:
        """Whether the chat template has a place for tools."""
        return self._template is not None and self._template.takes_tools

    async def encode_prompt(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a raw prompt, with what the tokenizer's post-processor adds, such as BOS, but never two of that."""
        if not add_special_tokens:
            return await self._apart(len(text), lambda: self._encode(text, add_special_tokens=False, field="prompt"))
        return await self._apart(len(text), lambda: self._encode_raw(text))

    async def encode_chat(
        self,
        messages: Sequence[Message],
        options: TemplateOptions = _AS_USUAL,
        *,
        add_special_tokens: bool = False,
        limit: TextLimit | None = None,
    ) -> list[int]:
        """Ids of a conversation. The template writes the special tokens itself, so none is added unless asked for.

        Raises:
            InvalidArgument: the model has no template, or the template refuses the messages.
            ContextLengthExceeded: their text is longer than the limit.
        """
        template = self._template
        if template is None:
            raise InvalidArgument("the model has no chat template; use /v1/completions", field="messages")
        num_characters = sum(len(message["content"] or "") for message in messages)

        def work() -> list[int]:
            text = template.render(messages, options)
            if limit is not None:
                text = limit.fit(text, "messages")
            return self._encode(text, add_special_tokens=add_special_tokens, field="messages")

        return await self._apart(num_characters, work)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)

    def decode_all(self, token_ids: Sequence[int]) -> str:
        """Text of ids, special tokens too."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    async def read_back(self, token_ids: Sequence[int]) -> tuple[str, list[int]]:
        """Text of ids, special tokens left out, and how many characters of it were certain before each of them."""
        answer = AnswerText(self.decode, (), has_offsets=True)

        def work() -> tuple[str, list[int]]:
            shown = answer.push(token_ids, last_is_hidden=False)
            return shown.text + answer.finish(), shown.offsets

        return work() if len(token_ids) <= _SHORT_LIST else await asyncio.to_thread(work)

    def _encode_raw(self, text: str) -> list[int]:
        ids = self._encode(text, add_special_tokens=True, field="prompt")
        # A prompt that was copied from a template begins with one already.
        return ids[1:] if self._bos_id is not None and ids[:2] == [self._bos_id, self._bos_id] else ids

    def _encode(self, text: str, *, add_special_tokens: bool, field: str) -> list[int]:
        try:
            # A list of one: for a text by itself the library keeps the interpreter's lock, and everyone waits.
            return self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids
        except TypeError:
            # What the library raises for a lone surrogate, which JSON can spell.
            raise InvalidArgument(
                "the text is not valid Unicode: it holds half a surrogate pair", field=field
            ) from None

    async def _apart(self, num_characters: int, work: Callable[[], list[int]]) -> list[int]:
        return work() if num_characters <= _SHORT_TEXT else await asyncio.to_thread(work)


def load_tokenizer(directory: Path) -> TextTokenizer:
    """Read tokenizer and chat template of a model in the Hugging Face layout.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    vocabulary = load_vocabulary(directory)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    template = load_template(directory, vocabulary.special_tokens)
    return TextTokenizer(tokenizer, vocabulary, template, read_json(directory / "tokenizer_config.json"))
