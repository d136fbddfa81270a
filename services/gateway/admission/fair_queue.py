"""A line that is fair between keys: round robin over keys, first come, first served within one.

A key with nothing waiting joins at the end of the round, so a key with any number of requests delays another
key's single one by one start at most. All work is O(1), but for `num_ahead`, which adds up one key's numbers.
"""

from collections import OrderedDict, defaultdict
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


class FairQueue(Generic[ItemT]):
    """Items by key. An item must be hashable and may be in line once."""

    def __init__(self) -> None:
        # Not plain dicts: finding the first of one takes longer the more were taken from its front.
        self._lines: OrderedDict[str, OrderedDict[ItemT, None]] = OrderedDict()
        """In the order of turns; no line is empty."""
        self._keys: dict[ItemT, str] = {}
        self._num_at_least: list[int] = []
        """At index n: keys with more than n items. Its length is that of the longest line."""
        self._keys_by_length: defaultdict[int, OrderedDict[str, None]] = defaultdict(OrderedDict)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def num_keys(self) -> int:
        """Keys that have an item in line."""
        return len(self._lines)

    @property
    def longest(self) -> int:
        """Items of the key that has most."""
        return len(self._num_at_least)

    def num_of(self, key: str) -> int:
        """Items of a key."""
        return len(self._lines.get(key, ()))

    def num_ahead(self, key: str) -> int:
        """Items that would leave before a new one of this key, if nobody came or left meanwhile, at most."""
        return sum(self._num_at_least[: self.num_of(key) + 1])

    def push(self, key: str, item: ItemT) -> None:
        """Add an item behind those of its key."""
        line = self._lines.setdefault(key, OrderedDict())
        line[item] = None
        self._keys[item] = key
        if len(line) > self.longest:
            self._num_at_least.append(0)
        self._num_at_least[len(line) - 1] += 1
        self._file(key, len(line) - 1, len(line))

    def pop(self) -> ItemT:
        """Take the first item of the key whose turn it is. Something must be in line."""
        key, line = next(iter(self._lines.items()))
        item = next(iter(line))
        self._lines.move_to_end(key)
        self.remove(item)
        return item

    def newest_of_longest(self) -> ItemT:
        """The item that came last of a key that has most. Something must be in line."""
        key = next(iter(self._keys_by_length[self.longest]))
        return next(reversed(self._lines[key]))

    def remove(self, item: ItemT) -> bool:
        """Take an item out of the middle; False where it is not there."""
        if (key := self._keys.pop(item, None)) is None:
            return False
        line = self._lines[key]
        del line[item]
        length = len(line)
        self._num_at_least[length] -= 1
        if not self._num_at_least[length]:
            self._num_at_least.pop()
        self._file(key, length + 1, length)
        if not line:
            del self._lines[key]
        return True

    def _file(self, key: str, old: int, new: int) -> None:
        if old:
            del self._keys_by_length[old][key]
            if not self._keys_by_length[old]:
                del self._keys_by_length[old]
        if new:
            self._keys_by_length[new][key] = None
