"""Each policy, run by the words of its interface, writes what its slow definition does, and by the same tiers."""

import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from allroads.policies.policy import Policy
from allroads.policies.registry import PolicyRegistry

from ..policies_oracle import PolicyOracle
from .cases import CASES, all_parameters, write_three_models
from .interpreter import Run, Score, load_scores
from .views import Value, view

POLICIES = {policy.name: policy for policy in PolicyRegistry.load().all()}
NUM_PROMPTS, NUM_REQUIRED, MAX_TOKENS, EOS, ROUNDING = 8, 6, 20, frozenset({2}), 1e-5


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("three")
    write_three_models(path)
    return path


@pytest.fixture(scope="module")
def oracle(directory: Path) -> PolicyOracle:
    return PolicyOracle(directory, ("slm", "mlm", "llm"))


@pytest.fixture(scope="module")
def scores(directory: Path) -> dict[str, Score]:
    return load_scores(directory)


@pytest.fixture(scope="module")
def prompts(oracle: PolicyOracle) -> list[list[int]]:
    rng = random.Random(3)
    return [[rng.randrange(3, oracle.num_tokens) for _ in range(rng.randint(1, 40))] for _ in range(NUM_PROMPTS)]


@pytest.mark.parametrize(("name", "given"), CASES, ids=[f"{name}-{index}" for index, (name, _) in enumerate(CASES)])
def test_a_policy_writes_what_its_definition_does(
    name: str,
    given: dict[str, Value],
    oracle: PolicyOracle,
    scores: dict[str, Score],
    prompts: list[list[int]],
) -> None:
    policy = POLICIES[name]
    parameters = all_parameters(policy, given)
    seeds = [100 + index for index in range(NUM_PROMPTS)]
    expected = oracle.answers(name, prompts, parameters, max_tokens=MAX_TOKENS, stop_token_ids=EOS, seeds=seeds)
    sure = [index for index, answer in enumerate(expected) if answer.margin > ROUNDING]
    assert len(sure) >= NUM_REQUIRED
    tiers = [tier for index in sure for tier in expected[index].tiers]
    if name not in ("slm", "llm"):
        assert 0.1 < tiers.count(0) / len(tiers) < 0.95, "the case should have both models write"
    for index in sure:
        request = view(
            policy, num_tiers=3, given=given, seed=seeds[index], max_tokens=MAX_TOKENS, num_tokens=oracle.num_tokens
        )
        run = Run(policy, request, prompts[index], oracle.models, scores, EOS).finish()
        assert run.token_ids == expected[index].token_ids
        assert run.tiers == expected[index].tiers


ENDS = [
    pytest.param(policy, given, alone, id=f"{policy.name}-{alone}")
    for policy in POLICIES.values()
    for given, alone in ((policy.never, "slm"), (policy.always, "llm"))
    if given is not None
]


@pytest.mark.parametrize(("policy", "given", "alone"), ENDS)
def test_the_ends_are_one_models_own_answer(
    policy: Policy,
    given: Mapping[str, float],
    alone: str,
    oracle: PolicyOracle,
    scores: dict[str, Score],
    prompts: list[list[int]],
) -> None:
    few = prompts[:3]
    expected = oracle.answers(alone, few, {}, max_tokens=MAX_TOKENS, stop_token_ids=EOS)
    for prompt, answer in zip(few, expected, strict=True):
        request = view(policy, num_tiers=3, given=given, max_tokens=MAX_TOKENS, num_tokens=oracle.num_tokens)
        run = Run(policy, request, prompt, oracle.models, scores, EOS).finish()
        assert run.token_ids == answer.token_ids
        if alone == "slm":
            assert set(run.tiers) == {0}
