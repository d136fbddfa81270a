"""The shapes of steps that are recorded: how many rows, and how many tokens they have together.

A step runs at the smallest shape that holds it, the rest of which is padding. Tokens are packed, so it does not matter
how they are shared out: hand-offs of some tokens go along with rows that decode one.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bucket:
    """A shape that is recorded."""

    num_rows: int
    """Rows that it holds at most."""
    num_tokens: int
    """New tokens of all rows together that it holds at most."""

    @property
    def is_decode(self) -> bool:
        """Whether each row has one token."""
        return self.num_rows == self.num_tokens


@dataclass(frozen=True, slots=True)
class Buckets:
    """The shapes that are recorded of one model's steps, smaller ones first."""

    decodes: tuple[Bucket, ...]
    extends: tuple[Bucket, ...]

    @classmethod
    def up_to(cls, max_rows: int, max_tokens: int) -> "Buckets":
        """Shapes for steps of up to so many tokens, by up to so many sequences.

        Of a decode at most 7 rows are padding up to 64 rows, 15 up to 256 and 31 beyond; of an extend less than a
        third of the tokens. An extend holds as many rows as its tokens allow, since rows cost next to nothing.
        """
        most = min(max_rows, max_tokens)
        return cls(
            tuple(Bucket(size, size) for size in _up_to(most, _decode_sizes())),
            tuple(Bucket(min(max_rows, size - 1), size) for size in _up_to(max_tokens, _extend_sizes()) if size > 1),
        )

    def pick(self, num_rows: int, num_tokens: int) -> Bucket | None:
        """The smallest shape that holds a step; None where none does."""
        candidates = self.decodes if num_rows == num_tokens else self.extends
        return next(
            (one for one in candidates if num_rows <= one.num_rows and num_tokens <= one.num_tokens),
            None,
        )

    def largest_first(self) -> Iterator[Bucket]:
        """All of them, in the order in which they are recorded."""
        yield from sorted((*self.decodes, *self.extends), key=lambda one: one.num_tokens, reverse=True)


def _up_to(most: int, sizes: Iterator[int]) -> Iterator[int]:
    """Sizes below the most there can be, and then just that."""
    for size in sizes:
        if size >= most:
            break
        yield size
    yield most


def _decode_sizes() -> Iterator[int]:
    """1, 2, 4, 8, 16, 24 and so on; later in larger steps."""
    yield from (1, 2, 4)
    size = 8
    while True:
        yield size
        size += 8 if size < 64 else 16 if size < 256 else 32


def _extend_sizes() -> Iterator[int]:
    """2, 3, 4, 6, 8, 12 and so on: powers of two, and half-way between them."""
    size = 2
    while True:
        yield size
        yield size + size // 2
        size *= 2
