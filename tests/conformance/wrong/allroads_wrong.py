"""Policies that are wrong on purpose, each in one way, installed as a third party would install them."""

from collections.abc import Sequence

from allroads.policies.policy import ACCEPT, Policy, Proposals, RequestView, Return, Verdict, reject, setting, threshold


class RoutesByBatch(Policy):
    """A request's verdict depends on how many others there are."""

    name = "wrong-batch"
    summary = "the large model writes where there is company"

    def route(self, proposals: Proposals) -> Sequence[Verdict]:
        is_alone = len(proposals.requests) == 1
        return [ACCEPT if is_alone else reject(request.large) for request in proposals.requests]


class RemembersAll(Policy):
    """What belongs into a request's memory is in the object that all requests share."""

    name = "wrong-shared"
    summary = "the large model writes every third token of all requests"

    def __init__(self) -> None:
        self.count = 0

    def route(self, proposals: Proposals) -> Sequence[Verdict]:
        verdicts = []
        for request in proposals.requests:
            self.count += 1
            verdicts.append(ACCEPT if self.count % 3 else reject(request.large))
        return verdicts


class IgnoresParameters(Policy):
    """`never` promises what `route` does not keep."""

    name = "wrong-never"
    summary = "the large model writes every other token, whatever the threshold"
    parameters = (threshold(0.0, 1.0, 0.5, "of nothing"),)
    never = setting(threshold=1.0)

    def route(self, proposals: Proposals) -> Sequence[Verdict]:
        return [reject(request.large) if request.position % 2 else ACCEPT for request in proposals.requests]


class TakesTooFew(Policy):
    """`receive` leaves out what the large model wrote, and the small one fills the gap."""

    name = "wrong-receive"
    summary = "the large model writes every token, but every fifth is left out"
    always = setting()

    def route(self, proposals: Proposals) -> Sequence[Verdict]:
        return [
            ACCEPT if request.memory.pop("is_left_out", False) else reject(request.large)
            for request in proposals.requests
        ]

    def receive(self, request: RequestView, returned: Return) -> int:
        if request.position % 5 == 4:
            request.memory["is_left_out"] = True
            return 0
        return len(returned.token_ids)


class Raises(Policy):
    """Has a fault."""

    name = "wrong-raises"
    summary = "raises"

    def route(self, proposals: Proposals) -> Sequence[Verdict]:
        raise RuntimeError("a fault of the plug-in")
