"""Checks that hold answers against what they must be: the reference's, one model's own, the same in any company."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain, cycle

from ..policies.policy import HOME
from .bench import Bench, Compared
from .result import Finding, failed, passed, skipped

_NUM_ALONE = 10
_COMPANIONS = ("slm", "llm", "entropy", "r2r", "speculative")
"""Policies for the neighbours, as far as the mesh serves them."""


async def equals_reference(bench: Bench) -> Finding:
    """Greedy answers are token for token those of the sequential definition, and by the same tiers."""
    compared = await bench.compare(bench.questions, ("the mesh", bench.answers), ("the reference", bench.expected))
    return _enough(compared, bench)


async def equals_reference_sampled(bench: Bench) -> Finding:
    """So are sampled ones: draws depend on seed and position alone."""
    questions = [replace(question, is_greedy=False) for question in bench.questions]
    answers = await bench.client.ask(questions)
    expected = await bench.expect(questions)
    return _enough(await bench.compare(questions, ("the mesh", answers), ("the reference", expected)), bench)


async def never_is_small(bench: Bench) -> Finding:
    """With `Policy.never` the small model alone writes, as it does by itself."""
    return await _is_one_model(bench, "never", bench.policy.never, HOME, tiers_count=True)


async def always_is_large(bench: Bench) -> Finding:
    """With `Policy.always` the answer is the large model's own, whoever proposed it."""
    return await _is_one_model(bench, "always", bench.policy.always, bench.num_tiers - 1, tiers_count=False)


async def batched_is_alone(bench: Bench) -> Finding:
    """An answer is the same alone and among others, greedy and sampled."""
    few = bench.questions[:_NUM_ALONE]
    questions = [*few, *(replace(question, is_greedy=False) for question in few)]
    alone = [answer for question in questions for answer in await bench.client.ask([question])]
    crowd = [replace(question, is_greedy=False) for question in bench.questions[_NUM_ALONE:]]
    batched = (await bench.client.ask([*questions, *crowd]))[: len(questions)]
    compared = await bench.compare(questions, ("alone the mesh", alone), ("among others it", batched))
    return _all_equal(compared, f"{len(few)} prompts greedy and sampled, alone and among {len(questions) + len(crowd)}")


async def neighbours_are_unaffected(bench: Bench) -> Finding:
    """Requests of other policies in the same batch get the answers that they get without this one."""
    served = {policy.name for policy in bench.mesh.policies} - {bench.policy.name}
    companions = [name for name in _COMPANIONS if name in served]
    quarter = bench.questions[: max(1, len(bench.questions) // 4)]
    questions = [question for name in companions for question in bench.of_policy(name, quarter)]
    before = await bench.client.ask(questions)
    # Ours lie between them, so that they share steps.
    mixed = [*chain.from_iterable(zip(questions, cycle(bench.questions), strict=False))]
    among = (await bench.client.ask(mixed))[::2]
    compared = await bench.compare(questions, ("without the policy the mesh", before), ("with it, it", among))
    return _all_equal(compared, f"{len(questions)} requests of {', '.join(companions)}")


async def _is_one_model(
    bench: Bench, which: str, parameters: Mapping[str, float] | None, tier: int, *, tiers_count: bool
) -> Finding:
    if parameters is None:
        return skipped(f"the policy names no parameters for it; if there are some, set `{which}`")
    questions = bench.with_parameters(parameters)
    answers = await bench.client.ask(questions)
    expected = await asyncio.to_thread(bench.reference.alone, tier, questions)
    if not tiers_count:
        answers = [replace(answer, tiers=[tier] * len(answer.token_ids)) for answer in answers]
    name = bench.mesh.tier_names[tier]
    compared = await bench.compare(questions, ("the mesh", answers), (f"{name} alone", expected), tier=tier)
    return _enough(compared, bench)


def _enough(compared: Compared, bench: Bench) -> Finding:
    """All that can be compared must be equal, and there must be enough of it."""
    if compared.faults:
        return failed(compared.faults)
    close = f"; {compared.num_close} left out, where rounding decides" if compared.num_close else ""
    if compared.num_equal < bench.num_prompts:
        return failed([f"only {compared.num_equal} prompts can be compared{close}; ask more with --num-prompts"])
    return passed(f"{compared.num_equal} prompts{close}")


def _all_equal(compared: Compared, reason: str) -> Finding:
    close = f"; {compared.num_close} left out, where rounding decides" if compared.num_close else ""
    return failed(compared.faults) if compared.faults else passed(reason + close)
