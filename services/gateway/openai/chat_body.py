"""What a chat may ask for: messages, what else makes a prompt of them, and tools."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from ...engine.sampling_params import MAX_LOGPROBS
from ...errors import InvalidArgument
from ..grammar import Grammar
from ..text.template import Message
from ..text.template_options import TemplateOptions
from .fields import MessageField, Strict
from .messages import to_conversation
from .schema import GenerationBody
from .tools import ToolUse, read_tools


class ChatFields(Strict):
    """How a conversation becomes a prompt."""

    add_generation_prompt: bool | None = None
    """Whether the prompt ends where the assistant's answer begins: so it is unless the last message is continued."""
    continue_final_message: bool = False
    """Whether the answer goes on with the last message."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """What else the chat template reads, such as `enable_thinking`."""
    tools: list[dict[str, Any]] = Field(default_factory=list)
    """Functions that the model may call, where its chat template has a place for them."""

    def template_options(self, tools: Sequence[Mapping[str, Any]] = ()) -> TemplateOptions:
        """The same in the template's words, with the tools that it is shown.

        Raises:
            InvalidArgument: names the field.
        """
        opens = not self.continue_final_message if self.add_generation_prompt is None else self.add_generation_prompt
        return TemplateOptions(
            opens_answer=opens,
            continues_last=self.continue_final_message,
            tools=tuple(tools),
            variables=self.chat_template_kwargs,
        )


class ChatBody(ChatFields, GenerationBody):
    """`POST /v1/chat/completions`."""

    messages: list[MessageField]
    """The conversation, oldest first."""
    logprobs: bool = False
    """Whether to tell the log-probability of each token."""
    top_logprobs: int | None = None
    """From 0 to 20: of how many of the likeliest tokens at each place, too."""
    tool_choice: Annotated[
        Literal["auto", "none", "required"] | dict[str, Any],
        WithJsonSchema({"anyOf": [{"enum": ["auto", "none", "required"]}, {"type": "object"}]}),
    ] = "auto"
    """Whether the model may, must not or must call a function, or which one it must call."""
    parallel_tool_calls: bool = True
    """Whether one answer may have several calls."""

    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens are to be told; None for no log-probabilities at all.

        Raises:
            InvalidArgument: `top_logprobs` is out of range, or stands alone.
        """
        wanted = self.top_logprobs or 0
        if not 0 <= wanted <= MAX_LOGPROBS:
            raise InvalidArgument(f"top_logprobs must be from 0 to {MAX_LOGPROBS}, not {wanted}", field="top_logprobs")
        if wanted and not self.logprobs:
            raise InvalidArgument("top_logprobs needs logprobs: true", field="top_logprobs")
        return wanted if self.logprobs else None

    def tool_use(self) -> ToolUse | None:
        """Which functions the model may call; None for none.

        Raises:
            InvalidArgument: names the field.
        """
        return read_tools(self.tools, self.tool_choice, is_parallel=self.parallel_tool_calls)

    def grammar(self) -> Grammar | None:
        """What the answer must be: what its fields say, or calls where one is forced.

        Raises:
            InvalidArgument: a field is wrong, or two do not go together; names the field.
        """
        grammar, use = super().grammar(), self.tool_use()
        if use is None or not use.is_forced:
            return grammar
        if grammar is not None:
            raise InvalidArgument(
                f"tool_choice and {grammar.field} both say what the answer must be: leave one out", field="tool_choice"
            )
        return Grammar.json_schema(use.forced_schema(), strict=False, field="tools")

    def conversation(self) -> list[Message]:
        """Messages as a chat template reads them, text parts joined.

        Raises:
            InvalidArgument: names the message and its field.
        """
        return to_conversation(self.messages)
