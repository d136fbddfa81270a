"""Route by how sure the small model has been lately: R2R's code, `MomentumSwitching`."""

import math

from ..errors import InvalidArgument
from .dirichlet import MAX_ALEATORIC
from .policy import Parameter, RequestView, setting, threshold
from .small_rule import SmallRule


class Momentum(SmallRule):
    """A running mean of "the small model is sure" switches to the large model when low, and back when high.

    m <- momentum * m + (1 - momentum) * [aleatoric uncertainty < threshold]. It starts at 0, on the large model.
    Uncertainty that is NaN counts as unsure, and its token goes to the large model whatever the mean is.
    """

    name = "momentum"
    summary = "the large model writes from when the small one has been unsure for a while until it is sure again"
    parameters = (
        threshold(0.0, MAX_ALEATORIC, 2.275, "aleatoric uncertainty in nats, below which the small model is sure"),
        Parameter("momentum", "weight of the past", 0.0, 1.0, 0.7),
        Parameter("lower", "the large model writes when the mean is at or below it", 0.0, 1.0, 0.3),
        Parameter("upper", "and until the mean is above it", 0.0, 1.0, 0.7),
    )
    never = setting(threshold=MAX_ALEATORIC, lower=0.0, upper=0.0)
    always = setting(threshold=0.0)

    def check(self, request: RequestView) -> None:
        """The two limits are in order.

        Raises:
            InvalidArgument: they are not.
        """
        lower, upper = request.number("lower"), request.number("upper")
        if lower > upper:
            raise InvalidArgument(
                f"the lower limit of momentum must not be above its upper limit, which is {upper:g}",
                field="routing.lower",
            )

    def is_large(self, request: RequestView, aleatoric: float, entropy: float) -> bool:
        """By the mean that this token belongs to already."""
        mean, was_large = request.memory.get("momentum", (0.0, True))
        weight = request.number("momentum")
        mean = weight * mean + (1 - weight) * (aleatoric < request.threshold)
        is_large = mean <= request.number("upper" if was_large else "lower")
        request.memory["momentum"] = mean, is_large
        return is_large or math.isnan(aleatoric)
