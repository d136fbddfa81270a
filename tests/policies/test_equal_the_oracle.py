"""Each policy, run by the words of its interface, writes what its slow definition does, and by the same tiers."""

import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from allroads.policies.policy import Policy
from allroads.policies.registry import PolicyRegistry

from ..doubles.tiny_pair import write_tiny_pair
from ..policies_oracle import PolicyOracle
from .interpreter import Run, Score, load_scores
from .views import Value, view

POLICIES = {policy.name: policy for policy in PolicyRegistry.load().all()}
NUM_PROMPTS, NUM_REQUIRED, MAX_TOKENS, EOS, ROUNDING = 8, 6, 24, frozenset({2}), 1e-5
CASES: list[tuple[str, dict[str, Value]]] = [
    ("slm", {}),
    ("llm", {}),
    ("random", {"share": 0.4}),
    ("me", {"weights": [0.5, 0.3, 0.2]}),
    ("entropy", {"threshold": 2.0}),
    ("r2r", {"threshold": 0.5}),
    ("citer", {"threshold": 0.5}),
    ("co-llm", {"threshold": 0.5}),
    ("r-stitch", {"threshold": 0.3}),
    ("immediate", {"threshold": 2.26}),
    ("immediate", {"threshold": 2.0, "epistemic": 0.075, "entropy": 1.5}),
    ("momentum", {"threshold": 2.27}),
    ("rolling", {"threshold": 2.26, "entropy": 0.5}),
    ("speculative", {}),
    ("lossless", {"adaptive": 0, "draft_tokens": 3}),
    ("lossless", {"draft_tokens": 16, "draft_cost": 0.01}),
    ("bild", {"fallback": 0.3, "rollback": 2.0, "draft_tokens": 4}),
    ("cascade-chow", {"alpha": 0.6}),
    ("cascade-diff", {"alpha": 0.0}),
    ("cascade-opt", {"alpha": 0.1}),
    ("cascade-v1", {"alpha": 0.1}),
    ("cascade-v2", {"alpha": 0.1}),
    ("cascade-v3", {"alpha": 0.5}),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("three")
    write_tiny_pair(path, likeness=0.7)
    write_tiny_pair(path / "other", seed=9)
    (path / "mlm").symlink_to(path / "other" / "llm")
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
    parameters = _all_parameters(policy, given)
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


@pytest.mark.parametrize("name", list(POLICIES))
@pytest.mark.parametrize("end", ["never", "always"])
def test_the_ends_are_one_models_own_answer(
    name: str, end: str, oracle: PolicyOracle, scores: dict[str, Score], prompts: list[list[int]]
) -> None:
    policy = POLICIES[name]
    given = {"never": policy.never, "always": policy.always}[end]
    if given is None:
        pytest.skip(f"{name} has no such end")
    alone = "slm" if end == "never" else "llm"
    expected = oracle.answers(alone, prompts, {}, max_tokens=MAX_TOKENS, stop_token_ids=EOS)
    for prompt, answer in list(zip(prompts, expected, strict=True))[:3]:
        request = view(policy, num_tiers=3, given=dict(given), max_tokens=MAX_TOKENS, num_tokens=oracle.num_tokens)
        run = Run(policy, request, prompt, oracle.models, scores, EOS).finish()
        assert run.token_ids == answer.token_ids
        if end == "never":
            assert set(run.tiers) == {0}


def _all_parameters(policy: Policy, given: Mapping[str, Value]) -> dict[str, Value]:
    """Those of a case, and defaults for the others."""
    resolved = view(policy, num_tiers=3, given=dict(given)).parameters
    return {name: values if len(values) > 1 else values[0] for name, values in resolved.items()}
