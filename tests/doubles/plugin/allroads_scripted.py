"""Policies with a fixed schedule, installed by the tests as a third party would install them."""

from collections.abc import Callable
from typing import ClassVar

from allroads.policies.policy import (
    ACCEPT,
    HOME,
    Policy,
    Proposals,
    RequestView,
    Return,
    Verdict,
    Visit,
    reject,
    submit,
)

SCHEDULES: dict[str, Callable[[int], bool]] = {
    "all-large": lambda position: True,
    "all-small": lambda position: False,
    "alternating": lambda position: position % 2 == 1,
    # With prompts of whole blocks of 16 tokens, switches fall before, on and behind the edges of blocks.
    "block-edges": lambda position: position % 16 in (0, 15) or 30 <= position <= 34,
    "runs": lambda position: (position // 7) % 2 == 0,
}


class _Scripted(Policy):
    schedule: ClassVar[str]
    summary = "writes by a fixed schedule"

    def is_large(self, position: int) -> bool:
        return SCHEDULES[self.schedule](position)


class _Ahead(_Scripted):
    """Decides before the small model proposes."""

    def ahead(self, request: RequestView) -> int | None:
        return request.large if self.is_large(request.position) else HOME

    def send(self, request: RequestView, tier: int) -> Visit:
        count = 1
        while count < request.num_left and self.is_large(request.position + count):
            count += 1
        return Visit(count)


class _Judged(_Scripted):
    """Decides after it has proposed; visits last one token."""

    def route(self, proposals: Proposals) -> list[Verdict]:
        return [reject(request.large) if self.is_large(request.position) else ACCEPT for request in proposals.requests]


def _named(base: type[_Scripted], kind: str, schedule: str) -> type[_Scripted]:
    return type(f"{kind}_{schedule}", (base,), {"name": f"{kind}-{schedule}", "schedule": schedule})


AheadAllLarge = _named(_Ahead, "ahead", "all-large")
AheadAllSmall = _named(_Ahead, "ahead", "all-small")
AheadAlternating = _named(_Ahead, "ahead", "alternating")
AheadBlockEdges = _named(_Ahead, "ahead", "block-edges")
AheadRuns = _named(_Ahead, "ahead", "runs")
JudgedAllLarge = _named(_Judged, "judged", "all-large")
JudgedAlternating = _named(_Judged, "judged", "alternating")
JudgedBlockEdges = _named(_Judged, "judged", "block-edges")


class Faulty(Policy):
    """Raises in `route`, as a plug-in with a fault would."""

    name = "faulty"
    summary = "raises"

    def route(self, proposals: Proposals) -> list[Verdict]:
        raise RuntimeError("a fault of the plug-in")


class _Wrong(Policy):
    """Says of each proposal what cannot be."""

    verdict: ClassVar[Verdict]
    summary = "gives verdicts that cannot be"

    def route(self, proposals: Proposals) -> list[Verdict]:
        return [self.verdict] * len(proposals.requests)


class Waiting(_Wrong):
    """Waits for more drafts and drops the one that it has."""

    name = "faulty-waiting"
    verdict = Verdict(keeps=False, tier=1, is_draft=True, waits=True)


class Returning(_Wrong):
    """Drops the small model's proposal and has the small model write again."""

    name = "faulty-returning"
    verdict = Verdict(keeps=False, tier=HOME)


class Straying(_Wrong):
    """Names a tier that there is not."""

    name = "faulty-straying"
    verdict = Verdict(keeps=True, tier=7)


class Circling(Policy):
    """Takes nothing of what comes back."""

    name = "faulty-circling"
    summary = "goes round in circles"

    def route(self, proposals: Proposals) -> list[Verdict]:
        return [reject(request.large) for request in proposals.requests]

    def receive(self, request: RequestView, returned: Return) -> int:
        return 0


class Idle(Policy):
    """Asks for visits of no token."""

    name = "faulty-visit"
    summary = "sends nobody for nothing"

    def ahead(self, request: RequestView) -> int | None:
        return request.large

    def send(self, request: RequestView, tier: int) -> Visit:
        return Visit(0)


class Unreaching(Policy):
    """Reaches no tier."""

    name = "faulty-reach"
    summary = "reaches nothing"

    def reach(self, request: RequestView) -> frozenset[int]:
        return frozenset()


class Unjudging(Policy):
    """Sends drafts and has no `verify`."""

    name = "faulty-verify"
    summary = "drafts for nobody"

    def route(self, proposals: Proposals) -> list[Verdict]:
        return [submit(request.large) for request in proposals.requests]
