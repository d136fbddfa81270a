"""The policy under test, the mesh that serves it, the reference, and the questions that both are asked."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..config import MeshSettings
from ..errors import InvalidArgument
from ..mesh.routing import Parameters, resolve_parameters, routing_to_wire
from ..mesh.wire import model_pb2
from ..policies.policy import Policy, RequestView
from ..policies.registry import PolicyRegistry
from .mesh_client import MeshClient
from .question import Answer, Question, first_difference
from .slow_mesh import SlowMesh

MAX_TOKENS = 24
_PROMPT_TOKENS = (3, 40)
_FIRST_ID = 3
"""Ids below are special ones in most vocabularies."""
_ENOUGH_FAULTS = 4
_MIN_CLOSE = 2
"""Answers that rounding may always decide; among many, as many as there are spare prompts."""
_SPARE = 4
"""One prompt more for each so many, in place of those that rounding decides."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What came of a comparison of answers."""

    num_equal: int
    num_close: int
    """Those that differ where rounding decides."""
    faults: list[str]
    """Differences that are none of rounding."""


@dataclass(slots=True)
class Bench:
    """All that a check needs. Belongs to one event loop."""

    settings: MeshSettings
    mesh: model_pb2.MeshDescription
    description: model_pb2.PolicyDescription
    policy: Policy
    parameters: Parameters
    client: MeshClient
    reference: SlowMesh
    num_prompts: int
    questions: list[Question]
    """The main ones, greedy; every other one goes on at an end-of-text token."""
    answers: list[Answer] = field(default_factory=list)
    """The mesh's to these, asked all at once."""
    expected: list[Answer] = field(default_factory=list)
    """The reference's."""

    @property
    def num_tiers(self) -> int:
        """Of the mesh."""
        return len(self.mesh.tier_names)

    async def ask_main(self) -> None:
        """Ask the main questions."""
        self.answers = await self.client.ask(self.questions)
        self.expected = await self.expect(self.questions)

    async def expect(self, questions: Sequence[Question]) -> list[Answer]:
        """The reference's answers."""
        return await asyncio.to_thread(self.reference.answers, questions)

    def with_parameters(self, parameters: Mapping[str, float]) -> list[Question]:
        """The main questions with other parameters; those not named have their default."""
        resolved = resolve(self.description, parameters, self.num_tiers)
        return [replace(question, parameters=resolved) for question in self.questions]

    def of_policy(self, name: str, questions: Sequence[Question]) -> list[Question]:
        """The same questions to another policy of the mesh, with its defaults."""
        (description,) = (policy for policy in self.mesh.policies if policy.name == name)
        parameters = resolve(description, {}, self.num_tiers)
        return [replace(question, policy=name, parameters=parameters) for question in questions]

    async def compare(
        self,
        questions: Sequence[Question],
        first: tuple[str, Sequence[Answer]],
        second: tuple[str, Sequence[Answer]],
        *,
        tier: int | None = None,
    ) -> Compared:
        """Hold answers against each other, each with the words for whose they are.

        Where they differ the reference says whether rounding may have decided: that of the policy, or that of a
        `tier` which writes everything.
        """
        num_equal, num_close, faults = 0, 0, list[str]()
        for question, one, other in zip(questions, first[1], second[1], strict=True):
            if len(faults) == _ENOUGH_FAULTS:
                break
            pair = (first[0], one), (second[0], other)
            if troubles := [f"{whose} failed: {answer.error.message}" for whose, answer in pair if answer.error]:
                faults.append(f"prompt {question.number}: {', '.join(troubles)}")
                continue
            difference = first_difference(one, other)
            if difference is None:
                num_equal += 1
                continue
            doubtful_from = await asyncio.to_thread(self.reference.doubtful_from, question, tier=tier)
            if doubtful_from is not None and doubtful_from <= difference.position:
                num_close += 1
                if num_close > max(_MIN_CLOSE, len(questions) // _SPARE):
                    faults.append(
                        f"{num_close} answers differ, and the reference's own change when it is asked again: this is "
                        "more than rounding can explain; does the policy go by anything but the request?"
                    )
                    break
                continue
            faults.append(
                f"position {difference.position} of prompt {question.number}: {first[0]} {difference.first}, "
                f"{second[0]} {difference.second}"
            )
        return Compared(num_equal, num_close, faults)


def make_bench(
    settings: MeshSettings,
    described: model_pb2.DescribeResponse,
    policies: PolicyRegistry,
    name: str,
    given: Mapping[str, float | Sequence[float]],
    client: MeshClient,
    reference: SlowMesh,
    *,
    num_prompts: int,
) -> Bench:
    """The bench of a policy.

    Raises:
        InvalidArgument: there is no such policy, the mesh cannot serve it, or its parameters are wrong.
    """
    policy = policies.get(name)
    served = {description.name: description for description in described.mesh.policies}
    if name not in served:
        raise InvalidArgument(
            f"the mesh does not serve {name}: it needs the scorer {policy.scorer}; add it under router.scorers",
            field="routing.policy",
        )
    num_tiers = len(described.mesh.tier_names)
    parameters = resolve(served[name], given, num_tiers)
    policy.check(
        RequestView(seed=0, parameters=parameters, max_tokens=1, num_tiers=num_tiers, num_tokens=reference.num_tokens)
    )
    rng = random.Random(0)
    questions = [
        Question(
            number,
            tuple(rng.randrange(_FIRST_ID, reference.num_tokens) for _ in range(rng.randint(*_PROMPT_TOKENS))),
            name,
            parameters,
            max_tokens=MAX_TOKENS,
            ignores_eos=number % 2 == 1,
        )
        for number in range(num_prompts + -(-num_prompts // _SPARE))
    ]
    return Bench(settings, described.mesh, served[name], policy, parameters, client, reference, num_prompts, questions)


def resolve(
    description: model_pb2.PolicyDescription, given: Mapping[str, float | Sequence[float]], num_tiers: int
) -> Parameters:
    """All parameters of a policy: those given, defaults, and where there is none the middle of the range.

    Raises:
        InvalidArgument: one is unknown or out of its range; names the field and the range.
    """
    filled = dict(given)
    for parameter in description.parameters:
        needed = num_tiers if parameter.per_tier else 1
        if parameter.name not in filled and len(parameter.default_values) != needed:
            middle = (parameter.minimum + parameter.maximum) / 2
            filled[parameter.name] = [float(int(middle)) if parameter.is_whole else middle] * needed
    return resolve_parameters(routing_to_wire(description.name, filled), description, num_tiers)
