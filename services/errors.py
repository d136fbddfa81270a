"""The one tree of errors. Each says what is wrong, which field, and what to do.

A code has one meaning on the wire, over gRPC and over REST; the two tables that translate it are
`mesh/status.py` and `gateway/openai/errors.py`.
"""

from enum import StrEnum


class Code(StrEnum):
    """What kind of failure it is."""

    INVALID_ARGUMENT = "invalid_argument"
    NOT_FOUND = "not_found"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    UNAVAILABLE = "unavailable"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    CANCELLED = "cancelled"
    INTERNAL = "internal"
    NOT_A_NUMBER = "not_a_number"
    OUT_OF_STEP = "out_of_step"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    UNAUTHENTICATED = "unauthenticated"


class AllroadsError(Exception):
    """Base of all our errors.

    `field` is the request field or configuration key at fault, empty where none is.
    `retry_after_s` is when a client may try again, where that is known.
    """

    code: Code = Code.INTERNAL

    def __init__(self, message: str, *, field: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after_s = retry_after_s


class InvalidArgument(AllroadsError):
    """A request asks for something that is not allowed."""

    code = Code.INVALID_ARGUMENT


class ContextLengthExceeded(AllroadsError):
    """A request can never fit the context window or the KV pool."""

    code = Code.CONTEXT_LENGTH_EXCEEDED


class Unauthenticated(AllroadsError):
    """No API key came, or one that is not known, revoked or past its date."""

    code = Code.UNAUTHENTICATED


class NotFound(AllroadsError):
    """A model, sequence or scorer of that name does not exist."""

    code = Code.NOT_FOUND


class ResourceExhausted(AllroadsError):
    """A bounded queue is full, or a limit was passed: come back later."""

    code = Code.RESOURCE_EXHAUSTED


class Unavailable(AllroadsError):
    """A service is out of reach or stopping."""

    code = Code.UNAVAILABLE


class DeadlineExceeded(AllroadsError):
    """The time that the client gave is over."""

    code = Code.DEADLINE_EXCEEDED


class Cancelled(AllroadsError):
    """The client is gone, or asked to stop."""

    code = Code.CANCELLED


class NotANumber(AllroadsError):
    """A model produced NaN for this request."""

    code = Code.NOT_A_NUMBER


class OutOfStep(AllroadsError):
    """A tier does not hold the prefix that a hand-off builds on; it must be sent whole."""

    code = Code.OUT_OF_STEP


class Internal(AllroadsError):
    """A fault of ours."""

    code = Code.INTERNAL


class StartupError(AllroadsError):
    """A service cannot start: its configuration, files or address are wrong."""

    code = Code.INVALID_ARGUMENT


class CheckpointError(StartupError):
    """A model or router file is missing, damaged, or made for something else."""


class TokenizerMismatch(StartupError):
    """Two models of a mesh do not share one tokenizer."""


_BY_CODE: dict[Code, type[AllroadsError]] = {
    kind.code: kind
    for kind in (
        InvalidArgument, NotFound, ResourceExhausted, Unavailable, DeadlineExceeded,
        Cancelled, Internal, NotANumber, OutOfStep, ContextLengthExceeded, Unauthenticated,
    )
}  # fmt: skip


def error_of(code: Code, message: str, *, field: str = "", retry_after_s: float | None = None) -> AllroadsError:
    """The error of a code, as it came over the wire."""
    return _BY_CODE[code](message, field=field, retry_after_s=retry_after_s)
