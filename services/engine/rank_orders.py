"""What the first of several processes that run one model tells the others: orders, as plain numbers.

A message is a list of integers, order after order: its kind, how many numbers follow, and these. Nothing else travels,
so nothing is ever unpickled.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..errors import Internal
from .attention import Row

_BEGIN, _ASSIGN, _CLEAR, _FORWARD, _STOP = range(1, 6)
_ROW_NUMBERS = 4


@dataclass(frozen=True, slots=True)
class Begin:
    """Load the model, with a KV pool of so many tokens."""

    num_kv_tokens: int


@dataclass(frozen=True, slots=True)
class Assign:
    """See `AttentionBackend.assign`."""

    slot: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Clear:
    """See `AttentionBackend.clear`."""

    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Forward:
    """See `Runner.forward`."""

    rows: tuple[Row, ...]
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """The model is served no longer."""


Order = Begin | Assign | Clear | Forward | Stop


def pack(orders: Iterable[Order]) -> list[int]:
    """Orders as one message."""
    values: list[int] = []
    for order in orders:
        kind, own = _numbers(order)
        values += (kind, len(own), *own)
    return values


def unpack(values: Sequence[int]) -> list[Order]:
    """The orders of a message.

    Raises:
        Internal: it is none.
    """
    return [_order(kind, own) for kind, own in _parts(values)]


def _numbers(order: Order) -> tuple[int, list[int]]:
    match order:
        case Begin(num_kv_tokens):
            return _BEGIN, [num_kv_tokens]
        case Assign(slot, blocks):
            return _ASSIGN, [slot, *blocks]
        case Clear(blocks):
            return _CLEAR, [*blocks]
        case Forward(rows, token_ids):
            flat = [number for row in rows for number in (row.slot, row.start, row.end, row.num_outputs)]
            return _FORWARD, [len(rows), *flat, *token_ids]
        case Stop():
            return _STOP, []


def _parts(values: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
    place = 0
    while place < len(values):
        kind, count = values[place : place + 2] if place + 2 <= len(values) else (0, 0)
        end = place + 2 + count
        if count < 0 or end > len(values):
            break
        yield kind, values[place + 2 : end]
        place = end
    if place != len(values):
        raise Internal(f"a message of {len(values)} numbers breaks off at the {place}th")


def _order(kind: int, own: Sequence[int]) -> Order:
    if kind == _BEGIN and len(own) == 1:
        return Begin(own[0])
    if kind == _ASSIGN and own:
        return Assign(own[0], tuple(own[1:]))
    if kind == _CLEAR:
        return Clear(tuple(own))
    if kind == _FORWARD and own and 0 <= own[0] * _ROW_NUMBERS < len(own):
        return _forward(own)
    if kind == _STOP and not own:
        return Stop()
    raise Internal(f"a message has an order of kind {kind} with {len(own)} numbers, which is none")


def _forward(own: Sequence[int]) -> Forward:
    first_token = 1 + own[0] * _ROW_NUMBERS
    rows = tuple(Row(*own[place : place + _ROW_NUMBERS]) for place in range(1, first_token, _ROW_NUMBERS))
    order = Forward(rows, tuple(own[first_token:]))
    if any(row.start < 0 or row.length < 1 for row in rows) or sum(map(_length, rows)) != len(order.token_ids):
        raise Internal(f"a step of {len(rows)} rows does not fit its {len(order.token_ids)} tokens")
    return order


def _length(row: Row) -> int:
    return row.length
