"""Why a request was not let in, as clients are told and as it is counted."""

from typing import Literal, get_args

from ...errors import AllroadsError, DeadlineExceeded, ResourceExhausted

Reason = Literal[
    "line_full",
    "key_line_full",
    "displaced",
    "queue_timeout",
    "deadline",
    "first_token",
    "no_time",
    "key_rate",
    "key_open",
]
REASONS: tuple[Reason, ...] = get_args(Reason)


class Refusal(ResourceExhausted):
    """No place now. Carries the reason and a time to come back."""

    def __init__(self, reason: Reason, message: str, *, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.reason: Reason = reason


def reason_of(error: AllroadsError) -> Reason | None:
    """Why a request that had no place yet was sent away; None where that was not for lack of room or time."""
    if isinstance(error, Refusal):
        return error.reason
    return "deadline" if isinstance(error, DeadlineExceeded) else None
