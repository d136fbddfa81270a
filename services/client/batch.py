"""What came of each request of a batch: an answer, or the error that ended it."""

from ..errors import AllroadsError, Internal
from ..mesh.wire import gateway_pb2
from .answers import Answer, Piece, joined, piece_of
from .faults import error_of_wire


class Outcomes:
    """Gathers the messages of one batch."""

    def __init__(self, num_requests: int) -> None:
        self._pieces: list[list[Piece]] = [[] for _ in range(num_requests)]
        self._errors: dict[int, AllroadsError] = {}

    def add(self, response: gateway_pb2.GenerateBatchResponse) -> None:
        """Take a message."""
        if response.WhichOneof("outcome") == "error":
            self._errors[response.index] = error_of_wire(response.error)
        else:
            self._pieces[response.index].append(piece_of(response.response))

    def all(self) -> list[Answer | AllroadsError]:
        """In the order of the requests; one that has no end has an error that says so."""
        return [self._of(index) for index in range(len(self._pieces))]

    def _of(self, index: int) -> Answer | AllroadsError:
        if (error := self._errors.get(index)) is not None:
            return error
        answer = joined(self._pieces[index])
        return answer if answer.finish_reason is not None else unfinished()


def unfinished() -> Internal:
    """Of a call that ended well and whose answer has no end."""
    return Internal("the gateway ended the call before the answer was finished")
