"""When things happened to a proposal and to a hand-off, for the model of the mesh's throughput."""

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class StepMark:
    """A step of the small model, which all its proposals know."""

    ended_ns: int = 0
    """End of its turn, by the monotonic clock; 0 while that goes on."""


@dataclass(eq=False, slots=True)
class Trip:
    """A visit to a larger tier, as the home sees it."""

    tier: int
    turned_down: StepMark | None
    """The step whose proposal sent it there; None where no proposal did."""
    sent_ns: int = 0
    """End of the turn that handed it off; 0 while that goes on."""
    is_confirmed: bool | None = None
    """Whether its first token was the small model's own proposal; None before there is one."""

    @property
    def decision_ns(self) -> int:
        """From the end of the step that made the proposal to the hand-off."""
        return 0 if self.turned_down is None else max(0, self.sent_ns - self.turned_down.ended_ns)
