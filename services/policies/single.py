"""One model writes everything: the two ends that every mixture is measured against."""

from .policy import HOME, Policy, RequestView


class SlmOnly(Policy):
    """The small model alone."""

    name = "slm"
    summary = "the small model writes every token"
    reach = frozenset({HOME})

    def ahead(self, request: RequestView) -> int | None:
        """Always home."""
        return HOME


class LlmOnly(Policy):
    """The large model alone; the small one is never run."""

    name = "llm"
    summary = "the large model writes every token"
    reach = frozenset({1})

    def ahead(self, request: RequestView) -> int | None:
        """Always the large model."""
        return 1

    def send(self, request: RequestView) -> int:
        """One visit for the whole answer."""
        return request.num_left
