"""Where requests come in: whom they are from, whether they may, and the places that they get."""

from functools import partial
from types import TracebackType
from typing import Self

from ...config import GatewaySettings
from ..security.key_file import KeyRecord
from ..security.key_limits import KeyLimits
from ..security.key_ring import KeyRing
from .client_key import ClientKeys
from .key_rates import KeyRates
from .limiter import Limiter
from .promise import Promise
from .ticket import Ticket


class Places:
    """A request's places. The end of the context gives back those that were not taken over."""

    def __init__(self) -> None:
        self._tickets: list[Ticket] = []

    def __len__(self) -> int:
        return len(self._tickets)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Give back those that were not taken over. May be called again."""
        for ticket in self.take():
            ticket.release(has_run=False)

    def add(self, tickets: list[Ticket]) -> None:
        """Have more of them."""
        self._tickets.extend(tickets)

    def take(self) -> list[Ticket]:
        """Take them over; the caller must release each."""
        tickets, self._tickets = self._tickets, []
        return tickets


class Door:
    """Keys, rates and the limiter together. Belongs to one event loop."""

    def __init__(self, settings: GatewaySettings, promise: Promise, ring: KeyRing | None = None) -> None:
        """`ring` is asked for who may come in; without one everybody may."""
        admission = settings.admission
        self.keys: ClientKeys | KeyRing = ClientKeys() if ring is None else ring
        self.limits = KeyLimits(_no_record if ring is None else ring.record)
        self.limiter = Limiter(
            max_running=settings.max_running,
            max_waiting=settings.max_waiting,
            queue_timeout_s=settings.queue_timeout_s,
            max_waiting_per_key=admission.max_waiting_per_key,
            starts_per_s=admission.starts_per_s,
            promise=promise,
        )
        self._rates = KeyRates(admission.requests_per_minute_per_key)
        self._request_timeout_s = settings.request_timeout_s

    def check(self, client: str) -> None:
        """Whether a client's request of one prompt would be let in now; costs next to nothing.

        Raises:
            Refusal: it would not.
        """
        self._rates.check(client)
        self.limits.check(client, 1)
        self.limiter.check(client, 1, self._request_timeout_s)

    def admit(self, client: str, num_places: int, timeout_s: float | None) -> Places:
        """Places for a client's request; it counts as one start of its key however many they are.

        Args:
            client: the name that `keys` gives.
            num_places: one for each prompt.
            timeout_s: what the client gives; the gateway's own limit holds too.

        Raises:
            Refusal: there are none for it now.
        """
        self._rates.check(client)
        self.limits.check(client, num_places)
        time_left_s = self._request_timeout_s if timeout_s is None else min(timeout_s, self._request_timeout_s)
        places = Places()
        self._enter(places, client, num_places, time_left_s)
        self._rates.take(client)
        self.limits.start(client)
        return places

    def widen(self, places: Places, client: str, num_places: int) -> None:
        """Let a request that has places have so many, once it is known that it needs more.

        Raises:
            Refusal: there is no room for all of them.
        """
        if (num_more := num_places - len(places)) > 0:
            self.limits.check_open(client, num_more, num_places)
            self._enter(places, client, num_more, self._request_timeout_s)

    def _enter(self, places: Places, client: str, num_places: int, time_left_s: float) -> None:
        tickets = self.limiter.enter(client, num_places=num_places, time_left_s=time_left_s)
        for ticket in tickets:
            self.limits.open(client)
            ticket.on_end = partial(self.limits.close, client)
        places.add(tickets)


def _no_record(_: str) -> KeyRecord | None:
    return None
