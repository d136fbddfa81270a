"""Fields of OpenAI's API that are known and not served: refused by name unless they ask for nothing.

Silence would be worse: a client that asks for tools or several answers must learn that it gets none.
Fields that nobody knows are ignored, so that clients of other servers work.
"""

from collections.abc import Mapping
from typing import Any

from ...errors import InvalidArgument

_HARMLESS: dict[str, tuple[object, ...]] = {
    "audio": (),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "cache_salt": ("",),
    "chat_template": (),
    "documents": ([],),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_grammar": (),
    "modalities": (["text"],),
    "kv_transfer_params": (),
    "length_penalty": (1, 1.0),
    "logits_processors": ([],),
    "lora_path": ("",),
    "mm_processor_kwargs": ({},),
    "prediction": (),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "reasoning_effort": ("none",),
    "return_hidden_states": (False,),
    "return_tokens_as_token_ids": (False,),
    "session_params": ({},),
    "suffix": ("",),
    "use_beam_search": (False,),
    "web_search_options": (),
}
"""Field -> values that change nothing, null apart."""


def refuse_unsupported(content: Mapping[str, Any]) -> None:
    """Look through a request's fields.

    Raises:
        InvalidArgument: names the first field that asks for what is not served.
    """
    for field, harmless in _HARMLESS.items():
        value = content.get(field)
        if value is not None and not any(_is_same(value, allowed) for allowed in harmless):
            raise InvalidArgument(f"{field} is not supported here; leave it out", field=field)


def _is_same(value: object, allowed: object) -> bool:
    # In Python True equals 1, which is not what a client means by `"n": true`.
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)
