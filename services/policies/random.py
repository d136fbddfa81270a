"""Random routing: the control that every rule must beat at the same share."""

from ..engine.sampling import uniform
from .policy import HOME, Policy, RequestView

_SALT = 0x5EED


class Random(Policy):
    """The large model writes each token with probability `share`, drawn from (seed, position) alone."""

    name = "random"
    summary = "the large model writes each token with probability `share`"
    needs_share = True

    def ahead(self, request: RequestView) -> int | None:
        """The draw of this position."""
        return self._drawn(request, request.position)

    def send(self, request: RequestView) -> int:
        """As many tokens as are drawn for the large model in a row: the schedule is known ahead."""
        count = 1
        while count < request.num_left and self._drawn(request, request.position + count) != HOME:
            count += 1
        return count

    def _drawn(self, request: RequestView, position: int) -> int:
        return 1 if uniform(request.seed ^ _SALT, position) < request.share else HOME
