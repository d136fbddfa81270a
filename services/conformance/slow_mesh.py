"""The slow mesh: runs any policy by its sequential definition, on plain models, and says which answers are too close.

Two implementations that add numbers in another order may decide otherwise where two logits, or a score and its
threshold, lie within rounding of each other. Nothing here knows where a policy decides; so a question whose answer
is in doubt is asked again with all that the models give disturbed by about as much.
"""

from collections.abc import Sequence

import torch

from ..config import MeshSettings
from ..policies.policy import Policy
from ..policies.registry import PolicyRegistry
from ..router.scorer import Scorer
from ..router.scorers import load_scorers
from ..vocabulary import load_vocabulary
from .journey import Journey
from .question import Answer, Question, first_difference
from .slow_models import Pass, SlowModels, Work

_NUM_REPLAYS = 8


class SlowMesh:
    """All models, scorers and policies of a mesh, in this process."""

    def __init__(self, settings: MeshSettings, policies: PolicyRegistry) -> None:
        self._models = SlowModels(settings)
        self._scorers = load_scorers(settings)
        self._policies = policies
        self._num_tiers = len(settings.tiers)
        vocabularies = [load_vocabulary(tier.path) for tier in settings.tiers.values()]
        self._eos_token_ids = frozenset().union(*(vocabulary.eos_token_ids for vocabulary in vocabularies))

    @property
    def num_tokens(self) -> int:
        """Size of the vocabulary."""
        return self._models.num_tokens

    def answers(self, questions: Sequence[Question], *, disturbance: torch.Generator | None = None) -> list[Answer]:
        """What each policy's definition gives."""
        journeys = [self._journey(question) for question in questions]
        self._models.run([journey.work() for journey in journeys], disturbance=disturbance)
        return [journey.answer for journey in journeys]

    def alone(self, tier: int, questions: Sequence[Question]) -> list[Answer]:
        """What one model writes by itself: the likeliest token, until it ends. Policies have no part in it."""
        return self._alone(tier, questions, None)

    def doubtful_from(self, question: Question, *, tier: int | None = None) -> int | None:
        """The first place of an answer that rounding may change; None where it changes nothing.

        Args:
            question: asks for the answer.
            tier: of the model that writes all of it; None where the policy decides.
        """
        ask = self.answers if tier is None else lambda asked, *, disturbance: self._alone(tier, asked, disturbance)
        (answer,) = ask([question], disturbance=None)
        replays = ask([question] * _NUM_REPLAYS, disturbance=torch.Generator().manual_seed(0))
        differences = [first_difference(answer, replay) for replay in replays]
        return min((difference.position for difference in differences if difference is not None), default=None)

    def _alone(self, tier: int, questions: Sequence[Question], disturbance: torch.Generator | None) -> list[Answer]:
        answers = [Answer() for _ in questions]
        works = [
            _greedy(tier, question, answer, question.sampling(self._eos_token_ids).stop_token_ids)
            for question, answer in zip(questions, answers, strict=True)
        ]
        self._models.run(works, disturbance=disturbance)
        return answers

    def _journey(self, question: Question) -> Journey:
        policy: Policy = self._policies.get(question.policy)
        scorer: Scorer | None = None if policy.scorer is None else self._scorers[policy.scorer]
        return Journey(
            question,
            policy,
            scorer,
            num_tiers=self._num_tiers,
            num_tokens=self._models.num_tokens,
            eos_token_ids=self._eos_token_ids,
        )


def _greedy(tier: int, question: Question, answer: Answer, stop_token_ids: frozenset[int]) -> Work:
    while len(answer.token_ids) < question.max_tokens and not answer.is_stopped:
        output = yield Pass(tier, [*question.prompt, *answer.token_ids])
        token_id = int(output.logits[0].argmax())
        answer.token_ids.append(token_id)
        answer.tiers.append(tier)
        answer.is_stopped = token_id in stop_token_ids
