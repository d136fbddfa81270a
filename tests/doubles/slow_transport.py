"""Memory of this process that is reached as slowly as a device's may be: each call waits for the test."""

from concurrent.futures import Future
from threading import Event

from allroads.mesh.process_memory import AttachedRegion, ProcessMemoryTransport, ProcessRegion
from allroads.mesh.wire import common_pb2 as pb

_LIMIT_S = 30.0


class SlowTransport(ProcessMemoryTransport):
    """Keeps who makes or attaches a region until `go` is set. `begun` is done once somebody waits."""

    may_wait = True

    def __init__(self) -> None:
        super().__init__()
        self.begun: Future[None] = Future()
        self.go = Event()
        self.made: list[ProcessRegion] = []
        self.closed: list[AttachedRegion] = []

    def create(self, size_bytes: int, probe: bytes) -> ProcessRegion:
        self._wait()
        self.made.append(super().create(size_bytes, probe))
        return self.made[-1]

    def attach(self, told: pb.Region) -> AttachedRegion:
        self._wait()
        region = super().attach(told)
        close = region.close

        def note() -> None:
            close()
            self.closed.append(region)

        region.close = note  # type: ignore[method-assign]
        return region

    @property
    def regions(self) -> int:
        """Regions that can still be found."""
        return len(self._regions)

    def _wait(self) -> None:
        if not self.begun.done():
            self.begun.set_result(None)
        assert self.go.wait(_LIMIT_S)
