"""What a request may tell a chat template beside its messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import InvalidArgument

RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"})
"""Variables of a template that have fields of their own, or are ours."""


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """How a conversation is rendered."""

    opens_answer: bool = True
    """Whether the text ends where the assistant's answer begins."""
    continues_last: bool = False
    """Whether the answer goes on with the last message, which is left open."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """As in OpenAI's `tools`."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """What else the template reads, such as `enable_thinking`."""

    def __post_init__(self) -> None:
        """Refuse what has a field of its own.

        Raises:
            InvalidArgument: names the field.
        """
        if taken := sorted(RESERVED.intersection(self.variables)):
            raise InvalidArgument(
                f"chat_template_kwargs may not set {taken[0]}: it has a field of its own", field="chat_template_kwargs"
            )
        if self.opens_answer and self.continues_last:
            raise InvalidArgument(
                "continue_final_message leaves the last message open, and add_generation_prompt begins a new one: "
                "set only one of them",
                field="continue_final_message",
            )


def cut_after(text: str, message: str) -> str | None:
    """A rendered conversation up to the end of its last message's text; None where that is not found.

    As transformers' `continue_final_message` does it: the last place where the text stands, without the white space
    that the template has taken off.
    """
    start = text.rfind(message.strip())
    if start < 0:
        return None
    whole = message.lstrip()
    return text[: start + len(whole if text.startswith(whole, start) else message.strip())]
