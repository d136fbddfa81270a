"""The slow reference: what it says of close calls, and of policies that come to no end."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from allroads.config import MeshSettings
from allroads.conformance.question import Question
from allroads.conformance.slow_mesh import SlowMesh
from allroads.engine.features import entropy
from allroads.mesh.routing import Parameters
from allroads.policies.policy import HOME, Policy, Proposals, RequestView, Return, Verdict, hold, reject
from allroads.policies.registry import PolicyRegistry
from transformers import AutoModelForCausalLM

PROMPT = (7, 8, 9, 10)


class TakesNothing(Policy):
    name = "takes-nothing"
    summary = "sends every token to the large model and takes none of it"

    def route(self, proposals: Proposals) -> Sequence[Verdict]:
        return [reject(request.large) for request in proposals.requests]

    def receive(self, request: RequestView, returned: Return) -> int:
        return 0


class LeavesReach(Policy):
    name = "leaves-reach"
    summary = "says that home alone writes, and calls the large model"

    def reach(self, request: RequestView) -> frozenset[int]:
        return frozenset({HOME})

    def route(self, proposals: Proposals) -> Sequence[Verdict]:
        return [reject(request.large) for request in proposals.requests]


class DraftsWithoutJudge(Policy):
    name = "drafts-without-judge"
    summary = "has no verify"

    def route(self, proposals: Proposals) -> Sequence[Verdict]:
        return [hold(request.large) for request in proposals.requests]


def question(policy: str, parameters: Parameters | None = None) -> Question:
    return Question(0, PROMPT, policy, parameters or {}, max_tokens=8, ignores_eos=True)


def test_policies_that_cannot_go_on_end_with_a_reason(tiny_settings: MeshSettings) -> None:
    policies = PolicyRegistry([TakesNothing(), LeavesReach(), DraftsWithoutJudge()])
    reference = SlowMesh(tiny_settings, policies)
    answers = reference.answers([question(policy.name) for policy in policies.all()])
    said = [answer.error.message for answer in answers if answer.error is not None]
    assert "goes round in circles" in said[0]
    assert said[1] == "it named tier 1, its reach is [0]"
    assert "sends no drafts" in said[2]


def test_one_model_alone_is_what_transformers_generates(tiny_settings: MeshSettings, reference: SlowMesh) -> None:
    asked = question("slm")
    for tier, settings in enumerate(tiny_settings.tiers.values()):
        model = AutoModelForCausalLM.from_pretrained(settings.path, dtype=torch.float32).eval()
        generated = model.generate(
            torch.tensor([PROMPT]), attention_mask=torch.ones(1, len(PROMPT)), max_new_tokens=8, min_new_tokens=8,
            do_sample=False, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        (answer,) = reference.alone(tier, [asked])
        assert answer.token_ids == generated[0, len(PROMPT) :].tolist()
        assert set(answer.tiers) == {tier}


def test_only_close_calls_are_in_doubt(tiny_settings: MeshSettings, reference: SlowMesh) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_settings.slm.path, dtype=torch.float32).eval()
    with torch.inference_mode():
        first = float(entropy(model(torch.tensor([PROMPT])).logits[:, -1]))
    close = question("entropy", {"threshold": (first,)})
    assert reference.doubtful_from(close) == 0
    assert reference.doubtful_from(replace(close, parameters={"threshold": (first + 0.1,)}, max_tokens=1)) is None
    assert reference.doubtful_from(close, tier=HOME) is None
