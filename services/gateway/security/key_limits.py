"""What each key may do at once and in a minute, by what the file says of it."""

from collections.abc import Callable

from ...errors import InvalidArgument
from ..admission.key_rates import KeyRates
from ..admission.refusal import Refusal
from .key_file import KeyRecord

_RETRY_S = 1.0


class KeyLimits:
    """Counts starts and open answers of each key. Belongs to one event loop."""

    def __init__(self, record_of: Callable[[str], KeyRecord | None]) -> None:
        """`record_of` knows the limits of a key by its name."""
        self._record_of = record_of
        self._rates: dict[str, tuple[int, KeyRates]] = {}
        self._num_open: dict[str, int] = {}

    def num_open(self, name: str) -> int:
        """Answers of a key that have not ended."""
        return self._num_open.get(name, 0)

    def check(self, name: str, num_places: int) -> None:
        """Whether a key may start a request of so many answers now.

        Raises:
            Refusal: not before the time that it carries.
        """
        if (rates := self._rates_of(name)) is not None:
            rates.check(name)
        self.check_open(name, num_places, num_places)

    def check_open(self, name: str, num_more: int, num_places: int) -> None:
        """Whether a key may have so many more answers open, of a request that asks for `num_places`.

        Raises:
            InvalidArgument: not ever, as the request asks for too many.
            Refusal: not now.
        """
        record = self._record_of(name)
        if record is None or (most := record.max_running) is None or self.num_open(name) + num_more <= most:
            return
        if num_places > most:
            raise InvalidArgument(
                f"this key may have {most} answers open at once, and the request asks for {num_places}"
            )
        message = f"this key may have {most} answers open at once, and has {self.num_open(name)}"
        raise Refusal("key_open", message, retry_after_s=_RETRY_S)

    def start(self, name: str) -> None:
        """A request of a key starts."""
        if (rates := self._rates_of(name)) is not None:
            rates.take(name)

    def open(self, name: str) -> None:
        """An answer of a key begins."""
        self._num_open[name] = self.num_open(name) + 1

    def close(self, name: str) -> None:
        """It has ended."""
        if (left := self._num_open[name] - 1) > 0:
            self._num_open[name] = left
        else:
            del self._num_open[name]

    def _rates_of(self, name: str) -> KeyRates | None:
        """The starts of a key within a minute; None where it has no limit. A limit that changed begins afresh."""
        record = self._record_of(name)
        limit = None if record is None else record.requests_per_minute
        if limit is None:
            self._rates.pop(name, None)
            return None
        if name not in self._rates or self._rates[name][0] != limit:
            self._rates[name] = limit, KeyRates(limit)
        return self._rates[name][1]
