"""Penalties, bias and log-probabilities do not care which model writes: each token is drawn by the same rules."""

import random
from pathlib import Path

import pytest
import torch
from allroads.mesh.wire import common_pb2 as pb
from allroads.mesh.wire import model_pb2
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from ..doubles.home_client import HomeClient, Reply, request
from ..doubles.plugin.allroads_scripted import SCHEDULES
from ..doubles.processes import MeshProcesses

EOS = 2
PROMPT = [5, 6, 7, 8, 9, 7]
ROUNDING = 2e-4
CASES = {
    "plain": pb.SamplingParams(),
    "repetition": pb.SamplingParams(repetition_penalty=1.8),
    "presence-and-frequency": pb.SamplingParams(presence_penalty=1.5, frequency_penalty=0.7),
    "bias": pb.SamplingParams(logit_bias={40: 30.0, 41: -100.0, 42: 29.5}),
    "min-tokens": pb.SamplingParams(min_tokens=12, logit_bias={EOS: 100.0}),
    "all": pb.SamplingParams(
        repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2, logit_bias={9: -5.0, 77: 8.0}, min_tokens=5
    ),
}


@pytest.fixture(scope="module")
def models(tiny_pair: Path) -> list[PreTrainedModel]:
    return [AutoModelForCausalLM.from_pretrained(tiny_pair / name).eval() for name in ("slm", "llm")]


@torch.inference_mode()
def _logits(model: PreTrainedModel, tokens: list[int]) -> Tensor:
    logits: Tensor = model(torch.tensor([tokens]), use_cache=False).logits
    return logits[0, -1].double()


def _adjusted(logits: Tensor, tokens: list[int], answer: list[int], params: pb.SamplingParams) -> list[float]:
    """The definition, one token at a time."""
    result = logits.tolist()
    penalty = params.repetition_penalty if params.HasField("repetition_penalty") else 1.0
    for token_id in set(tokens):
        result[token_id] = result[token_id] / penalty if result[token_id] > 0 else result[token_id] * penalty
    for token_id in set(answer):
        result[token_id] -= params.presence_penalty + params.frequency_penalty * answer.count(token_id)
    for token_id, bias in params.logit_bias.items():
        result[token_id] += bias
    if len(answer) < params.min_tokens:
        result[EOS] = float("-inf")
    return result


async def _ask(mesh: MeshProcesses, params: pb.SamplingParams, policy: str, **more: float) -> Reply:
    opening = request(PROMPT, policy, max_tokens=30)
    opening.sampling.MergeFrom(params)
    opening.sampling.num_logprobs = 5
    for name, value in more.items():
        setattr(opening.sampling, name, value)
    async with HomeClient(mesh.settings.slm.address) as client:
        (reply,) = await client.answer(opening)
    assert reply.error is None
    return reply


@pytest.mark.parametrize("policy", ["judged-alternating", "ahead-runs", "r2r"])
@pytest.mark.parametrize("case", CASES)
async def test_every_token_is_the_best_by_the_rules(
    case: str, policy: str, mesh: MeshProcesses, models: list[PreTrainedModel]
) -> None:
    reply = await _ask(mesh, CASES[case], policy)
    tokens = list(PROMPT)
    for place, (token_id, tier) in enumerate(zip(reply.token_ids, reply.tiers, strict=True)):
        adjusted = _adjusted(_logits(models[tier], tokens), tokens, reply.token_ids[:place], CASES[case])
        assert adjusted[token_id] >= max(adjusted) - ROUNDING
        tokens.append(token_id)
    assert len(reply.token_ids) == 30 or reply.token_ids[-1] == EOS
    if case == "min-tokens":
        assert len(reply.token_ids) == 13


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_log_probabilities_are_of_the_model_that_wrote(
    temperature: float, mesh: MeshProcesses, models: list[PreTrainedModel]
) -> None:
    reply = await _ask(mesh, CASES["all"], "judged-alternating", temperature=temperature, seed=4)
    assert len(reply.logprobs) == len(reply.token_ids)
    assert {SCHEDULES["alternating"](place) for place in range(len(reply.tiers))} == {True, False}
    tokens = list(PROMPT)
    for token_id, tier, entry in zip(reply.token_ids, reply.tiers, reply.logprobs, strict=True):
        raw = _logits(models[tier], tokens).log_softmax(dim=-1)
        assert entry.logprob == pytest.approx(float(raw[token_id]), abs=1e-3)
        best = raw.topk(5).values.tolist()
        assert list(entry.top_logprobs) == pytest.approx(best, abs=1e-3)
        assert [float(raw[top]) for top in entry.top_token_ids] == pytest.approx(best, abs=1e-3)
        tokens.append(token_id)


async def test_a_seed_draws_the_same_in_a_crowd(mesh: MeshProcesses) -> None:
    rng = random.Random(2)

    def drawn(seed: int) -> model_pb2.OpenRequest:
        opening = request(PROMPT, "judged-alternating", temperature=0.9, seed=seed, ignore_eos=True)
        opening.sampling.MergeFrom(CASES["all"])
        return opening

    async with HomeClient(mesh.settings.slm.address) as client:
        (alone,) = await client.answer(drawn(1))
        for size in (1, 3, 7, 15):
            others = [drawn(rng.randrange(2, 1000)) for _ in range(size)]
            among, *_ = await client.answer(drawn(1), *others)
            assert among.token_ids == alone.token_ids
            assert among.tiers == alone.tiers
