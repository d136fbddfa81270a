"""ME (arXiv 2605.00419): before every token the model that writes it is drawn from fixed weights."""

from bisect import bisect_right
from itertools import accumulate

from ..engine.sampling import uniform
from ..errors import InvalidArgument
from .policy import Parameter, Policy, RequestView, Visit

SALT = 0x4D45B5297A4D1B05


class ModelEnsemble(Policy):
    """Each token is written by a model drawn by weight, from (seed, position) alone.

    When sampling, the answer is then drawn from the weighted sum of the models' distributions; not under greedy.
    Any number of models takes part. Each catches up on what the others wrote when it is drawn.
    """

    name = "me"
    summary = "each token is written by a model drawn by weight"
    parameters = (
        Parameter(
            "weights", "weight of each tier; their sum is taken as 1", 0.0, 1000.0, (0.5, 0.3, 0.2), per_tier=True
        ),
    )

    def check(self, request: RequestView) -> None:
        """Some tier must have a weight.

        Raises:
            InvalidArgument: none has.
        """
        if not any(request.parameters["weights"]):
            raise InvalidArgument("one of the weights of me must be above 0", field="routing.weights")

    def reach(self, request: RequestView) -> frozenset[int]:
        """The tiers that have a weight."""
        return frozenset(_writers(request))

    def ahead(self, request: RequestView) -> int | None:
        """The draw of this position."""
        return _drawn(request, request.position)

    def send(self, request: RequestView, tier: int) -> Visit:
        """As many tokens as are drawn for the tier in a row: the schedule is known ahead."""
        count = 1
        while count < request.num_left and _drawn(request, request.position + count) == tier:
            count += 1
        return Visit(count)


def _writers(request: RequestView) -> list[int]:
    return [tier for tier, weight in enumerate(request.parameters["weights"]) if weight > 0]


def _drawn(request: RequestView, position: int) -> int:
    """The first tier at which the weights so far pass the position's number."""
    writers = _writers(request)
    passed = list(accumulate(request.parameters["weights"][tier] for tier in writers))
    index = bisect_right(passed, uniform(request.seed ^ SALT, position) * passed[-1])
    return writers[min(index, len(writers) - 1)]
