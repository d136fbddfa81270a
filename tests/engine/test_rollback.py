"""Extend, propose, truncate, pend and resume leave the KV as a fresh prefill would (C28, C32)."""

import random
from collections.abc import Callable

import pytest
import torch
from allroads.engine.engine import Engine, Step
from allroads.engine.sequence import Sequence, State

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


@pytest.mark.parametrize("block_size_tokens", [1, 16, 64])
def test_any_interleaving_equals_a_fresh_prefill(
    block_size_tokens: int, make_engine: MakeEngine, reference: Reference
) -> None:
    rng = random.Random(block_size_tokens)
    engine = make_engine(block_size_tokens=block_size_tokens, num_kv_tokens=1024, max_step_tokens=40, max_running=6)
    live: list[Sequence] = []
    waiting: list[Sequence] = []
    checked = 0
    for _ in range(400):
        match rng.randrange(8):
            case 0 if len(live) + len(waiting) < 8:
                prompt = [rng.randrange(3, VOCABULARY) for _ in range(rng.randint(1, 90))]
                one = sequence(prompt, room=rng.randint(8, 120))
                engine.open(one)
                waiting.append(one)
            case 1 if live:
                one = rng.choice(live)
                room = min(one.max_length - len(one), rng.randint(1, 20))
                one.append([rng.randrange(3, VOCABULARY) for _ in range(room)])
            case 2 if live:
                one = rng.choice(live)
                one.truncate(rng.randint(max(1, len(one) - 10), len(one)))
                one.rewind()
            case 3 if live:
                one = rng.choice(live)
                (engine.pend if one.state is State.RUNNING else engine.resume)(one)
            case 4 if live and rng.random() < 0.4:
                engine.close(live.pop(rng.randrange(len(live))))
            case 5 if waiting and rng.random() < 0.3:
                engine.close(waiting.pop())
            case _:
                step = engine.step()
                checked += _check(step, reference) if step is not None else 0
                for one, proposal in zip(step.sequences, step.proposals, strict=True) if step else ():
                    if len(one) < one.max_length and rng.random() < 0.7:
                        one.append([proposal])
        for one in engine.admit():
            waiting.remove(one)
            live.append(one)
        _check_invariants(engine, live)
    for one in live + waiting:
        engine.close(one)
    assert checked > 100
    assert engine.pool.num_free == engine.pool.num_blocks


def _check(step: Step, reference: Reference) -> int:
    for row, one in enumerate(step.sequences):
        assert torch.allclose(step.logits[row], reference(one.tokens), atol=1e-4)
    return len(step.sequences)


def _check_invariants(engine: Engine, live: list[Sequence]) -> None:
    held = [block for one in live for block in one.blocks]
    assert len(set(held)) == len(held)
    assert engine.pool.num_free + len(held) == engine.pool.num_blocks
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
