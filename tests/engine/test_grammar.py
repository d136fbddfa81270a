"""Grammars: what can be built, and masks that depend on grammar and answer alone, whatever was asked before."""

import json
import random
import re
from collections.abc import Callable
from functools import cache

import pytest
import torch
from allroads.config import embedded_path
from allroads.engine.engine import Engine
from allroads.engine.grammar import MAX_CHOICES, MAX_GRAMMAR_BYTES, Grammar
from allroads.engine.matcher import GrammarBuilder, Matcher
from allroads.engine.sampling import SamplingParams, probabilities, sample
from allroads.engine.sequence import Sequence
from allroads.engine.step import why_failed
from allroads.errors import InvalidArgument
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from .conftest import sequence

EOS, OTHER_END = 2, 0
ENDS = frozenset({EOS, OTHER_END})
NUM_TOKENS = 472
PERSON = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Aya", "Ben"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TREE = {
    "type": "object",
    "properties": {"left": {"$ref": "#"}, "n": {"type": "integer"}},
    "additionalProperties": False,
}
GRAMMARS = {
    "person": Grammar("json_schema", json.dumps(PERSON), ENDS),
    "tree": Grammar("json_schema", json.dumps(TREE), ENDS),
    "any object": Grammar("json_schema", '{"type": "object"}', ENDS),
    "regex": Grammar("regex", r"(ab?|[0-9]{2,4})( (x|y))*", ENDS),
    "choice": Grammar("choice", '["yes", "yes!", "no \\"way\\"", "ééé"]', ENDS),
}


@cache
def builder() -> GrammarBuilder:
    return GrammarBuilder(embedded_path("slm"), [EOS])


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(embedded_path("slm") / "tokenizer.json"))


def fresh(name: str) -> Matcher:
    return builder().matcher(GRAMMARS[name])


def allowed(matcher: Matcher, answer: list[int]) -> set[int]:
    mask = matcher.mask(answer)
    assert mask is not None, matcher.error
    return {token_id for token_id in range(NUM_TOKENS) if mask[token_id // 8] >> token_id % 8 & 1}


def ids(text: str) -> list[int]:
    return list(tokenizer().encode(text, add_special_tokens=False).ids)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(GRAMMARS)), data=st.data())
def test_any_interleaving_gives_the_mask_of_a_fresh_matcher(name: str, data: st.DataObject) -> None:
    matcher, answer = fresh(name), list[int]()
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["append", "append", "append", "truncate", "look back"])):
            case "append":
                # Several at once, as at a hand-off; ends too, and what lies beyond one.
                for _ in range(data.draw(st.integers(1, 3))):
                    answer.append(data.draw(st.sampled_from(sorted(allowed(fresh(name), answer)))))
            case "truncate":
                del answer[data.draw(st.integers(0, len(answer))) :]
            case "look back":
                past = answer[: data.draw(st.integers(0, len(answer)))]
                assert matcher.mask(past) == fresh(name).mask(past)
        if data.draw(st.booleans()):
            assert matcher.mask(answer) == fresh(name).mask(answer)
    assert matcher.mask(answer) == fresh(name).mask(answer)
    assert matcher.error is None


def test_a_place_that_was_passed_over_is_looked_at_anew() -> None:
    """What was known of a place holds only while the tokens before it are the same."""
    matcher = fresh("regex")
    for text in ("ab", "ab x", "1234", "12", "ab y", "ab"):
        assert matcher.mask(ids(text)) == fresh("regex").mask(ids(text))


@pytest.mark.parametrize(
    ("name", "text", "may_end"),
    [
        ("person", '{"name": "Aya", "age": 7}', True),
        ("person", '{"name":"Aya","age":12', False),
        ("tree", '{"left":{"left":{}}}', True),
        ("any object", '{"a": [1, {"b": null}]}', True),
        ("regex", "ab x", True),
        ("regex", "1", False),
        ("choice", "yes", True),
        ("choice", 'no "w', False),
        ("choice", "ééé", True),
    ],
)
def test_ends_are_allowed_together_and_only_where_the_grammar_ends(name: str, text: str, may_end: bool) -> None:
    matcher = fresh(name)
    answer: list[int] = []
    for token_id in ids(text):
        assert matcher.allows(answer, token_id)
        answer.append(token_id)
    assert allowed(matcher, answer) & ENDS == (ENDS if may_end else set())
    if may_end:
        assert allowed(matcher, [*answer, EOS]) == allowed(matcher, [*answer, OTHER_END, 77]) == ENDS


def test_json_is_written_on_one_line() -> None:
    matcher = fresh("any object")
    brace = ids("{")
    assert matcher.allows(brace, ids('"')[0])
    assert not any("\n" in tokenizer().decode([token_id]) for token_id in allowed(matcher, brace))


def test_a_token_outside_the_grammar_is_an_error_that_stays() -> None:
    matcher = fresh("choice")
    assert matcher.mask(ids("x")) is None
    assert matcher.error is not None
    assert "does not fit its grammar" in matcher.error.message
    assert matcher.mask([]) is None
    assert fresh("choice").mask([]) is not None


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("json_schema", "{", "not valid JSON"),
        ("json_schema", "[" * 50_000, "nested too deeply"),
        ("json_schema", '{"items":' * 300 + "{}" + "}" * 300, "recursion limit"),
        ("json_schema", "3", "must be an object"),
        ("json_schema", '{"type": "objekt"}', "objekt"),
        ("json_schema", '{"$ref": "#"}', "no text fits"),
        ("json_schema", '{"$ref": "#/$defs/none"}', "does not exist"),
        ("json_schema", '{"$ref": "http://127.0.0.1:9/schema.json"}', "does not fetch"),
        ("json_schema", '{"not": {"type": "string"}}', "not"),
        ("json_schema", '{"enum": []}', "nsatisfiable"),
        ("json_schema", '{"type": "string", "pattern": "(a"}', "unclosed group"),
        ("json_schema", json.dumps({"allOf": [{"properties": {f"a{n}": {}}} for n in range(900)]}), "too large"),
        ("json_schema", '{"const": "\\ud800"}', "cannot be read"),
        ("json_schema", '{"minimum": 1e400}', "cannot be"),
        ("json_schema", '{"minimum": 1' + "0" * 400 + "}", "cannot be"),
        ("choice", '["\\ud800"]', "cannot be read"),
        ("regex", "(?=a)b", "look-around"),
        ("regex", "(" * 400 + "a" + ")" * 400, "cannot be followed"),
        ("choice", "[]", "at least one"),
        ("choice", '["a", 1]', "texts"),
        ("choice", json.dumps(["a"] * (MAX_CHOICES + 1)), "at most"),
    ],
)
def test_what_cannot_be_followed_is_refused(kind: str, text: str, why: str) -> None:
    matcher = _until_built(Grammar(kind, text, ENDS))
    assert isinstance(matcher, InvalidArgument)
    assert re.search(re.escape(why), matcher.message)
    assert "\n" not in matcher.message


def _until_built(grammar: Grammar) -> Matcher | Exception | None:
    """A matcher, or the error that it has once its grammar is looked at."""
    try:
        matcher = builder().matcher(grammar)
    except InvalidArgument as error:
        return error
    return matcher.error if matcher.mask([]) is None else matcher


def test_a_lenient_schema_is_followed_as_far_as_can_be() -> None:
    schema = {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True}
    assert isinstance(_until_built(Grammar("json_schema", json.dumps(schema), ENDS)), InvalidArgument)
    matcher = _until_built(Grammar("json_schema_lenient", json.dumps(schema), ENDS))
    assert isinstance(matcher, Matcher)
    assert matcher.allows(ids("["), ids("t")[0])
    assert not matcher.allows(ids("["), ids('"')[0])


def test_what_is_too_long_or_of_no_kind_is_not_looked_at() -> None:
    with pytest.raises(InvalidArgument, match=f"{MAX_GRAMMAR_BYTES} are allowed"):
        Grammar("regex", "é" * (MAX_GRAMMAR_BYTES // 2 + 1))
    with pytest.raises(InvalidArgument, match="surrogate"):
        Grammar("regex", "\ud800")
    with pytest.raises(InvalidArgument, match="one of"):
        Grammar("xml", "")


def test_a_grammar_that_has_grown_too_far_is_built_anew_for_the_next() -> None:
    """What this expression must remember doubles with each token."""
    grammar, letters = Grammar("regex", "(.*a.{40}b.*)", ENDS), [*ids("a"), *ids("b"), *ids("c")]
    rng = random.Random(0)
    matcher, answer = builder().matcher(grammar), list[int]()
    while matcher.mask(answer) is not None:
        answer.append(rng.choice(letters))
    assert isinstance(matcher.error, InvalidArgument)
    assert "too complex" in matcher.error.message
    assert builder().matcher(grammar).mask([]) is not None


def _params(name: str, **more: float) -> SamplingParams:
    return SamplingParams(stop_token_ids=ENDS, grammar=GRAMMARS[name], **more)  # type: ignore[arg-type]


def _running(engine: Engine, params: SamplingParams, *, prompt: int = 6) -> Sequence:
    own = sequence([5 + place for place in range(prompt)], sampling=params)
    engine.open(own)
    while not engine.admit():
        pass
    return own


def _write(engine: Engine, *sequences: Sequence) -> None:
    """One token for each."""
    step = engine.step()
    assert step is not None
    assert {id(own) for own in step.sequences} == {id(own) for own in sequences}
    for own, token_id in zip(step.sequences, step.proposals, strict=True):
        own.append([token_id])


def test_an_engine_writes_what_the_grammar_allows_and_leaves_neighbours_alone(
    make_engine: Callable[..., Engine], reference: Callable[[list[int]], torch.Tensor]
) -> None:
    engine = make_engine()
    free = _running(engine, SamplingParams(temperature=0.0), prompt=9)
    own = _running(engine, _params("person", temperature=0.0))
    for place in range(24):
        _write(engine, free, own)
        if place in (5, 11, 17):
            # Proposals that are dropped, and the last token fed again.
            engine.truncate(own, len(own) - 3)
            own.rewind()
    for row in (free, own):
        for length in range(row.num_prompt_tokens, len(row)):
            logits = reference(row.tokens[:length]).clone()
            if row is own:
                may = allowed(fresh("person"), row.tokens[row.num_prompt_tokens : length])
                logits[[token_id for token_id in range(len(logits)) if token_id not in may]] = float("-inf")
            best = logits.topk(2).values
            assert row.tokens[length] == int(logits.argmax()) or float(best[0] - best[1]) < 1e-3


def test_a_sequence_that_left_its_grammar_fails_alone(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()
    free, lost = _running(engine, SamplingParams(temperature=0.0)), _running(engine, _params("choice"))
    lost.append(ids("x"))
    step = engine.step()
    assert step is not None
    assert step.sequences == [free]
    assert step.failed == [lost]
    assert "does not fit its grammar" in why_failed(lost, "the model").message


def test_a_wrong_grammar_opens_no_sequence(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()
    params = SamplingParams(grammar=Grammar("json_schema", '{"type": "objekt"}', ENDS))
    own = sequence([5, 6], sampling=params)
    try:
        engine.open(own)
    except InvalidArgument:
        return
    # Built beside the loop: it is told by the first step.
    while not engine.admit():
        pass
    step = engine.step()
    assert step is not None
    assert step.failed == [own]


def test_masks_hold_for_draws_and_whole_distributions() -> None:
    own = Sequence([9, 9, *ids("ye")], 64, _params("choice", temperature=1.3, seed=3), 2)
    own.matcher = fresh("choice")
    may = allowed(own.matcher, ids("ye"))
    logits = torch.randn(1, NUM_TOKENS + 8, generator=torch.Generator().manual_seed(0))
    logits[:, NUM_TOKENS:] = float("-inf")
    before = logits.clone()
    (weights,) = probabilities(logits, [own])
    assert set(weights.nonzero().squeeze(1).tolist()) == may
    assert sample(logits, [own]).tolist()[0] in may
    assert torch.equal(logits, before)


def test_an_answer_that_is_to_be_longer_ends_where_the_grammar_leaves_nothing_else() -> None:
    own = Sequence([9, *ids("yes!")], 64, _params("choice", temperature=0.0, min_tokens=50), 1)
    own.matcher = fresh("choice")
    assert sample(torch.zeros(1, NUM_TOKENS), [own]).tolist()[0] in ENDS
