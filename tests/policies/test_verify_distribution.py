"""Under sampling, drafts and judgements together give the target distribution: whole answers, by chi-square.

Small models with three words of memory: each is a table of logits by the last token. Answers of three tokens are
drafted, judged, rolled back and drafted again, as the mesh does it, and counted against the product of the targets.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from allroads.engine.sampling import SamplingParams, draw, sample
from allroads.policies import cascade, judging, speculative
from allroads.policies.cascade import CASCADES, Cascade, CascadeChow
from allroads.policies.drafting import Drafting
from allroads.policies.policy import Drafts, Judgement, Return
from allroads.policies.speculative import Lossless, Speculative
from torch import Tensor

from ..engine.sampling_reference import PlainRow, adjusted
from .views import draft_of, join, view

VOCABULARY, LENGTH, NUM_ANSWERS = 4, 3, 6000
_GENERATOR = torch.Generator().manual_seed(42)
SMALL, LARGE = (1.3 * torch.randn(2, VOCABULARY + 1, VOCABULARY, generator=_GENERATOR)).unbind()
"""Logits by the last token; the last row is for the beginning."""
Target = Callable[[list[int]], list[float]]
PLAIN = SamplingParams()
ASKS = SamplingParams(
    temperature=0.7, top_k=3, top_p=0.97, min_p=0.02, presence_penalty=0.6, repetition_penalty=1.2,
    logit_bias=((1, 0.8),),
)  # fmt: skip


@pytest.mark.parametrize("policy", [Speculative(), Lossless()], ids=lambda policy: policy.name)
@pytest.mark.parametrize(("params", "count"), [(PLAIN, 1), (PLAIN, 3), (ASKS, 2)], ids=["1", "3", "2-asks"])
def test_the_answer_is_distributed_as_the_large_models(policy: Drafting, params: SamplingParams, count: int) -> None:
    given = {"draft_tokens": count, "adaptive": 0}
    assert _statistic(_answers(policy, given, params), _large(params)) < _limit()


def test_an_adaptive_draft_changes_no_distribution() -> None:
    answers = _answers(Speculative(), {}, PLAIN)
    assert _statistic(answers, _large(PLAIN)) < _limit()


@pytest.mark.parametrize(
    ("kind", "alpha"), [(CASCADES[0], 0.3), (CASCADES[1], 0.1), (CASCADES[2], 0.3), *((k, 0.3) for k in CASCADES[3:])]
)
@pytest.mark.parametrize(("params", "count"), [(ASKS, 1), (PLAIN, 3)], ids=["1-asks", "3"])
def test_a_cascades_answer_follows_its_target(
    kind: type[Cascade], alpha: float, params: SamplingParams, count: int
) -> None:
    target = _cascade(kind.name, alpha, params)
    answers = _answers(kind(), {"draft_tokens": count, "alpha": alpha}, params)
    assert _statistic(answers, target) < _limit()
    # And the test can tell: the target is neither model's.
    assert _statistic(answers, _large(params)) > 3 * _limit()
    assert _statistic(answers, lambda text: _distribution(SMALL, text, params)) > 3 * _limit()


Parts = Iterator[tuple[judging.DraftRows, Tensor, Tensor]]


def _keep_all(parts: Parts) -> tuple[list[bool], list[int]]:
    rows = [row for part, _, _ in parts for row in part.rows]
    return [True] * len(rows), [0] * len(rows)


def _draw_anew_from_the_target(parts: Parts) -> tuple[list[bool], list[int]]:
    """The commonest mistake: what takes a rejected draft's place is drawn from t and not from max(0, t - q)."""
    kept = list(parts)
    stands, _ = judging.speculate(iter(kept))
    replacements = [
        index for part, _, target in kept for index in draw(target, part.points(0x1234567)).squeeze(1).tolist()
    ]
    return stands, replacements


@pytest.mark.parametrize("wrong", [_keep_all, _draw_anew_from_the_target])
def test_a_wrong_rule_is_caught(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculative, "speculate", wrong)
    answers = _answers(Speculative(), {"draft_tokens": 2, "adaptive": 0}, PLAIN)
    assert _statistic(answers, _large(PLAIN)) > 3 * _limit()
    monkeypatch.setattr(cascade, "speculate", wrong)
    answers = _answers(CASCADES[4](), {"draft_tokens": 2, "alpha": 0.3}, PLAIN)
    assert _statistic(answers, _cascade("cascade-v2", 0.3, PLAIN)) > 3 * _limit()


@pytest.mark.parametrize("salt", ["_ACCEPT_SALT", "_RESAMPLE_SALT"])
def test_judging_by_the_numbers_that_drafts_were_drawn_by_is_caught(salt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, salt, 0)
    answers = _answers(Speculative(), {"draft_tokens": 2, "adaptive": 0}, PLAIN)
    assert _statistic(answers, _large(PLAIN)) > 3 * _limit()


def test_a_token_after_all_drafts_of_a_cascade_is_caught() -> None:
    class WithBonus(CascadeChow):
        def verify(self, drafts: Drafts) -> list[Judgement]:
            after = [int(sample(own[-1:], rows[-1:])) for own, rows in zip(drafts.logits, drafts.rows, strict=True)]
            return [
                Judgement(judgement.num_accepted, own if judgement.token_id is None else judgement.token_id)
                for judgement, own in zip(super().verify(drafts), after, strict=True)
            ]

    answers = _answers(WithBonus(), {"draft_tokens": 1, "alpha": 0.3}, PLAIN)
    assert _statistic(answers, _cascade("cascade-chow", 0.3, PLAIN)) > 3 * _limit()


def _answers(policy: Drafting, given: Mapping[str, float], params: SamplingParams) -> Counter[tuple[int, ...]]:
    """Answers of many seeds."""
    one = view(policy, given=dict(given), is_greedy=False, max_tokens=LENGTH)
    requests = [replace(one, seed=seed, memory={}) for seed in range(NUM_ANSWERS)]
    own = [replace(params, seed=seed) for seed in range(NUM_ANSWERS)]
    texts: list[list[int]] = [[] for _ in requests]
    while open_rows := [row for row, text in enumerate(texts) if len(text) < LENGTH]:
        drafted: list[list[int]] = [[] for _ in open_rows]
        smalls: list[list[Tensor]] = [[] for _ in open_rows]
        lengths = [min(policy.length(requests[row]), LENGTH - len(texts[row])) for row in open_rows]
        for place in range(max(lengths)):
            going = [index for index, length in enumerate(lengths) if length > place]
            contexts = [texts[open_rows[index]] + drafted[index] for index in going]
            logits = torch.stack([_row(SMALL, text) for text in contexts])
            rows = [PlainRow(own[open_rows[index]], answer=text) for index, text in zip(going, contexts, strict=True)]
            for index, token_id, small in zip(going, sample(logits, rows).tolist(), logits, strict=True):
                drafted[index].append(token_id)
                smalls[index].append(small)
        parts = []
        for index, row in enumerate(open_rows):
            request, text = requests[row], texts[row]
            request.position = len(text)
            large = torch.stack([_row(LARGE, text + drafted[index][:n]) for n in range(len(drafted[index]) + 1)])
            part = draft_of(request, drafted[index], large, torch.stack(smalls[index]), own[row])
            part.rows[0] = [PlainRow(own[row], answer=text + drafted[index][:n]) for n in range(len(large))]
            parts.append(part)
        for index, judgement in enumerate(policy.verify(join(parts))):
            after = [] if judgement.token_id is None else [judgement.token_id]
            num_drafts, num_accepted = len(drafted[index]), judgement.num_accepted
            request, text = requests[open_rows[index]], texts[open_rows[index]]
            policy.receive(request, Return(1, after, num_drafts=num_drafts, num_accepted=num_accepted))
            text += drafted[index][:num_accepted] + after
    return Counter(tuple(text[:LENGTH]) for text in texts)


def _row(table: Tensor, text: list[int]) -> Tensor:
    return table[text[-1] if text else VOCABULARY]


def _large(params: SamplingParams) -> Target:
    return lambda text: _distribution(LARGE, text, params)


def _distribution(table: Tensor, text: list[int], params: SamplingParams) -> list[float]:
    """What is drawn from after a text, by the definition."""
    logits = adjusted(_row(table, text).tolist(), PlainRow(params, answer=text))
    weights = [math.exp(value / params.temperature) for value in logits]
    total, most, before = sum(weights), max(weights), 0.0
    kept = [0.0] * VOCABULARY
    for rank, token_id in enumerate(sorted(range(VOCABULARY), key=lambda token_id: -weights[token_id])):
        weight = weights[token_id]
        is_among = rank < (params.top_k or VOCABULARY)
        if is_among and before < params.top_p * total and weight >= params.min_p * most:
            kept[token_id] = weight
        before += weight
    return [weight / sum(kept) for weight in kept]


def _cascade(name: str, alpha: float, params: SamplingParams) -> Target:
    """pi = q 1[accept] + (1 - sum of accepted q) p, the rule by raw distributions."""

    def target(text: list[int]) -> list[float]:
        raw_q, raw_p = _distribution(SMALL, text, PLAIN), _distribution(LARGE, text, PLAIN)
        distance = sum(abs(q - p) for q, p in zip(raw_q, raw_p, strict=True)) / 2
        rules = {
            "cascade-chow": [max(raw_q) >= 1 - alpha] * VOCABULARY,
            "cascade-diff": [max(raw_q) >= max(raw_p) - alpha] * VOCABULARY,
            "cascade-opt": [max(raw_q) >= max(raw_p) - alpha * distance] * VOCABULARY,
            "cascade-v1": [q >= max(raw_p) - alpha for q in raw_q],
            "cascade-v2": [p >= max(raw_p) - alpha for p in raw_p],
            "cascade-v3": [p >= (1 - alpha) * max(raw_p) for p in raw_p],
        }
        q, p = _distribution(SMALL, text, params), _distribution(LARGE, text, params)
        kept = [own * accepts for own, accepts in zip(q, rules[name], strict=True)]
        return [own + (1 - sum(kept)) * other for own, other in zip(kept, p, strict=True)]

    return target


def _statistic(answers: Counter[tuple[int, ...]], target: Target) -> float:
    """Chi-square of the answers against the product of the targets; rare answers are counted as one."""
    statistic = rare = seen_rare = 0.0
    for answer in itertools.product(range(VOCABULARY), repeat=LENGTH):
        expected = float(answers.total())
        for place, token_id in enumerate(answer):
            expected *= target(list(answer[:place]))[token_id]
        if expected < 5:
            rare, seen_rare = rare + expected, seen_rare + answers[answer]
        else:
            statistic += (answers[answer] - expected) ** 2 / expected
    return statistic + (seen_rare - rare) ** 2 / max(rare, 5.0)


def _limit() -> float:
    """The chi-square that 63 degrees of freedom pass once in 10,000 times (Wilson and Hilferty, 1931)."""
    freedom = VOCABULARY**LENGTH - 1
    return float(freedom * (1 - 2 / (9 * freedom) + 3.719 * math.sqrt(2 / (9 * freedom))) ** 3)
