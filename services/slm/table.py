"""All open requests, by each of the names under which somebody asks for one."""

from ..engine.sequence import Sequence
from .request import Place, Request


class RequestTable:
    """Open requests by client's key, by number, and by sequence."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[int, int], Request] = {}
        self._by_number: dict[int, Request] = {}
        self._by_sequence: dict[Sequence, Request] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, request: Request) -> None:
        """Take in a new request."""
        self._by_key[request.key] = request
        self._by_number[request.number] = request
        self._by_sequence[request.sequence] = request

    def remove(self, request: Request) -> None:
        """Forget a request."""
        del self._by_key[request.key], self._by_number[request.number], self._by_sequence[request.sequence]

    def find(self, stream_id: int, sequence_id: int) -> Request | None:
        """The request that a client means, if it is open."""
        return self._by_key.get((stream_id, sequence_id))

    def numbered(self, number: int) -> Request | None:
        """The request that a larger tier means, if it is still open."""
        return self._by_number.get(number)

    def of(self, sequence: Sequence) -> Request:
        """The request of an engine's sequence."""
        return self._by_sequence[sequence]

    def of_stream(self, stream_id: int) -> list[Request]:
        """All requests of a client's stream."""
        return [request for request in self._by_key.values() if request.stream_id == stream_id]

    def at(self, place: Place) -> list[Request]:
        """All requests at a place."""
        return [request for request in self._by_key.values() if request.place is place]

    def all(self) -> list[Request]:
        """All requests."""
        return list(self._by_key.values())
