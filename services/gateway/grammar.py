"""What an answer must be, as clients ask for it, and a look at it before any model works."""

import asyncio
import hashlib
import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Self

from llguidance import LLTokenizer

from ..engine import grammar as engine
from ..errors import InvalidArgument
from ..mesh.wire import common_pb2

_MAX_BUILD_S = 2.0
"""The library's own bounds are far below; they hold on a machine that has nothing else to do."""
_MAX_VERDICTS = 256


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar and the field that it came in."""

    kind: str
    """Of `engine.grammar.KINDS`."""
    text: str
    field: str = engine.FIELD
    """Named where it is wrong, in the words of the API."""

    @classmethod
    def json_object(cls, *, field: str = engine.FIELD) -> Self:
        """Any JSON object."""
        return cls("json_schema", '{"type":"object"}', field)

    @classmethod
    def json_schema(cls, schema: Any, *, strict: bool = True, field: str = engine.FIELD) -> Self:
        """JSON that fits a schema. Not strict: keywords that cannot be enforced are left out of it.

        Raises:
            InvalidArgument: the schema is nested too deeply.
        """
        try:
            text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
        except RecursionError:
            raise InvalidArgument("the JSON schema is nested too deeply", field=field) from None
        return cls("json_schema" if strict else "json_schema_lenient", text, field)

    @classmethod
    def regex(cls, expression: str, *, field: str = engine.FIELD) -> Self:
        """Text that fits a regular expression from its beginning to its end."""
        return cls("regex", expression, field)

    @classmethod
    def choice(cls, choices: list[str], *, field: str = engine.FIELD) -> Self:
        """One of some texts."""
        return cls("choice", json.dumps(choices, ensure_ascii=False), field)

    def to_wire(self) -> common_pb2.Grammar:
        """For the services; which tokens end the answer is for the home to say."""
        return common_pb2.Grammar(kind=self.kind, text=self.text)


class GrammarCheck:
    """Refuses grammars that no answer can follow. Belongs to one event loop, and builds beside it, one at a time."""

    def __init__(self) -> None:
        # Bytes for tokens: whether a grammar is right does not depend on a model's vocabulary.
        self._tokenizer = LLTokenizer("byte")
        self._one_at_a_time = asyncio.Lock()
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()
        """What is wrong with a grammar, by its hash; empty where nothing is."""

    async def check(self, grammar: Grammar) -> None:
        """Look at a grammar.

        Raises:
            InvalidArgument: it is wrong, too big, takes too long, or asks for what cannot be enforced; names its field.
        """
        try:
            wanted = engine.Grammar(grammar.kind, grammar.text)
        except InvalidArgument as error:
            raise InvalidArgument(error.message, field=grammar.field) from None
        key = hashlib.sha256("\0".join(wanted.key).encode()).digest()
        async with self._one_at_a_time:
            wrong = self._verdicts.get(key)
            if wrong is None:
                wrong = self._verdicts[key] = await self._look_at(wanted)
                if len(self._verdicts) > _MAX_VERDICTS:
                    self._verdicts.popitem(last=False)
        self._verdicts.move_to_end(key)
        if wrong:
            raise InvalidArgument(wrong, field=grammar.field)

    async def _look_at(self, grammar: engine.Grammar) -> str:
        try:
            async with asyncio.timeout(_MAX_BUILD_S):
                await asyncio.to_thread(engine.build, grammar, self._tokenizer)
        except InvalidArgument as error:
            return error.message
        except TimeoutError:
            return f"the grammar takes longer than {_MAX_BUILD_S:g} s to read: make it simpler"
        return ""
