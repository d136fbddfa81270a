"""What an answer must be: a JSON schema, a regular expression or one of some texts; read by llguidance.

Knows neither torch nor a model, so that a gateway can refuse a wrong grammar before any model works.
"""

import json
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from ..errors import InvalidArgument

MAX_GRAMMAR_BYTES = 65_536
MAX_CHOICES = 1024
KINDS = ("json_schema", "json_schema_lenient", "regex", "choice")
FIELD = "response_format"
"""Named where nobody knows in which field a grammar came."""
_MAX_REASON_CHARACTERS = 300
_LIMITS = LLParserLimits(
    # The library's own bounds hold time: building a lexer within 20 ms and a mask within 20 ms, at its own speeds.
    # States are about 2 kB each.
    max_lexer_states=20_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)
_JSON_OPTIONS: dict[str, Any] = {
    # On one line: models that have lost their way write white space without end where they may.
    "whitespace_flexible": True,
    "whitespace_pattern": " ?",
    "item_separator": ",",
    "key_separator": ":",
}


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar as it travels; whether it can be followed only `build` tells."""

    kind: str
    """Of `KINDS`. A lenient schema is followed but for keywords that cannot be enforced."""
    text: str
    """The schema, the expression, or a JSON list of texts."""
    end_token_ids: frozenset[int] = frozenset()
    """Tokens that may be written only where the grammar may end; they are no token of the text."""

    def __post_init__(self) -> None:
        """Refuse what is too long to look at."""
        if self.kind not in KINDS:
            raise InvalidArgument(f"a grammar is one of {', '.join(KINDS)}, not {self.kind[:64]!a}", field=FIELD)
        try:
            num_bytes = len(self.text.encode())
        except UnicodeEncodeError:
            raise InvalidArgument("the grammar holds half a surrogate pair", field=FIELD) from None
        if num_bytes > MAX_GRAMMAR_BYTES:
            raise InvalidArgument(
                f"the grammar has {num_bytes} bytes, and {MAX_GRAMMAR_BYTES} are allowed", field=FIELD
            )

    @property
    def key(self) -> tuple[str, str]:
        """What `build` reads of it."""
        return self.kind, self.text


def build(grammar: Grammar, tokenizer: LLTokenizer) -> LLMatcher:
    """A matcher at the beginning of an answer. Takes milliseconds, 200 at most, and holds no lock meanwhile.

    Raises:
        InvalidArgument: the grammar is wrong, has no text at all, is too big, or asks for what cannot be enforced.
    """
    try:
        text = _library_text(grammar)
    except (ValueError, OverflowError) as error:
        # Half a surrogate pair, which JSON can spell, or a number beyond all bounds.
        raise InvalidArgument(f"{_noun(grammar)} holds what cannot be read: {error!a:.100}", field=FIELD) from None
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=_LIMITS)
    if matcher.is_error():
        raise InvalidArgument(f"{_noun(grammar)} cannot be followed: {reason(matcher)}", field=FIELD)
    # A grammar without any text, such as a schema that is but a reference to itself, shows at the first token.
    if (problem := first_problem(matcher)) is not None:
        raise InvalidArgument(f"no text fits {_noun(grammar)}, or it is too complex: {problem}", field=FIELD)
    return matcher


def first_problem(start: LLMatcher) -> str | None:
    """Why a matcher at the beginning of an answer cannot tell its first tokens; None where it can."""
    first = start.deep_copy()
    first.compute_bitmask()
    return reason(first) if first.is_error() else None


def reason(matcher: LLMatcher) -> str:
    """What the library has against going on, on one line."""
    said = " ".join(matcher.get_error().replace("<non-verbose/>", "").split())
    return said[:_MAX_REASON_CHARACTERS] or "no reason is known"


def _library_text(grammar: Grammar) -> str:
    match grammar.kind:
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.text)
        case "choice":
            # Lark writes its literals as JSON does.
            literals = [json.dumps(choice, ensure_ascii=False) for choice in _choices(grammar)]
            return LLMatcher.grammar_from_lark("start: " + " | ".join(literals))
        case _:
            return _schema_text(grammar)


def _schema_text(grammar: Grammar) -> str:
    schema = _parsed(grammar)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise InvalidArgument("a JSON schema must be an object", field=FIELD)
    is_lenient = grammar.kind == "json_schema_lenient"
    # `oneOf` may be taken for `anyOf` where its branches cannot be told apart.
    overrides: Any = {**_JSON_OPTIONS, "lenient": is_lenient, "coerce_one_of": is_lenient}
    return LLMatcher.grammar_from_json_schema(schema, overrides=overrides)


def _choices(grammar: Grammar) -> list[str]:
    choices = _parsed(grammar)
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise InvalidArgument("a choice must be among texts, at least one", field=FIELD)
    if len(choices) > MAX_CHOICES:
        raise InvalidArgument(f"a choice may be among {MAX_CHOICES} texts at most, not {len(choices)}", field=FIELD)
    return choices


def _parsed(grammar: Grammar) -> Any:
    try:
        return json.loads(grammar.text)
    except RecursionError:
        raise InvalidArgument(f"{_noun(grammar)} is nested too deeply", field=FIELD) from None
    except ValueError as error:
        raise InvalidArgument(f"{_noun(grammar)} is not valid JSON: {error}", field=FIELD) from None


def _noun(grammar: Grammar) -> str:
    return {"regex": "the regular expression", "choice": "the choice"}.get(grammar.kind, "the JSON schema")
