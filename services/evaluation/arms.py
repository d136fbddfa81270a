"""What is asked of the mesh: policies as the command line names them, and arms as they are measured."""

import json
from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidArgument
from .mesh_client import ServedModel
from .report_file import Role

_FORM = "NAME, or NAME:parameter=value, with / between the values of one for each tier"


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to answer the problems."""

    name: str
    role: Role
    routing: dict[str, Any]
    has_logprobs: bool = False
    """Whether the tokens' texts and log-probabilities are asked for, which no measured arm does."""

    @property
    def key(self) -> str:
        """Names it among the answers: arms that ask the same share them."""
        return json.dumps([self.routing, self.has_logprobs], sort_keys=True)


SLM = Arm("slm", "slm", {"policy": "slm"})
LLM = Arm("llm", "llm", {"policy": "llm"})
CONFIDENCE = Arm("slm, with log-probabilities", "slm", {"policy": "slm"}, has_logprobs=True)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What was asked for, besides problems and mesh."""

    policies: tuple[str, ...] = ()
    """As `parse_policy` reads them; the mesh's default policy where none is named."""
    sweep: int = 0
    """Points of each policy's curve, besides its own."""
    seed: int = 0
    concurrency: int = 8
    max_tokens: int | None = None
    temperature: float = 0.0
    num_shown: int = 4
    """Answers that the report shows token by token."""
    active_parameters: dict[str, int] = field(default_factory=dict)
    """Of tiers by name, where a token does not activate all of a model."""


def routed_arms(settings: RunSettings, served: ServedModel) -> list[Arm]:
    """The policies to be evaluated.

    Raises:
        InvalidArgument: one is not served, or named in another form.
    """
    arms = [parse_policy(text) for text in settings.policies or (served.default_policy,)]
    for arm in arms:
        policy = served.policy(arm.routing["policy"])
        if policy.name in (SLM.name, LLM.name):
            raise InvalidArgument(f"{policy.name} is measured always; name policies that route", field="policies")
        for name in arm.routing:
            if name != "policy" and name not in policy.parameters:
                takes = ", ".join(policy.parameters) or "none"
                raise InvalidArgument(f"{policy.name} takes no {name}; its parameters: {takes}", field="policies")
    return list({arm.key: arm for arm in arms}.values())


def parse_policy(text: str) -> Arm:
    """A policy and parameters of it: `r2r`, `entropy:threshold=0.8`, `me:weights=0.5/0.5`.

    Raises:
        InvalidArgument: the text has another form.
    """
    name, *settings = text.strip().split(":")
    routing: dict[str, Any] = {"policy": name}
    for setting in settings:
        parameter, _, values = setting.partition("=")
        try:
            numbers = [float(value) for value in values.split("/")]
        except ValueError:
            raise InvalidArgument(f"{text!r} is not {_FORM}", field="policies") from None
        routing[parameter] = numbers if len(numbers) > 1 else numbers[0]
    if not name:
        raise InvalidArgument(f"{text!r} is not {_FORM}", field="policies")
    return Arm(text.strip(), "routed", routing)


def random_arm(routed: Arm, share: float) -> Arm:
    """The control of a routed arm: who writes is drawn, at the share that the arm had."""
    return Arm(f"random at the share of {routed.name}", "random", {"policy": "random", "share": round(share, 6)})
