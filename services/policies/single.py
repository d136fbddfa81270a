"""One model writes everything: the two ends that every mixture is measured against."""

from .policy import HOME, Policy, RequestView, Visit, setting


class SlmOnly(Policy):
    """The small model alone."""

    name = "slm"
    summary = "the small model writes every token"
    never = setting()

    def reach(self, request: RequestView) -> frozenset[int]:
        """Home alone."""
        return frozenset({HOME})

    def ahead(self, request: RequestView) -> int | None:
        """Always home."""
        return HOME


class LlmOnly(Policy):
    """The large model alone; the small one is never run."""

    name = "llm"
    summary = "the large model writes every token"
    always = setting()

    def reach(self, request: RequestView) -> frozenset[int]:
        """The large model's tier alone."""
        return frozenset({request.large})

    def ahead(self, request: RequestView) -> int | None:
        """Always the large model."""
        return request.large

    def send(self, request: RequestView, tier: int) -> Visit:
        """One visit for the whole answer."""
        return Visit(request.num_left)
