"""Checks of how answers end: stop tokens of either side, the number of tokens, and aborts."""

import asyncio
from dataclasses import replace

from ..policies.policy import HOME
from .bench import Bench
from .kv import free_kv_tokens
from .question import Question
from .result import Finding, failed, passed_unless, skipped

_NUM_STOPS = 6
_LIMITS = (1, 2, 11)
"""Values of max_tokens: ends where a policy begins, and one in the middle of visits and drafts."""
_NUM_LIMITED = 6
_NUM_ABORTED = 8
_LONG = 200
_FREED_WITHIN_S = 10.0
_POLL_S = 0.05


async def small_stop_ends(bench: Bench) -> Finding:
    """A stop token that the small model wrote ends the answer."""
    return await _stop_ends(bench, is_large=False)


async def large_stop_ends(bench: Bench) -> Finding:
    """So does one that a larger model wrote."""
    return await _stop_ends(bench, is_large=True)


async def max_tokens_counts_committed(bench: Bench) -> Finding:
    """An answer without a stop token has exactly `max_tokens` tokens, whatever was proposed or drafted."""
    faults = []
    for limit in _LIMITS:
        few = [replace(question, max_tokens=limit, ignores_eos=True) for question in bench.questions[:_NUM_LIMITED]]
        for question, answer in zip(few, await bench.client.ask(few), strict=True):
            if answer.error is not None:
                faults.append(f"max_tokens {limit}, prompt {question.number}: {answer.error.message}")
            elif len(answer.token_ids) != limit or answer.is_stopped:
                end = "a stop token" if answer.is_stopped else "its length"
                faults.append(
                    f"max_tokens {limit}, prompt {question.number}: {len(answer.token_ids)} tokens, ended by {end}"
                )
    return passed_unless(faults, f"max_tokens {', '.join(map(str, _LIMITS))}")


async def aborts_free_all_tiers(bench: Bench) -> Finding:
    """Requests aborted in the middle leave no KV behind on any tier."""
    before = await free_kv_tokens(bench.settings, bench.client)
    room = bench.mesh.max_context_tokens
    questions = [
        replace(question, max_tokens=min(_LONG, room - len(question.prompt)), ignores_eos=True)
        for question in bench.questions[:_NUM_ABORTED]
    ]
    asked = await bench.client.open(questions)
    num_aborted = 0
    for index, one in enumerate(asked):
        try:
            async with asyncio.timeout(bench.client.timeout_s):
                await one.until_written(2 * index)
        except TimeoutError:
            return failed(
                [f"prompt {questions[index].number}: no {2 * index} tokens within {bench.client.timeout_s:g} s"]
            )
        num_aborted += not one.is_done.is_set()
        await bench.client.abort([one])
    if not num_aborted:
        return skipped("all requests had ended before they could be aborted")
    held = await _held(bench, before)
    faults = [f"{name}: {count} tokens of KV are still held" for name, count in held.items()]
    return passed_unless(faults, f"{num_aborted} requests aborted after 0 to {2 * (_NUM_ABORTED - 1)} tokens")


async def tokens_are_counted_by_tier(bench: Bench) -> Finding:
    """Usage counts what each tier wrote of the answer, and nothing else."""
    faults = []
    for question, answer in zip(bench.questions, bench.answers, strict=True):
        usage = answer.usage
        counted, seen = list(usage.num_committed_tokens), [answer.tiers.count(tier) for tier in range(bench.num_tiers)]
        if answer.error is not None:
            faults.append(f"prompt {question.number}: {answer.error.message}")
        elif counted != seen:
            faults.append(f"prompt {question.number}: usage counts {counted} tokens by tier, the answer has {seen}")
        elif usage.num_prompt_tokens != len(question.prompt):
            faults.append(f"prompt {question.number}: usage counts {usage.num_prompt_tokens} tokens of the prompt")
        elif usage.degraded:
            faults.append(f"prompt {question.number}: finished by the small model alone, a peer was lost")
    totals = [sum(answer.tiers.count(tier) for answer in bench.answers) for tier in range(bench.num_tiers)]
    shown = ", ".join(f"{count} by {name}" for name, count in zip(bench.mesh.tier_names, totals, strict=True))
    return passed_unless(faults, f"{sum(totals)} tokens: {shown}")


async def _stop_ends(bench: Bench, *, is_large: bool) -> Finding:
    questions = _stopping(bench, is_large=is_large)
    expected = await bench.expect(questions)
    # A stop token may change what is drafted before it, and so who writes it: those are no use here.
    pairs = [
        (question, answer)
        for question, answer in zip(questions, expected, strict=True)
        if answer.is_stopped and (answer.tiers[-1] != HOME) is is_large
    ]
    if not pairs:
        who = "a larger model" if is_large else "the small model"
        return skipped(f"no answer has a token of {who}; other parameters may give one: --set NAME=VALUE")
    questions, expected = [question for question, _ in pairs], [answer for _, answer in pairs]
    answers = await bench.client.ask(questions)
    faults = [
        f"prompt {question.number}: goes on after the stop token {_stop_of(question)} (tier {tier})"
        for question, answer in zip(questions, answers, strict=True)
        for token_id, tier in list(zip(answer.token_ids, answer.tiers, strict=True))[:-1]
        if token_id == _stop_of(question)
    ]
    compared = await bench.compare(questions, ("the mesh", answers), ("the reference", expected))
    return passed_unless([*faults, *compared.faults], f"{compared.num_equal} answers")


def _stopping(bench: Bench, *, is_large: bool) -> list[Question]:
    """Questions whose answer has, in its middle, a token of one side for the first time; it is made a stop token."""
    found: list[Question] = []
    for question, answer in zip(bench.questions, bench.expected, strict=True):
        fresh = [
            position
            for position, (token_id, tier) in enumerate(zip(answer.token_ids, answer.tiers, strict=True))
            if (tier != HOME) is is_large and token_id not in answer.token_ids[:position]
        ]
        if question.ignores_eos and fresh and len(found) < _NUM_STOPS:
            stop = answer.token_ids[fresh[len(fresh) // 2]]
            found.append(replace(question, stop_token_ids=frozenset({stop})))
    return found


def _stop_of(question: Question) -> int:
    (token_id,) = question.stop_token_ids
    return token_id


async def _held(bench: Bench, before: dict[str, int]) -> dict[str, int]:
    """KV by tier that is not free as it was before; waits a while for it."""
    deadline_s = asyncio.get_running_loop().time() + _FREED_WITHIN_S
    while True:
        now = await free_kv_tokens(bench.settings, bench.client)
        held = {name: before[name] - count for name, count in now.items() if count != before[name]}
        if not held or asyncio.get_running_loop().time() > deadline_s:
            return held
        # Aborts travel from tier to tier, and nobody tells when they have arrived.
        await asyncio.sleep(_POLL_S)
