"""What an arm's answers come to."""

from collections.abc import Sequence

from .answers import Answer
from .arms import Arm
from .cost import ParameterCounts, Work, full_cost, published_cost
from .report_file import ArmFigures, Interval
from .statistics import Estimate, Resamples, proportion

NUM_PARTS = 10
"""Of an answer, for shares by position."""


def interval(estimate: Estimate) -> Interval:
    """An estimate as reports have it."""
    return Interval(value=estimate.value, low=estimate.low, high=estimate.high)


def arm_figures(
    arm: Arm, answers: Sequence[Answer], parameters: ParameterCounts, resamples: Resamples, tiers: Sequence[str]
) -> ArmFigures:
    """The figures of one arm, whose answers are in the order of the problems."""
    lengths = [float(answer.num_tokens) for answer in answers]
    written = [float(answer.num_tokens - answer.tokens[tiers[0]]) for answer in answers]
    published = published_costs(answers, parameters)
    full = full_costs(answers, parameters)
    works = [answer.work for answer in answers]
    computed = [work.computed for work in works if work is not None]
    total, count = sum(lengths), len(answers)
    num_right = sum(answer.right is True for answer in answers)
    return ArmFigures(
        name=arm.name,
        role=arm.role,
        routing=arm.routing,
        num_problems=count,
        num_right=num_right,
        num_unjudged=sum(answer.right is None for answer in answers),
        num_cut=sum(answer.finish == "length" for answer in answers),
        num_too_long=sum(answer.finish == "error" for answer in answers),
        num_degraded=sum(answer.degraded for answer in answers),
        accuracy=interval(proportion(num_right, count)),
        llm_share=interval(resamples.ratio(written, lengths)),
        shares={name: sum(answer.tokens[name] for answer in answers) / total if total else 0.0 for name in tiers},
        activated=interval(resamples.ratio(published, lengths)),
        published_cost=interval(resamples.mean(published)),
        full_cost=None if full is None else interval(resamples.mean(full)),
        tokens_per_s=throughput(answers),
        tokens_per_s_per_request=interval(
            resamples.ratio(lengths, [max(0.0, answer.ended_s - answer.started_s) for answer in answers])
        ),
        length=interval(resamples.mean(lengths)),
        prompt_length=sum(answer.prompt_tokens for answer in answers) / count,
        shares_by_position=shares_by_position(answers),
        hand_offs=_mean([answer.hand_offs for answer in answers]),
        computed=tuple(sum(column) / count for column in zip(*computed, strict=True))
        if len(computed) == count
        else None,
        rejected=_mean([answer.rejected for answer in answers]),
    )


def published_costs(answers: Sequence[Answer], parameters: ParameterCounts) -> list[float]:
    """Of each answer."""
    return [published_cost(Work(tuple(answer.tokens.values()), ()), parameters) for answer in answers]


def full_costs(answers: Sequence[Answer], parameters: ParameterCounts) -> list[float] | None:
    """Of each answer; None where the mesh gave no account of some."""
    works = [answer.work for answer in answers]
    known = [full_cost(work, parameters) for work in works if work is not None]
    return known if len(known) == len(works) else None


def throughput(answers: Sequence[Answer]) -> float:
    """Tokens per second of the time in which any request was open; pauses between turns and runs do not count."""
    busy_s, until_s = 0.0, float("-inf")
    for started_s, ended_s in sorted((answer.started_s, answer.ended_s) for answer in answers):
        busy_s += max(0.0, ended_s - max(started_s, until_s))
        until_s = max(until_s, ended_s)
    return sum(answer.num_tokens for answer in answers) / busy_s if busy_s > 0 else 0.0


def shares_by_position(answers: Sequence[Answer]) -> tuple[float, ...]:
    """The larger models' share of tokens in each tenth of the answers, from first to last."""
    totals, larger = [0] * NUM_PARTS, [0] * NUM_PARTS
    for answer in answers:
        for index, tier in enumerate(answer.tiers):
            part = index * NUM_PARTS // len(answer.tiers)
            totals[part] += 1
            larger[part] += tier != 0
    return tuple(count / total if total else 0.0 for count, total in zip(larger, totals, strict=True))


def _mean(values: Sequence[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None
