"""A model's chat template, rendered as transformers does, without importing it.

Templates come with checkpoints and are foreign code: they run in jinja's immutable sandbox.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ...errors import CheckpointError, InvalidArgument
from ...vocabulary import read_json
from .template_options import TemplateOptions, cut_after

logger = logging.getLogger(__name__)

Message = dict[str, Any]
_AS_USUAL = TemplateOptions()
_FAULTS = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)


class ChatTemplate:
    """Turns messages into the text that the model was trained to answer."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._template = environment.from_string(source)
        self._variables = dict(variables)
        self.source = source
        self.takes_tools = "tools" in meta.find_undeclared_variables(environment.parse(source))
        """Whether it has a place for tools."""
        self._shows_calls = "tool_calls" in source

    def render(self, messages: Sequence[Message], options: TemplateOptions = _AS_USUAL) -> str:
        """Text of a conversation, open for the assistant's answer unless the options say otherwise.

        Raises:
            InvalidArgument: the template refuses the messages, with its own words, or has no place for tools.
        """
        if options.tools and not self.takes_tools:
            raise InvalidArgument("the model's chat template has no place for tools; leave them out", field="tools")
        for index, message in enumerate(messages):
            if "tool_calls" in message and not self._shows_calls:
                field = f"messages.{index}.tool_calls"
                raise InvalidArgument("the model's chat template has no place for calls of tools", field=field)
        try:
            text = self._template.render(
                {
                    **self._variables,
                    **options.variables,
                    "messages": list(messages),
                    "tools": list(options.tools) or None,
                    "documents": None,
                    "add_generation_prompt": options.opens_answer,
                }
            )
        except _FAULTS as error:
            # Its own words, which only the client gets, may quote the conversation.
            logger.warning("the chat template refuses a request: %s", type(error).__name__)
            raise InvalidArgument(f"the chat template refuses these messages: {error}", field="messages") from error
        if not options.continues_last:
            return text
        if (cut := cut_after(text, messages[-1]["content"])) is None:
            raise InvalidArgument(
                "the chat template does not show the last message as it is, so that it cannot be continued",
                field="continue_final_message",
            )
        return cut


def load_template(directory: Path, variables: Mapping[str, str]) -> ChatTemplate | None:
    """The chat template of a model directory, None where it has none.

    Raises:
        CheckpointError: the template cannot be read or parsed.
    """
    try:
        source = _find_source(directory)
        return None if source is None else ChatTemplate(source, variables)
    except (OSError, UnicodeDecodeError, jinja2.TemplateError) as error:
        raise CheckpointError(f"the chat template in {directory} is damaged: {error}") from error


def _find_source(directory: Path) -> str | None:
    path = directory / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    found = read_json(directory / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; here it is only passed through."""

    tags = {"generation"}  # noqa: RUF012 (declared so by jinja)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: object, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Jinja's own filter escapes HTML, which a model has never seen."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)
