"""Policies by name: ours, and those that other packages register under the entry point `allroads.policies`."""

import logging
from importlib.metadata import entry_points

from ..errors import InvalidArgument, StartupError
from .bild import Bild
from .cascade import CASCADES
from .citer import Citer
from .co_llm import CoLlm
from .entropy import Entropy
from .immediate import Immediate
from .me import ModelEnsemble
from .momentum import Momentum
from .policy import Policy
from .r2r import R2R
from .r_stitch import RStitch
from .random import Random
from .rolling import Rolling
from .single import LlmOnly, SlmOnly
from .speculative import Lossless, Speculative

logger = logging.getLogger(__name__)

ENTRY_POINT = "allroads.policies"
_OWN: tuple[type[Policy], ...] = (
    R2R,
    Citer,
    CoLlm,
    RStitch,
    ModelEnsemble,
    Entropy,
    Immediate,
    Momentum,
    Rolling,
    Random,
    Speculative,
    Lossless,
    *CASCADES,
    Bild,
    SlmOnly,
    LlmOnly,
)


class PolicyRegistry:
    """The policies that this mesh serves."""

    def __init__(self, policies: list[Policy]) -> None:
        self._by_name = {policy.name: policy for policy in policies}

    @classmethod
    def load(cls) -> "PolicyRegistry":
        """Our own policies and the installed plug-ins.

        Raises:
            StartupError: a plug-in cannot be loaded, or takes a name that is taken.
        """
        policies: list[Policy] = [kind() for kind in _OWN]
        taken = {policy.name for policy in policies}
        for entry in entry_points(group=ENTRY_POINT):
            try:
                policy = entry.load()()
            except Exception as error:  # whatever a plug-in raises, the operator must learn which one did
                raise StartupError(f"policy plug-in {entry.name} ({entry.value}) cannot be loaded: {error}") from error
            if not isinstance(policy, Policy) or policy.name in taken:
                raise StartupError(f"policy plug-in {entry.name} ({entry.value}) is no Policy, or its name is taken")
            taken.add(policy.name)
            policies.append(policy)
            logger.info("policy %s from %s", policy.name, entry.value)
        return cls(policies)

    def get(self, name: str) -> Policy:
        """The policy of a name.

        Raises:
            InvalidArgument: there is none; the message lists those there are.
        """
        policy = self._by_name.get(name)
        if policy is None:
            raise InvalidArgument(
                f"unknown policy {name!r}; there are {', '.join(sorted(self._by_name))}", field="routing.policy"
            )
        return policy

    def all(self) -> list[Policy]:
        """All policies, ours first."""
        return list(self._by_name.values())
