"""Extend, propose, truncate, pend and resume leave the KV as a fresh prefill would (C28, C32)."""

import random
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from allroads.config import CatchUp
from allroads.engine.engine import Engine
from allroads.engine.sequence import Sequence, State
from allroads.engine.step import Step

from .conftest import sequence

Reference = Callable[[list[int]], torch.Tensor]
MakeEngine = Callable[..., Engine]
VOCABULARY = 472


def _opened(engine: Engine, *sequences: Sequence) -> None:
    for one in sequences:
        engine.open(one)
    engine.admit()


def _step_until(engine: Engine, wanted: Sequence) -> tuple[int, torch.Tensor]:
    """Step until a sequence is complete; its proposal and logits."""
    while True:
        step = engine.step()
        assert step is not None
        for row, one in enumerate(step.sequences):
            if one is wanted:
                return step.proposals[row], step.logits[row]


@pytest.mark.parametrize("count", range(1, 9))
def test_rewinds_by_the_right_number(count: int, make_engine: MakeEngine, reference: Reference) -> None:
    engine = make_engine()
    for accepted in range(count + 1):
        one = sequence([7, 8, 9, 10, 11])
        _opened(engine, one)
        for _ in range(count):
            proposal, _ = _step_until(engine, one)
            one.append([proposal])
        one.truncate(5 + accepted)
        one.append([33])
        _, logits = _step_until(engine, one)
        assert one.num_computed == len(one) == 5 + accepted + 1
        assert torch.allclose(logits, reference(one.tokens), atol=1e-4)
        engine.close(one)
    assert engine.pool.num_free == engine.pool.num_blocks


@pytest.mark.parametrize("catch_up", ["idle", "eager"])
@pytest.mark.parametrize("block_size_tokens", [1, 16, 64])
def test_any_interleaving_equals_a_fresh_prefill(
    block_size_tokens: int, catch_up: CatchUp, make_engine: MakeEngine, reference: Reference
) -> None:
    """Prompts begin alike, so blocks are shared; roll-backs go into them; some sequences are computed ahead first."""
    rng = random.Random(block_size_tokens)
    engine = make_engine(
        block_size_tokens=block_size_tokens,
        num_kv_tokens=1024,
        max_step_tokens=40,
        max_running=6,
        catch_up=catch_up,
    )
    stems = [[rng.randrange(3, VOCABULARY) for _ in range(length)] for length in (130, 64, 17)]
    live: list[Sequence] = []
    waiting: list[Sequence] = []
    checked = judged = num_cached = 0
    for _ in range(700):
        match rng.randrange(10):
            case 0 | 1 if len(live) + len(waiting) < 8:
                stem = rng.choice(stems)
                prompt = stem[: rng.randint(1, len(stem))] + [
                    rng.randrange(3, VOCABULARY) for _ in range(rng.randint(1, 40))
                ]
                one = sequence(prompt, room=rng.randint(8, 120))
                one.is_ahead = rng.random() < 0.3
                engine.open(one)
                waiting.append(one)
            case 2 if live:
                # A hand-off: tokens that another model wrote, to be looked at.
                one = rng.choice(live)
                room = min(one.max_length - len(one), rng.randint(1, 20))
                one.append([rng.randrange(3, VOCABULARY) for _ in range(room)])
                one.opinions_from = len(one) - room
                one.is_ahead = False
            case 3 if live:
                one = rng.choice(live)
                engine.truncate(one, rng.randint(max(1, len(one) - 40), len(one)))
                one.is_ahead = False
                one.rewind()
            case 4 if live:
                one = rng.choice(live)
                (engine.pend if one.state is State.RUNNING else engine.resume)(one)
            case 5 if live and rng.random() < 0.4:
                engine.close(live.pop(rng.randrange(len(live))))
            case 6 if waiting and rng.random() < 0.3:
                engine.close(waiting.pop())
            case _:
                step = engine.step()
                if step is not None:
                    checked += _check(step, reference)
                    judged += _check_opinions(step, reference)
                for one, proposal in zip(step.sequences, step.proposals, strict=True) if step else ():
                    if len(one) < one.max_length and rng.random() < 0.7:
                        one.append([proposal])
        for one in engine.admit():
            waiting.remove(one)
            live.append(one)
            num_cached += one.num_cached
        _check_invariants(engine, live)
    for one in live + waiting:
        engine.close(one)
    engine.pool.check()
    assert checked > 100
    assert judged > 50
    assert num_cached >= 64
    assert engine.pool.num_free == engine.pool.num_blocks


def _check(step: Step, reference: Reference) -> int:
    for row, one in enumerate(step.sequences):
        assert not one.is_ahead
        assert torch.allclose(step.logits[row], reference(one.tokens), atol=1e-4)
    return len(step.sequences)


def _check_opinions(step: Step, reference: Reference) -> int:
    """An opinion is what the model would write after the tokens before, unless it is too close a call."""
    num_judged = 0
    for opinion in step.opinions:
        tokens = opinion.sequence.tokens
        for index, token_id in enumerate(opinion.token_ids, opinion.start):
            logits = reference(tokens[:index])
            best = logits.topk(2).values
            if best[0] - best[1] > 2e-4:
                assert token_id == int(logits.argmax())
                num_judged += 1
        agreed = [mine == its for mine, its in zip(opinion.token_ids, tokens[opinion.start :], strict=False)]
        assert opinion.num_agreed == sum(agreed)
    return num_judged


def _check_invariants(engine: Engine, live: list[Sequence]) -> None:
    engine.pool.check()
    owners = Counter(block for one in live for block in one.blocks)
    assert engine.pool.num_free + len(owners) == engine.pool.num_blocks
    writable = [block for one in live for block in one.blocks[one.num_computed // engine.pool.block_size :]]
    assert all(owners[block] == 1 for block in writable), "a block that is still written has two owners"
    for block, num_owners in owners.items():
        assert engine.pool.ref_count(block) == num_owners
    for one in live:
        assert 0 <= one.num_computed <= len(one) <= one.max_length
        assert len(one.blocks) * engine.pool.block_size >= one.max_length


def test_neighbours_change_nothing(make_engine: MakeEngine) -> None:
    rng = random.Random(3)
    prompts = [[rng.randrange(3, VOCABULARY) for _ in range(length)] for length in (3, 17, 200, 16, 33, 90, 5)]
    engine = make_engine()

    def generate(one: Sequence, others: list[Sequence], *, joining: list[Sequence]) -> list[int]:
        _opened(engine, one, *others)
        while one.position < 30:
            step = engine.step()
            assert step is not None
            for each, proposal in zip(step.sequences, step.proposals, strict=True):
                if len(each) < each.max_length:
                    each.append([proposal])
            if one.position == 5:
                _opened(engine, *joining)
                joining = []
            if one.position == 15 and others:
                engine.close(others.pop())
        for each in [one, *others]:
            engine.close(each)
        return one.tokens

    alone = [generate(sequence(prompt), [], joining=[]) for prompt in prompts]
    for index, prompt in enumerate(prompts):
        rest = [sequence(other) for other in prompts if other is not prompt]
        assert generate(sequence(prompt), rest[:3], joining=rest[3:]) == alone[index]
