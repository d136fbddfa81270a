"""Answers that must have a form: it holds whoever writes, and each token is the writer's best that the form allows."""

import json
import random
from pathlib import Path

import pytest
import torch
from allroads.engine.grammar import Grammar
from allroads.engine.matcher import GrammarBuilder, Matcher
from allroads.mesh.wire import common_pb2 as pb
from allroads.mesh.wire import model_pb2
from tokenizers import Tokenizer
from torch import Tensor

from ..doubles.home_client import HomeClient, Reply, request
from ..doubles.processes import MeshProcesses
from ..oracle import Oracle, last_outputs

EOS = 2
ROUNDING = 1e-3
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Aya", "Ben", "Cem"]},
        "count": {"type": "integer", "minimum": -5, "maximum": 2000},
        "sure": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "count", "sure", "tags"],
    "additionalProperties": False,
}
GRAMMARS = {
    "schema": Grammar("json_schema", json.dumps(SCHEMA), frozenset({EOS})),
    "object": Grammar("json_schema", '{"type": "object"}', frozenset({EOS})),
    "regex": Grammar("regex", "(yes|no)( [0-9]{1,3})?", frozenset({EOS})),
}
POLICIES: dict[str, dict[str, float]] = {
    "slm": {},
    "llm": {},
    "r2r": {"threshold": 0.5},
    "random": {"share": 0.5},
    "lossless": {"draft_tokens": 4},
    "speculative": {"draft_tokens": 4},
    "cascade-chow": {"alpha": 0.5},
    "cascade-v3": {"alpha": 0.9},
    "bild": {"fallback": 0.1},
    "me": {},
    "r-stitch": {"threshold": 0.3},
}


@pytest.fixture(scope="module")
def oracle(tiny_pair: Path) -> Oracle:
    return Oracle(tiny_pair)


@pytest.fixture(scope="module")
def grammars(tiny_pair: Path) -> GrammarBuilder:
    return GrammarBuilder(tiny_pair / "llm", [EOS])


@pytest.fixture(scope="module")
def tokenizer(tiny_pair: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tiny_pair / "llm" / "tokenizer.json"))


def _prompts(count: int) -> list[list[int]]:
    rng = random.Random(11)
    return [[rng.randrange(3, 472) for _ in range(rng.randint(1, 40))] for _ in range(count)]


def _ask(
    grammar: str, prompt: list[int], policy: str, *, max_tokens: int = 100, temperature: float = 0.0, seed: int = 0
) -> model_pb2.OpenRequest:
    given = {"weights": [0.5, 0.5]} if policy == "me" else POLICIES[policy]
    wire = request(prompt, policy, max_tokens=max_tokens, temperature=temperature, seed=seed, given=given)
    wire.sampling.grammar.CopyFrom(pb.Grammar(kind=GRAMMARS[grammar].kind, text=GRAMMARS[grammar].text))
    wire.sampling.num_logprobs = 0
    return wire


async def _answers(mesh: MeshProcesses, *wires: model_pb2.OpenRequest) -> list[Reply]:
    async with HomeClient(mesh.settings.slm.address) as client:
        replies = await client.answer(*wires)
    assert [reply.error for reply in replies] == [None] * len(replies)
    return replies


def _check_form(grammar: str, reply: Reply, grammars: GrammarBuilder, tokenizer: Tokenizer) -> bool:
    """That an answer fits its grammar as far as it goes; whether it came to its end."""
    matcher = grammars.matcher(GRAMMARS[grammar])
    for length, token_id in enumerate(reply.token_ids):
        assert matcher.allows(reply.token_ids[:length], token_id)
    assert reply.finished is not None
    is_whole = reply.finished.reason == pb.FINISH_REASON_STOP
    assert is_whole == (reply.token_ids[-1] == EOS)
    if is_whole and grammar != "regex":
        content = json.loads(tokenizer.decode(reply.token_ids[:-1], skip_special_tokens=False))
        assert isinstance(content, dict)
        if grammar == "schema":
            assert set(content) == {"name", "count", "sure", "tags"}
            assert content["name"] in ("Aya", "Ben", "Cem")
            assert type(content["count"]) is int
            assert -5 <= content["count"] <= 2000
            assert type(content["sure"]) is bool
            assert 1 <= len(content["tags"]) <= 3
            assert all(isinstance(tag, str) and len(tag) <= 4 for tag in content["tags"])
    return is_whole


@pytest.mark.parametrize("policy", POLICIES)
async def test_the_form_holds_whoever_writes(
    policy: str, mesh: MeshProcesses, grammars: GrammarBuilder, tokenizer: Tokenizer
) -> None:
    wires = [
        _ask(grammar, prompt, policy, temperature=temperature, seed=seed)
        for grammar in GRAMMARS
        for temperature in (0.0, 1.0)
        for seed, prompt in enumerate(_prompts(3))
    ]
    names = [grammar for grammar in GRAMMARS for _ in range(6)]
    replies = await _answers(mesh, *wires)
    for grammar, reply in zip(names, replies, strict=True):
        is_whole = _check_form(grammar, reply, grammars, tokenizer)
        assert is_whole or grammar == "object"
    tiers = {tier for reply in replies for tier in reply.tiers}
    assert tiers == ({0} if policy == "slm" else {1} if policy == "llm" else {0, 1})


def _masked(logits: Tensor, matcher: Matcher, answer: list[int]) -> Tensor:
    masked = logits.clone()
    masked[[token_id for token_id in range(len(masked)) if not matcher.allows(answer, token_id)]] = float("-inf")
    return masked


def _best(masked: Tensor) -> tuple[int, float]:
    """The likeliest token, and by how much it is."""
    best = masked.topk(2).values
    return int(masked.argmax()), float(best[0] - best[1])


@pytest.mark.parametrize("policy", ["slm", "llm", "r2r", "random", "lossless"])
async def test_greedy_answers_are_the_slow_definitions(
    policy: str, mesh: MeshProcesses, oracle: Oracle, grammars: GrammarBuilder
) -> None:
    """Who writes a token is decided by the raw features of the proposal, which the grammar has a say in."""
    prompts = _prompts(4)
    replies = await _answers(mesh, *(_ask("schema", prompt, policy) for prompt in prompts))
    decide = oracle.r2r(0.5)
    for prompt, reply in zip(prompts, replies, strict=True):
        matcher = grammars.matcher(GRAMMARS["schema"])
        for place, (token_id, tier) in enumerate(zip(reply.token_ids, reply.tiers, strict=True)):
            answer = reply.token_ids[:place]
            with torch.inference_mode():
                (small,), (hidden,) = last_outputs(oracle.slm, [prompt + answer])
                (large,), _ = last_outputs(oracle.llm, [prompt + answer])
                proposal, sure = _best(_masked(small, matcher, answer))
                own, certain = _best(_masked(large, matcher, answer))
                is_large, margin = decide(place, small, hidden, proposal)
            if min(sure, certain) < ROUNDING:
                break
            if policy == "r2r":
                if margin < ROUNDING:
                    break
                assert tier == is_large
            assert token_id == (own if tier or policy == "lossless" else proposal)


async def test_log_probabilities_stay_those_of_the_model(mesh: MeshProcesses, oracle: Oracle) -> None:
    (prompt,) = _prompts(1)
    (reply,) = await _answers(mesh, _ask("schema", prompt, "random"))
    for place, (token_id, tier, entry) in enumerate(zip(reply.token_ids, reply.tiers, reply.logprobs, strict=True)):
        with torch.inference_mode():
            (raw,), _ = last_outputs(oracle.llm if tier else oracle.slm, [prompt + reply.token_ids[:place]])
        assert entry.logprob == pytest.approx(float(raw.log_softmax(dim=-1)[token_id]), abs=1e-3)


async def test_neighbours_without_a_form_do_not_notice(mesh: MeshProcesses) -> None:
    prompts = _prompts(4)
    free = [request(prompt, "random", max_tokens=40, share=0.5, seed=3) for prompt in prompts]
    alone = [(await _answers(mesh, wire))[0] for wire in free]
    among = (await _answers(mesh, *free, *(_ask("schema", prompt, "random") for prompt in prompts)))[: len(free)]
    assert [(reply.token_ids, reply.tiers) for reply in among] == [(reply.token_ids, reply.tiers) for reply in alone]


async def test_an_answer_that_goes_on_elsewhere_goes_on_in_its_form(mesh: MeshProcesses) -> None:
    (prompt,) = _prompts(1)
    (whole,) = await _answers(mesh, _ask("schema", prompt, "lossless"))
    for length in (1, len(whole.token_ids) // 2, len(whole.token_ids) - 1):
        wire = _ask("schema", prompt, "lossless")
        wire.committed_token_ids.extend(whole.token_ids[:length])
        wire.committed_tiers.extend(whole.tiers[:length])
        (rest,) = await _answers(mesh, wire)
        assert whole.token_ids[:length] + rest.token_ids == whole.token_ids


async def test_an_answer_that_is_cut_off_ends_by_its_length(mesh: MeshProcesses) -> None:
    (prompt,) = _prompts(1)
    (reply,) = await _answers(mesh, _ask("schema", prompt, "r2r", max_tokens=5))
    assert reply.finished is not None
    assert reply.finished.reason == pb.FINISH_REASON_LENGTH
    assert len(reply.token_ids) == 5


async def test_what_cannot_be_followed_is_refused_by_name(mesh: MeshProcesses) -> None:
    (prompt,) = _prompts(1)
    wrong, endless = _ask("schema", prompt, "random"), _ask("schema", prompt, "random")
    wrong.sampling.grammar.text = '{"type": "objekt"}'
    endless.sampling.ignore_eos = True
    async with HomeClient(mesh.settings.slm.address) as client:
        replies = await client.answer(wrong, endless, _ask("regex", prompt, "random"))
    errors = [reply.error for reply in replies]
    assert [None if error is None else (error.code, error.field) for error in errors] == [
        (pb.ERROR_CODE_INVALID_ARGUMENT, "response_format"),
        (pb.ERROR_CODE_INVALID_ARGUMENT, "ignore_eos"),
        None,
    ]
