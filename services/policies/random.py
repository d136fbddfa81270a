"""Random routing: the control that every rule must beat at the same share."""

from ..engine.sampling import uniform
from .policy import HOME, Parameter, Policy, RequestView, Visit, setting

SALT = 0x5EED


class Random(Policy):
    """The large model writes each token with probability `share`, drawn from (seed, position) alone."""

    name = "random"
    summary = "the large model writes each token with probability `share`"
    parameters = (Parameter("share", "probability that the large model writes a token", 0.0, 1.0),)
    never = setting(share=0.0)
    always = setting(share=1.0)

    def ahead(self, request: RequestView) -> int | None:
        """The draw of this position."""
        return self._drawn(request, request.position)

    def send(self, request: RequestView, tier: int) -> Visit:
        """As many tokens as are drawn for the large model in a row: the schedule is known ahead."""
        count = 1
        while count < request.num_left and self._drawn(request, request.position + count) != HOME:
            count += 1
        return Visit(count)

    def _drawn(self, request: RequestView, position: int) -> int:
        return request.large if uniform(request.seed ^ SALT, position) < request.number("share") else HOME
